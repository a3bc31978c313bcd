"""A baseline: findings that are accepted, so that only new ones count."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from diagnose.errors import UsageError
from diagnose.findings import Finding

FORMAT = 1
_HINT = "write one with `diagnose report PATH --write-baseline FILE`"


def accepted_keys(path: Path) -> frozenset[str]:
    """The keys in a baseline file. UsageError if it is none."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise UsageError(
            f"cannot read the baseline {path}: {problem.strerror or problem}", hint=_HINT
        ) from None
    except ValueError as problem:
        raise UsageError(f"the baseline {path} is not JSON: {problem}", hint=_HINT) from None
    entries = content.get("accepted") if isinstance(content, dict) else None
    if not isinstance(entries, list) or content.get("format") != FORMAT:
        raise UsageError(f"{path} is no baseline of format {FORMAT}", hint=_HINT)
    keys = [entry.get("key") if isinstance(entry, dict) else None for entry in entries]
    if not all(isinstance(key, str) for key in keys):
        raise UsageError(f"{path}: an entry of `accepted` has no key", hint=_HINT)
    return frozenset(map(str, keys))


def baseline_text(findings: Iterable[Finding], accepted: Iterable[Finding]) -> str:
    """A baseline that accepts these findings, with all that they explain, and those accepted so
    far that are still there."""
    rows = {
        one.key: {"key": one.key, "rule": one.rule, "sentence": one.sentence}
        for found in (*findings, *accepted)
        for one in found.everything()
    }
    document = {"format": FORMAT, "accepted": [rows[key] for key in sorted(rows)]}
    return json.dumps(document, indent=2) + "\n"
