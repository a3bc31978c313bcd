"""Makes few, bounded tar files of many recordings."""

from __future__ import annotations

import tarfile
from pathlib import Path

from benchmarks.gpu.jobs.pairs.catalogue import BY_NAME, GROUPS
from benchmarks.gpu.jobs.pairs.truth import Truth, write_lines

MOST_FILES = 4
MOST_BYTES = 14_900_000
_BLOCK = 512
_LOG_BYTES = 50_000


def pack(folder: Path, into: Path) -> None:
    """Write ``pairs0.tar`` ... with ``pairs.jsonl``, the ends of the logs and the recordings.

    Most valuable pairs first; what has no place is named.
    """
    into.mkdir(parents=True, exist_ok=True)
    write_lines(folder)
    logs = folder / "logs.txt"
    logs.write_bytes(b"".join(map(_end_of, sorted((folder / "logs").glob("*.log")))))
    bins: list[list[Path]] = [[] for _ in range(MOST_FILES)]
    sizes = [_size(folder / "pairs.jsonl") + _size(logs) + (20 << 10)] + [20 << 10] * 3
    bins[0] += [folder / "pairs.jsonl", logs]
    names = dict.fromkeys(name for group in GROUPS for name in group.pairs)
    for name in names:
        sides = [side for side in BY_NAME[name].sides if Truth(folder, name).recorded(side)]
        files = [path for side in sides for path in _files(folder / "pairs" / name / side)]
        needed = sum(map(_size, files))
        place = next((i for i in range(MOST_FILES) if sizes[i] + needed <= MOST_BYTES), None)
        if place is None:
            print(f"no place for {name}, {needed} bytes", flush=True)
            continue
        sizes[place] += needed
        bins[place] += files
    for number, files in enumerate(bins):
        if files:
            with tarfile.open(into / f"pairs{number}.tar", "w") as tar:
                for path in files:
                    tar.add(path, arcname=path.relative_to(folder))


def _files(recording: Path) -> list[Path]:
    return [path for path in sorted(recording.iterdir()) if path.is_file()]


def _size(path: Path) -> int:
    """In a tar file: a block or two for its name (its own blocks filled up)."""
    return 3 * _BLOCK + -(-path.stat().st_size // _BLOCK) * _BLOCK


def _end_of(log: Path) -> bytes:
    with open(log, "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _LOG_BYTES))
        return f"==== {log.name}\n".encode() + file.read()
