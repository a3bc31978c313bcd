"""Programs on streams, written down call by call, as a profile and an execution trace hold them.

::

    program = Program()
    program.op("write", writes=[X], stream=20)
    program.record("e", 20)
    program.wait("e", 7)
    program.op("read", reads=[X])
    assert found(program, tmp_path) == []

Each call takes 10 us of the host's time, or begins at ``at``. Work of the GPU lasts until long
after the program, if ``ends`` does not say otherwise. Stream 7 is the default one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diagnose.analyzers.hazards import Hazard, MissingCall, hazards
from diagnose.readers import read
from diagnose.trace import Table, Trace
from tests.builder import HOST_PID, MAIN_THREAD, TraceBuilder
from tests.execution_traces import Tensor, node, tensor, write

Found = tuple[str, str, str, str, bool]

LONG = 100_000


def memory(storage: int, begin: int = 0, end: int = 64, device: str = "cuda:0") -> Tensor:
    """Bytes of a storage without gaps."""
    return tensor(1000 + storage, storage, [end - begin], [1], offset=begin, item=1, device=device)


X, Y = memory(1), memory(2)
PINNED = memory(3, device="cpu")


def handle(stream: int) -> str:
    return "0" if stream == 7 else f"{0x1000 + stream:x}"


class Program:
    """One process."""

    def __init__(self, rank: int = 0) -> None:
        self.builder = TraceBuilder(rank=rank)
        self.nodes: list[dict[str, Any]] = []
        self.now = 0.0
        self.handles: dict[tuple[int, int], str] = {}

    def _at(self, at: float | None) -> float:
        if at is None:
            self.now += 10
            return self.now
        self.now = max(self.now, at)
        return at

    def host_op(
        self,
        name: str,
        *,
        reads: list[Tensor] | None = None,
        writes: list[Tensor] | None = None,
        news: list[Tensor] | None = None,
        at: float | None = None,
        lasts: float = 9,
        thread: int = MAIN_THREAD,
        schema: str | None = None,
    ) -> int:
        """An operator that launches nothing; returns its External id."""
        start, function = self._at(at), len(self.nodes) + 1
        inputs = [*(reads or []), *(writes or [])]
        arguments = [f"Tensor r{i}" for i in range(len(reads or []))]
        arguments += [f"Tensor({chr(97 + i)}!) w{i}" for i in range(len(writes or []))]
        results = ", ".join("Tensor" for _ in news or [])
        made = f"{name}({', '.join(arguments)}) -> ({results})" if schema is None else schema
        self.nodes.append(node(function, name, made, inputs, news or [], identity=function))
        return self.builder.operator(
            name, start, lasts, thread=thread, **{"Record function id": function}
        )

    def op(
        self,
        name: str,
        *,
        stream: int = 7,
        device: int = 0,
        kernels: int = 1,
        copy: str | None = None,
        call: str = "cudaLaunchKernel",
        starts: float | None = None,
        ends: float | None = None,
        lasts: float = 9,
        call_lasts: float = 1,
        at: float | None = None,
        thread: int = MAIN_THREAD,
        **accesses: Any,
    ) -> None:
        """An operator with kernels, or a copy of this name."""
        external = self.host_op(name, at=at, thread=thread, lasts=lasts, **accesses)
        begun = self.now if at is None else at
        for number in range(kernels):
            self.launch(
                name,
                begun + 2 + 2 * number,
                stream=stream,
                device=device,
                external=external,
                copy=copy,
                call=call,
                starts=starts,
                ends=ends,
                call_lasts=call_lasts,
                thread=thread,
            )

    def launch(
        self,
        name: str,
        at: float,
        *,
        stream: int = 7,
        device: int = 0,
        external: int | None = None,
        copy: str | None = None,
        call: str = "cudaLaunchKernel",
        starts: float | None = None,
        ends: float | None = None,
        call_lasts: float = 1,
        thread: int = MAIN_THREAD,
    ) -> None:
        """A call and its work."""
        correlation = self.builder.call(call, at, call_lasts, thread=thread, parent=external)
        start = at + 0.5 if starts is None else starts
        end = start + LONG if ends is None else ends
        self.builder.gpu(
            "gpu_memcpy" if copy else "kernel",
            copy or f"kernel of {name}",
            start,
            end - start,
            stream=stream,
            device=device,
            correlation=correlation,
            parent=external,
        )

    def note(self, text: str, at: float, thread: int = MAIN_THREAD) -> None:
        self.builder.operator(f"diagnose: {text}", at, 1, thread=thread)

    def _handle(self, stream: int, device: int) -> str:
        return self.handles.get((device, stream), handle(stream))

    def record(
        self,
        event: str,
        stream: int,
        *,
        device: int = 0,
        at: float | None = None,
        annotated: bool = True,
        called: bool = True,
        thread: int = MAIN_THREAD,
    ) -> None:
        start = self._at(at)
        if called:
            self.builder.call("cudaEventRecordWithFlags", start, 2, thread=thread)
        if annotated:
            text = f"event {event} recorded on stream {self._handle(stream, device)}"
            self.note(text, start + 4, thread)

    def wait(
        self,
        event: str,
        stream: int,
        *,
        device: int = 0,
        at: float | None = None,
        annotated: bool = True,
        synced: bool = True,
        called: bool = True,
        thread: int = MAIN_THREAD,
    ) -> None:
        """``synced``: the profiler saw which stream waits."""
        start = self._at(at)
        if called:
            correlation = self.builder.call("cudaStreamWaitEvent", start, 2, thread=thread)
            if synced:
                self.builder.sync(
                    "Stream Wait Event",
                    start,
                    1,
                    stream=stream,
                    device=device,
                    correlation=correlation,
                )
        if annotated:
            text = f"stream {self._handle(stream, device)} waits for event {event}"
            self.note(text, start + 4, thread)

    def host_wait(
        self, event: str, *, lasts: float = 3, annotated: bool = True, at: float | None = None
    ) -> None:
        start = self._at(at)
        if annotated:
            self.note(f"host waits for event {event}", start)
        self.builder.call("cudaEventSynchronize", start + 3, lasts)
        self.now = max(self.now, start + 3 + lasts)

    def host_call(
        self,
        name: str,
        *,
        kind: str | None = None,
        stream: int = -1,
        device: int = 0,
        lasts: float = 5,
        at: float | None = None,
        thread: int = MAIN_THREAD,
        parent: int | None = None,
    ) -> None:
        """Any call; ``kind``: of its event of synchronisation."""
        start = self._at(at)
        correlation = self.builder.call(name, start, lasts, thread=thread, parent=parent)
        if kind is not None:
            self.builder.sync(
                kind, start, lasts, stream=stream, device=device, correlation=correlation
            )
        self.now = max(self.now, start + lasts)

    def tell_apart(self, *streams: int) -> None:
        """What the agent does at the end: each stream waits for an event of its own."""
        for stream in streams:
            self.record("abc", stream)
            self.wait("abc", stream)

    def write(self, folder: Path) -> Path:
        path = write(folder, *self.nodes, pid=HOST_PID)
        path.rename(folder / f"rank{self.builder.rank:05d}.execution_trace.json")
        return self.builder.write(folder)

    def trace(self, folder: Path) -> Trace:
        return read(self.write(folder))


def found(program: Program, folder: Path) -> list[Found]:
    """(earlier operator, later operator, hazard, missing call, certain) of each."""
    return found_in(program.trace(folder))


def found_in(trace: Trace) -> list[Found]:
    table = hazards(trace)
    assert isinstance(table, Table)
    names = trace.host_ops.texts("name")
    columns = ("first_op_row", "second_op_row", "hazard", "missing", "certain")
    return [
        (str(names[one]), str(names[two]), Hazard(what).name, MissingCall(lacks).name, bool(sure))
        for one, two, what, lacks, sure in zip(
            *(table[name].tolist() for name in columns), strict=True
        )
    ]
