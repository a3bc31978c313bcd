"""Small CUDA programs with one missing synchronisation each, and their repaired twins."""
