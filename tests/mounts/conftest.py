"""Every test here makes real mounts."""

from tests.support.fixtures import mounts, store, tree

__all__ = ["mounts", "store", "tree"]
