"""Files of other kinds that are given for traces, told by how they begin."""

from __future__ import annotations

import re

_UNPACK = "Unpack it first and give the JSON file, or compress it with gzip."
_RECORD = "Give a trace written by torch.profiler."
_NOT_TRACES = {
    b"PK\x03\x04": ("a zip archive within another archive", _UNPACK),
    b"\x28\xb5\x2f\xfd": ("zstd-compressed data", _UNPACK),
    b"BZh": ("bzip2-compressed data", _UNPACK),
    b"\xfd7zXZ\x00": ("xz-compressed data", _UNPACK),
    b"\x04\x22\x4d\x18": ("lz4-compressed data", _UNPACK),
    b"7z\xbc\xaf\x27\x1c": ("a 7-Zip archive", _UNPACK),
    b"SQLite format 3\x00": (
        "an SQLite database (Nsight Systems exports such files)",
        _RECORD,
    ),
    b"NVR\x00": (
        "an Nsight Compute report",
        _RECORD,
    ),
    b"version https://git-lfs": (
        "a pointer of Git LFS in place of the file",
        "Fetch the file with `git lfs pull`.",
    ),
    b"\x7fELF": ("a program", _RECORD),
    b"PAR1": ("a Parquet file", _RECORD),
    b"\x89HDF": ("an HDF5 file", _RECORD),
    b"%PDF": ("a PDF document", _RECORD),
    b"\x89PNG": ("a picture", _RECORD),
}

_PYTHON = re.compile(rb"\s*\[?\s*\{\s*'")


def describe_foreign(head: bytes) -> tuple[str, str] | None:
    """What a file that begins with ``head`` is, and the hint, if it is a known other format."""
    for magic, described in _NOT_TRACES.items():
        if head.startswith(magic):
            return described
    if head[257:262] == b"ustar":
        return "a tar archive", "Unpack it and give the folder."
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return (
            "a Python pickle (memory snapshots are such files)",
            "Give the JSON file that export_chrome_trace wrote.",
        )
    if b"QuadDAnalysis" in head[:4096] or b"NvtxExtPayload" in head[:4096]:
        return (
            "an Nsight Systems report",
            _RECORD,
        )
    if _PYTHON.match(head):
        return (
            "a printed Python object (quotes are single) and no JSON",
            "Write it with json.dump in place of print or str.",
        )
    if head.lstrip()[:1] == b"<":
        return "a web page or XML", "Check the download: it may be a login or error page."
    return None
