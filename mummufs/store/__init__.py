"""The range files on the NVMe. Blocking and thread-safe: the engine calls it from worker threads."""
