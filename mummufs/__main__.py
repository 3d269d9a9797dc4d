"""`python -m mummufs` is the `mummufs` command."""

from mummufs.cli import main

if __name__ == "__main__":
    main()
