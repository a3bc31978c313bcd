"""Further analyses, one a file. Each exports ``ANALYZERS``."""
