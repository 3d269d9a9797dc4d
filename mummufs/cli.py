"""The `mummufs` command. The sub-commands are in `mummufs.commands`; failures become one sentence here."""

from __future__ import annotations

import sys
from typing import IO, Any

import click

import mummufs
from mummufs.commands.output import printable
from mummufs.core.errors import MummufsError, UsageError

if sys.platform == "win32":
    from mummufs.commands.windows import mount, ranges, status, umount, verify

    COMMANDS = (mount, umount, status, ranges, verify)
else:
    from mummufs.commands.install_helper import install_helper
    from mummufs.commands.mount import mount
    from mummufs.commands.pin import evict, pin, unpin
    from mummufs.commands.profile import profile
    from mummufs.commands.ranges import ranges
    from mummufs.commands.residency import residency
    from mummufs.commands.simulate import simulate
    from mummufs.commands.status import status
    from mummufs.commands.trace import trace
    from mummufs.commands.umount import umount
    from mummufs.commands.verify import verify
    from mummufs.commands.warm import warm

    COMMANDS = (
        *(mount, umount, status, ranges, verify, warm, pin, unpin, evict, residency, profile, trace, simulate),
        install_helper,
    )


class Failure(click.ClickException):
    """A sentence on stderr and exit code 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the sentence."""
        click.echo(f"mummufs: {printable(self.message)}", err=True, file=file)


class UsageFailure(Failure):
    """A sentence on stderr and exit code 2."""

    exit_code = 2


class Commands(click.Group):
    """A group whose commands may raise what mummufs raises."""

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; a failure that was meant ends in its sentence, and so does one of the system."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            raise UsageFailure(str(error)) from error
        except MummufsError as error:
            raise Failure(str(error)) from error
        except BrokenPipeError:
            raise  # click ends quietly: the reader of our output has gone
        except OSError as error:
            raise Failure(_system_failure(error)) from error


def _system_failure(error: OSError) -> str:
    where = f" '{error.filename}'" if error.filename is not None else ""
    return f"the system refused{where}: {error.strerror or error}"


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(mummufs.__version__, prog_name="mummufs")
def cli() -> None:
    """Serve a model on a slow volume from the NVMe, range by range."""


for command in COMMANDS:
    cli.add_command(command)


def main() -> None:
    """The console script."""
    cli(prog_name="mummufs")
