"""The engine: the one place where the pure core meets I/O, and the only asynchronous logic.

Everything here runs on one trio thread; blocking calls go to worker threads (threads.py). Between two checkpoints
nothing else runs, so the index and the tables of flights need no locks.
"""
