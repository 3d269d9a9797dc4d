"""From a model file's header to its ranges. Parsers get a `pread` and never open a file; `child` runs them apart."""
