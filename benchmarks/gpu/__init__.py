"""Measurements that need a GPU; each module says how it is run and what it writes."""
