"""The slow volume. Blocking and thread-safe: the engine calls it from worker threads."""
