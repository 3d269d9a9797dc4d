"""mummufs: a mount that serves a model on a slow volume from the NVMe, one manifest range at a time."""

__version__ = "0.1.0"
