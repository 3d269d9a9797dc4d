"""The pure core: it decides, and only decides. No I/O, no clock, no threads: `now` and chance are arguments."""
