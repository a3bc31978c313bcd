"""Finding the ranks on this host, and the jobs they belong to, from ``/proc``."""
