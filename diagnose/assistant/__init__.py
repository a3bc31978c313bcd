"""What a coding assistant asks of recordings: answers that are short, exact and only data.

``server`` speaks the Model Context Protocol and is the only module that knows of it; the
others are plain functions. Every text of a trace (names of kernels, steps, hosts, files) is
untrusted: it appears inside of JSON values, printable, and never in a tool's description.
"""
