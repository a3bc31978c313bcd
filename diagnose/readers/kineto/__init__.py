"""Kineto (Chrome trace) JSON to columns. ``reader`` says what is accepted and how."""

from diagnose.readers.kineto.reader import READER

__all__ = ["READER"]
