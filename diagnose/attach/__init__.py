"""Reaching running training processes: finding them, entering them, agreeing on a step.

What happens inside a process is ``diagnose.agent``; what becomes of the result is
``diagnose.collect``. Everything here runs in the person's own process, reads ``/proc``
and needs Linux.
"""
