"""What runs inside a training process: steps counted, one window profiled, nothing left behind.

The package stands alone: Python 3.9 to 3.14, the standard library, and the torch that the
process has loaded already (looked up in ``sys.modules``, never imported anew). It imports
nothing else of diagnose, because in a job it exists under a private name, ``_diagnose_agent``.

Three ways in: ``launch/sitecustomize.py`` at the start of a job (``autoload``), injected into
a running one (``server.start``), or used by the job's own code (``in_process``). In every way
the hot path is one hook behind the optimizer step (``steps``); all the rest happens on request.
"""

from __future__ import annotations

AGENT_VERSION = "1.0"
PRIVATE_NAME = "_diagnose_agent"
