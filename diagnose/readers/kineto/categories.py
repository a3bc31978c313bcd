"""Which group of columns an event belongs to, by phase, category and level of detail."""

from __future__ import annotations

from diagnose.schema import Detail, Kind

DROP, GPU, CALLS, SYNCS, HOST, HOST_BY_NAME, BEGIN, END, METADATA, UNKNOWN = range(10)

# Categories of Kineto, and of PyTorch 1.x before it ("Kernel", "Memcpy", "Operator", "Runtime").
_KINDS = {
    "kernel": Kind.KERNEL,
    "concurrent_kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "memset": Kind.MEMSET,
}
# Kineto writes these three for every device; other writers put the device's name before
# ("privateuse1_kernel", "xpu_memcpy").
_KIND_ENDINGS = {"_kernel": Kind.KERNEL, "_memcpy": Kind.MEMCPY, "_memset": Kind.MEMSET}
_CALL_ENDINGS = ("_runtime", "_driver")
# Marks and labels on the rows of a GPU that are neither work nor waiting.
_IGNORED = frozenset(("gpu_user_annotation", "cuda_event", "hip_event", "cuda_profiler_range"))
_NAMED = frozenset(("cpu_op", "operator", "user_annotation"))
_HOST = _NAMED | {"overhead", "python_function", "cpu_instant_event", "trace", "fwdbwd"}


def gpu_kind(category: str) -> Kind | None:
    """The kind of GPU work of a category; None if it is none."""
    category = category.lower()
    found = _KINDS.get(category)
    for ending, kind in _KIND_ENDINGS.items():
        if found is None and category.endswith(ending):
            found = kind
    return found


class Routes(dict[tuple[str, str], int]):
    """(phase, category) -> route, worked out once for each pair."""

    def __init__(self, detail: Detail) -> None:
        self._detail = detail

    def __missing__(self, key: tuple[str, str]) -> int:
        phase, category = key
        route = DROP
        if phase == "X":
            route = self._group(category.lower())
        elif phase == "B":
            route = BEGIN
        elif phase == "E":
            route = END
        elif phase == "M":
            route = METADATA
        self[key] = route
        return route

    def _group(self, category: str) -> int:
        if gpu_kind(category) is not None:
            return GPU
        if category in _IGNORED:
            return DROP
        least = Detail.LAUNCHES
        if category in ("runtime", "driver") or category.endswith(_CALL_ENDINGS):
            route = CALLS
        elif category.endswith("_sync"):
            route = SYNCS
        elif category == "user_annotation":
            route = HOST if self._detail >= Detail.LAUNCHES else HOST_BY_NAME
            least = Detail.GPU
        elif category == "overhead":
            route, least = HOST, Detail.GPU
        elif category not in _HOST:
            return UNKNOWN
        elif category in _NAMED and self._detail < Detail.ALL:
            route, least = HOST_BY_NAME, Detail.GPU
        else:
            route, least = HOST, Detail.ALL
        return route if self._detail >= least else DROP
