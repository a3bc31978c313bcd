"""The programs, by what should have ordered their accesses."""
