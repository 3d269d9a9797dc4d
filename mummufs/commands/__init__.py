"""The sub-commands of `mummufs`, one a file."""
