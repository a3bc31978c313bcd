"""Exported symbols of one ELF file as it lies in the memory of a process.

Memory is read, not the file: a library that was replaced or deleted under a running
job, or that lies in a container, still answers with what really runs. Everything is
read in small bounded pieces; what does not add up is ImageError, never a wrong address.

Layout: System V ABI, chapters 4 and 5, and the GNU hash table of binutils.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_LOAD, _DYNAMIC = 1, 2
_FIXED, _MOVABLE = 2, 3
_X86_64 = 62
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH = 4, 5, 6, 0x6FFFFEF5
_OBJECT, _FUNCTION = 1, 2
_MOST_SEGMENTS = 256
_MOST_DYNAMIC_BYTES = 1 << 16
_LONGEST_CHAIN = 1 << 16
_PAGE = 4096

Read = Callable[[int, int], bytes]
"""``read(address, size)``: the bytes, fewer at the end of a mapping; OSError if none."""


class ImageError(Exception):
    """Not an ELF file of this kind, or one that contradicts itself."""


class Image:
    """One mapped file. ``start`` is where its first byte lies in the process."""

    def __init__(self, read: Read, start: int) -> None:
        self._read = read
        header = _HEADER.unpack(self._bytes(start, _HEADER.size))
        identity, kind, machine = header[:3]
        offset, size, count = header[5], header[9], header[10]
        if identity[:6] != b"\x7fELF\x02\x01":
            raise ImageError("no 64-bit little-endian ELF file")
        if machine != _X86_64:
            raise ImageError(f"built for processor {machine} of the ELF numbering, not x86-64")
        if kind not in (_FIXED, _MOVABLE):
            raise ImageError("neither a program nor a library")
        if size != _SEGMENT.size or not 0 < count <= _MOST_SEGMENTS:
            raise ImageError("a damaged table of segments")
        table = self._bytes(start + offset, size * count)
        segments = list(_SEGMENT.iter_unpack(table))
        loads = [s for s in segments if s[0] == _LOAD]
        first = next((s for s in loads if s[2] < _PAGE), None)
        if first is None:
            raise ImageError("its beginning is not loaded")
        self._bias = start - (first[3] - first[3] % _PAGE)
        if self._bias < 0 or (kind == _FIXED and self._bias):
            raise ImageError("it does not lie where it says")
        self._low = self._bias + min(s[3] for s in loads)
        self._high = self._bias + max(s[3] + s[6] for s in loads)
        self._tables = self._dynamic(segments)

    def address_of(self, name: str) -> int | None:
        """Where the function or object of this name lies; None if it is not exported."""
        if _DT_GNU_HASH in self._tables:
            candidates = self._by_gnu_hash(name.encode())
        else:
            candidates = self._by_hash(name.encode())
        wanted = name.encode() + b"\0"
        for index in candidates:
            place = self._tables[_DT_SYMTAB] + index * _SYMBOL.size
            text, information, _, section, value, _ = _SYMBOL.unpack(
                self._inside(place, _SYMBOL.size)
            )
            if not section or information & 15 not in (_OBJECT, _FUNCTION):
                continue
            if self._inside(self._tables[_DT_STRTAB] + text, len(wanted)) == wanted:
                address = int(self._bias + value)
                if not self._low <= address < self._high:
                    raise ImageError(f"{name} lies outside of the file")
                return address
        return None

    def _dynamic(self, segments: list[tuple[int, ...]]) -> dict[int, int]:
        dynamic = next((s for s in segments if s[0] == _DYNAMIC), None)
        if dynamic is None:
            raise ImageError("it exports nothing")
        size = min(dynamic[6], _MOST_DYNAMIC_BYTES) // 16 * 16
        tables: dict[int, int] = {}
        for tag, value in struct.iter_unpack("<QQ", self._inside(self._bias + dynamic[3], size)):
            if tag == 0:
                break
            if tag in (_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH):
                # glibc turns these into addresses when it loads the file, others leave them.
                tables[tag] = value if value >= self._bias else value + self._bias
        if not {_DT_STRTAB, _DT_SYMTAB} <= tables.keys() or not (
            {_DT_HASH, _DT_GNU_HASH} & tables.keys()
        ):
            raise ImageError("it has no table of symbols")
        return tables

    def _by_gnu_hash(self, name: bytes) -> Iterator[int]:
        table = self._tables[_DT_GNU_HASH]
        num_buckets, first, num_filters, _ = struct.unpack("<4I", self._inside(table, 16))
        if not num_buckets:
            return
        wanted = 5381
        for byte in name:
            wanted = (wanted * 33 + byte) & 0xFFFFFFFF
        buckets = table + 16 + num_filters * 8
        index = self._number(buckets + wanted % num_buckets * 4)
        if index < first:
            return
        for symbol in range(index, index + _LONGEST_CHAIN):
            found = self._number(buckets + num_buckets * 4 + (symbol - first) * 4)
            if found | 1 == wanted | 1:
                yield symbol
            if found & 1:
                return
        raise ImageError("a chain of symbols without an end")

    def _by_hash(self, name: bytes) -> Iterator[int]:
        table = self._tables[_DT_HASH]
        num_buckets, num_symbols = struct.unpack("<2I", self._inside(table, 8))
        if not num_buckets:
            return
        wanted = 0
        for byte in name:
            wanted = (wanted << 4) + byte
            wanted = (wanted ^ (wanted >> 24 & 0xF0)) & 0x0FFFFFFF
        index = self._number(table + 8 + wanted % num_buckets * 4)
        for _ in range(min(num_symbols, _LONGEST_CHAIN)):
            if not index:
                return
            yield index
            index = self._number(table + 8 + num_buckets * 4 + index * 4)
        raise ImageError("a chain of symbols without an end")

    def _number(self, address: int) -> int:
        return int.from_bytes(self._inside(address, 4), "little")

    def _inside(self, address: int, size: int) -> bytes:
        if not self._low <= address <= address + size <= self._high:
            raise ImageError("a table lies outside of the file")
        return self._bytes(address, size)

    def _bytes(self, address: int, size: int) -> bytes:
        try:
            data = self._read(address, size)
        except (OSError, OverflowError, ValueError):
            data = b""
        if len(data) != size:
            raise ImageError("it cannot be read to its end")
        return data
