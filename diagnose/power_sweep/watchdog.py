"""``python -m diagnose.power_sweep.watchdog``: restores power limits when its parent is gone.

Reads one line of JSON from standard input, ``{"limits_w": {uuid: watts}, "journal": path}``,
answers ``ready`` once it can read every limit, and waits. ``restored`` says that all is
done; the end of the input without it says that the parent is gone, and it restores.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

from diagnose.errors import RecordingError
from diagnose.power_sweep.guard import READY, RESTORED, restore
from diagnose.power_sweep.journal import Journal
from diagnose.power_sweep.plan import Limits

_DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


def watch(given: IO[bytes], answers: IO[bytes], open_limits: Callable[[], Limits]) -> int:
    """Stand by until the input says ``restored`` or ends. 0: all limits are as they were."""
    for number in _DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    order = json.loads(given.readline())
    old_w = {str(uuid): float(watts) for uuid, watts in order["limits_w"].items()}
    limits = open_limits()
    for uuid in old_w:
        limits.read(uuid)
    answers.write(READY)
    answers.flush()
    if given.readline().strip() == RESTORED.encode():
        limits.close()
        return 0
    restore(limits, old_w)
    Journal(Path(order["journal"])).remove()
    limits.close()
    return 0


def main() -> int:
    """Watch over this machine's GPUs."""
    from diagnose.telemetry.limits import PowerLimits

    try:
        return watch(sys.stdin.buffer, sys.stdout.buffer, PowerLimits)
    except RecordingError as error:
        print(f"diagnose: {error.message}; {error.hint}", file=sys.stderr)  # noqa: T201
        return 2


if __name__ == "__main__":
    sys.exit(main())
