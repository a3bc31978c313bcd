"""``*.env.json``: versions, GPU and environment variables of one recorded process."""

from __future__ import annotations

import json
from typing import Any

from diagnose.readers.files import read_bounded
from diagnose.trace import Note

MAX_BYTES = 4 << 20


def read(path: str) -> tuple[dict[str, Any], list[Note]]:
    """The content, empty with a note if it cannot be read. Never raises for bad input."""
    data, problem = read_bounded(path, MAX_BYTES)
    if problem is None:
        try:
            content = json.loads(data.decode("utf-8-sig"), parse_constant=lambda _: None)
            if isinstance(content, dict):
                return content, []
            problem = "not a JSON object"
        except (ValueError, RecursionError) as error:
            problem = f"damaged ({(str(error).splitlines() or ['no JSON'])[0][:120]})"
    sentence = (
        f"{path}: {problem}; versions and environment variables of this process are unknown, so "
        "nothing that depends on them is said"
    )
    return {}, [Note("environment-unreadable", "warning", sentence)]
