"""Backends translate an operating system's file system interface into `engine.overlay`, and nothing else."""
