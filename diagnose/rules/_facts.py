"""What a rule may ask: tables of analyses, times per step, the environment, a replay.

Everything is worked out when it is first asked for, once per diagnosis. *Per step* means the
mean over the steps of a GPU that have a time (``diagnose.timeline.step_times``); where no step of
any GPU has one, the whole window counts as one step, and sentences say ``in the window``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from diagnose.analysis import Unavailable
from diagnose.rules._steps import Steps, step_rows, steps_of
from diagnose.trace import Gpu, Table, Trace

if TYPE_CHECKING:
    from diagnose.readers.nccl_tests import ReferencePoint
    from diagnose.replay.prediction import Prediction

Analyse = Callable[[str, Mapping[str, Any]], "Table | Unavailable"]
Mask = npt.NDArray[np.bool_]


class AbsentTableError(Exception):
    """A table that does not exist for this trace: the rule that asked is not judged."""

    def __init__(self, reason: Unavailable) -> None:
        super().__init__(reason.because)
        self.reason = reason


class Facts:
    """All that is known of one trace, for rules. ``analyse`` runs an analysis by name, once.

    ``reference`` is what nccl-tests measured on this job's ranks; empty: not known.
    """

    def __init__(
        self, trace: Trace, analyse: Analyse, reference: Sequence[ReferencePoint] = ()
    ) -> None:
        self.trace = trace
        self.reference = tuple(reference)
        self._analyse = analyse
        self._predictions: dict[tuple[str, ...], Prediction | Unavailable] = {}

    # Tables.

    def table(self, name: str, **options: Any) -> Table:
        """The table of an analysis. Where it is unavailable the rule ends: not judged, because."""
        result = self._analyse(name, options)
        if isinstance(result, Unavailable):
            raise AbsentTableError(result)
        return result

    def find(self, name: str, **options: Any) -> Table | None:
        """The table of an analysis, None where it is unavailable."""
        result = self._analyse(name, options)
        return None if isinstance(result, Unavailable) else result

    def on(self, table: Table, gpu: Gpu) -> Mask:
        """The rows of a table with ``source`` and ``device`` that are about one GPU."""
        rows: Mask = (table["source"] == gpu.source) & (table["device"] == gpu.device)
        return rows

    # Steps.

    @cached_property
    def steps(self) -> Mapping[Gpu, Steps]:
        """The steps that each judged GPU's figures are means over."""
        return steps_of(self.trace, self.table("breakdown"))

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that are judged: those with a timed step, or all where no step is timed."""
        return tuple(self.steps)

    @cached_property
    def timed(self) -> bool:
        """Whether figures are per step, rather than of the window."""
        return any(steps.timed for steps in self.steps.values())

    @property
    def a_step(self) -> str:
        """``a step``, or ``in the window`` where no step is timed: for sentences."""
        return "a step" if self.timed else "in the window"

    @cached_property
    def step_ns(self) -> float:
        """The job's step time: of its slowest GPU, the mean of its timed steps."""
        return max((steps.step_ns for steps in self.steps.values()), default=float("nan"))

    def share_pct(self, nanoseconds: float) -> float:
        """A time per step as a share of the job's step, in percent."""
        return 100 * nanoseconds / self.step_ns if self.step_ns else 0.0

    def per_step(self, table: Table, column: str, gpu: Gpu, rows: Mask | None = None) -> float:
        """The sum of a column over a GPU's timed steps, divided by their number.

        For tables with ``source``, ``device`` and a ``step_row`` that is null outside of all step
        times: ``breakdown``, ``stalls``, ``stall_causes``. ``rows`` narrows it down. Nulls count
        nothing.
        """
        steps = self.steps[gpu]
        wanted = self.on(table, gpu) & step_rows(table, steps) & table.known(column)
        if rows is not None:
            wanted &= rows
        return float(table[column][wanted].sum()) / steps.number

    def operations_per_step(self, gpu: Gpu) -> Table:
        """The GPU operations launched in a GPU's timed steps; divide by ``steps[gpu].number``."""
        ops = self.trace.gpu_ops.take(self.trace.on(gpu))
        return ops.take(step_rows(ops, self.steps[gpu]) | (not self.steps[gpu].timed))

    # The process and its environment.

    def environment(self, source: int) -> Mapping[str, Any]:
        """The content of a process's ``*.env.json``; empty where there is none."""
        return self.trace.sources[source].environment

    def variables(self, name: str) -> Mapping[int, str]:
        """Source -> value of an environment variable, for those that set it."""
        found = {}
        for number, source in enumerate(self.trace.sources):
            variables = source.environment.get("env")
            if isinstance(variables, Mapping) and isinstance(variables.get(name), str):
                found[number] = variables[name]
        return found

    def gpus_of(self, sources: Any) -> tuple[Gpu, ...]:
        """The judged GPUs of some sources."""
        chosen = set(sources)
        return tuple(gpu for gpu in self.gpus if gpu.source in chosen)

    def gpu_name(self, source: int) -> str | None:
        """The product of a process's GPU, as ``NVIDIA H200``."""
        name = self._gpu_property(source, "name", "name")
        return name if isinstance(name, str) else None

    def sm_count(self, source: int) -> int | None:
        """Multiprocessors (compute units) that a process may use."""
        count = self._gpu_property(source, "sm_count", "numSms")
        return count if isinstance(count, int) and count > 0 else None

    @cached_property
    def is_amd(self) -> bool:
        """Whether the job ran on ROCm, by the GPU's name or the versions noted."""
        sources = range(len(self.trace.sources))
        names = " ".join(self.gpu_name(source) or "" for source in sources)
        return "AMD" in names or any("hip" in self.trace.sources[s].metadata for s in sources)

    def _gpu_property(self, source: int, noted: str, traced: str) -> Any:
        gpu = self.environment(source).get("gpu")
        if isinstance(gpu, Mapping) and gpu.get(noted) is not None:
            return gpu[noted]
        devices = self.trace.sources[source].metadata.get("deviceProperties")
        if isinstance(devices, list) and devices and isinstance(devices[0], Mapping):
            return devices[0].get(traced)
        return None

    # The replay.

    def predict(self, *changes: str) -> Prediction | Unavailable:
        """The step under changes, as on the command line of ``whatif``, applied together."""
        if changes not in self._predictions:
            self._predictions[changes] = self._predict(changes)
        return self._predictions[changes]

    def _predict(self, changes: tuple[str, ...]) -> Prediction | Unavailable:
        from diagnose.replay import changes_of, predict, quick_model

        model = quick_model(self.trace)
        return model if isinstance(model, Unavailable) else predict(model, changes_of(changes))
