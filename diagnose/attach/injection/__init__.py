"""Entering a process that nobody prepared: symbols, ptrace, the borrowed thread, the payload.

``refusals`` says beforehand why a process cannot be entered, and the remedy.
"""
