"""What `mummufs mount` takes on every system."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from mummufs.config import LOG_LEVELS, STORE_ENV, STORE_GB_ENV

Command = TypeVar("Command", bound=Callable[..., Any])


def mount_options(variable: str, options_help: str) -> Callable[[Command], Command]:
    """The arguments and options of the command, in their order.

    Args:
        variable: how an environment variable is written there, `{}` for its name.
        options_help: of `-o`.
    """
    store, size = variable.format(STORE_ENV), variable.format(STORE_GB_ENV)
    parameters = (
        click.argument("source"),
        click.argument("mountpoint"),
        click.option("--store", metavar="DIR", help=f"Directory for range files, on the NVMe. Default: {store}."),
        click.option("--store-size", metavar="SIZE", help=f"The store's budget, such as 64G. Default: {size} or 64G."),
        click.option("--store-gb", metavar="N", help="The same in GiB."),
        click.option("-o", "options", metavar="OPT,...", multiple=True, help=options_help),
        click.option("--foreground", is_flag=True, help="Stay, and end with the mount."),
        click.option("--log-file", metavar="FILE", help="Where the daemon logs."),
        click.option("--log-level", metavar="LEVEL", help=f"One of {', '.join(LOG_LEVELS)}."),
        click.option("--mount-timeout", metavar="TIME", help="How long to wait for the mount. Default: 60s."),
    )

    def decorated(command: Command) -> Command:
        for parameter in reversed(parameters):
            command = parameter(command)
        return command

    return decorated
