"""``python -m diagnose``: the command line."""

from diagnose.cli import main

main()
