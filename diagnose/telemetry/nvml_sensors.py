"""The sensors of one NVIDIA GPU: what it has is found once, then only that is read.

Power changes about every 100 ms, utilisation every 170 ms to 1 s, clocks and temperature
at each call. Error counters, memory and limits are asked for once a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from diagnose.telemetry import nvml_calls, nvml_fields
from diagnose.telemetry.nvml_calls import MILLI, Reading, Sensor, Turn
from diagnose.telemetry.nvml_fields import ALL_LINKS, FieldColumn, ResolvedColumn

SLOW_EVERY_S = 1.0
MAX_FAILURES = 3
"""A sensor that fails this often in a row is not asked again."""

Failures = tuple[type[Exception], ...]

_EACH = (
    FieldColumn("power_avg_w", (("POWER_AVERAGE",),), MILLI, never_zero=True),
    FieldColumn("power_instant_w", (("POWER_INSTANT",),), MILLI, never_zero=True),
    FieldColumn("mem_temperature_c", (("MEMORY_TEMP",),), never_zero=True),
    FieldColumn("pcie_tx_bytes", (("PCIE_COUNT_TX_BYTES",),)),
    FieldColumn("pcie_rx_bytes", (("PCIE_COUNT_RX_BYTES",),)),
)
_EACH_WITH_LINKS = (
    FieldColumn("nvlink_tx_bytes", (("NVLINK_THROUGHPUT_DATA_TX",),), 1024, scope=ALL_LINKS),
    FieldColumn("nvlink_rx_bytes", (("NVLINK_THROUGHPUT_DATA_RX",),), 1024, scope=ALL_LINKS),
)
_SLOW = (
    FieldColumn("ecc_volatile_corrected", (("ECC_SBE_VOL_TOTAL",),)),
    FieldColumn("ecc_volatile_uncorrected", (("ECC_DBE_VOL_TOTAL",),)),
    FieldColumn("ecc_aggregate_corrected", (("ECC_SBE_AGG_TOTAL",),)),
    FieldColumn("ecc_aggregate_uncorrected", (("ECC_DBE_AGG_TOTAL",),)),
    FieldColumn("pcie_replay_errors", (("PCIE_REPLAY_COUNTER",),)),
    FieldColumn("pcie_correctable_errors", (("PCIE_COUNT_CORRECTABLE_ERRORS",),)),
)
# Up to Ampere one field counts over all links; Hopper and later have one for each link.
_SLOW_WITH_LINKS = (
    FieldColumn(
        "nvlink_crc_errors",
        (("NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL"),),
    ),
    FieldColumn("nvlink_replay_errors", (("NVLINK_REPLAY_ERROR_COUNT_TOTAL",),)),
    FieldColumn("nvlink_recovery_errors", (("NVLINK_RECOVERY_ERROR_COUNT_TOTAL",),)),
)
_SLOW_BY_LINK = (
    FieldColumn("nvlink_crc_errors", (("NVLINK_ERROR_DL_CRC",),), each_link=True),
    FieldColumn("nvlink_replay_errors", (("NVLINK_ERROR_DL_REPLAY",),), each_link=True),
    FieldColumn(
        "nvlink_recovery_errors",
        (("NVLINK_ERROR_DL_RECOVERY",), ("NVLINK_COUNT_LINK_RECOVERY_EVENTS",)),
        each_link=True,
    ),
)


class Sensors:
    """What one GPU can be asked. Reading never raises; what stops answering is dropped."""

    def __init__(
        self, nvml: Any, handle: Any, failures: Failures, *, pcie_known: bool = False
    ) -> None:
        """``pcie_known``: the traffic on PCIe is known otherwise, so nothing waits for it."""
        self._nvml, self._handle, self._failures = nvml, handle, failures
        self._sensors: list[Sensor] = []
        self._dropped: list[str] = []
        self._slow_due_s = float("-inf")
        self._blocking_turn = 0
        for sensor in (*nvml_calls.sensors(nvml, handle), *self._fields()):
            self._add_if_answered(sensor)
        for sensor in nvml_calls.alternatives(nvml, handle):
            unless = {*sensor.columns, *sensor.unless}
            blocks = sensor.turn is Turn.BLOCKING
            if not self.columns & unless and not (blocks and pcie_known):
                self._add_if_answered(sensor)

    @property
    def columns(self) -> frozenset[str]:
        """What this GPU can measure, as far as it still answers."""
        return frozenset(column for sensor in self._sensors for column in sensor.columns)

    @property
    def notes(self) -> list[str]:
        """What stopped answering while it was being read, in one sentence."""
        if not self._dropped:
            return []
        what = (
            "nothing of it is answered any more"
            if not self._sensors
            else ("no longer answered and left out since: " + ", ".join(self._dropped))
        )
        return [what]

    @property
    def blocks(self) -> bool:
        """Whether there are sensors that take 20 ms each."""
        return any(sensor.turn is Turn.BLOCKING for sensor in self._sensors)

    def read(self, now_s: float, *, everything: bool = False) -> Reading:
        """Ask every sensor whose turn it is, but the blocking ones. ``now_s``: a steady clock."""
        turns = {Turn.EACH}
        if everything or now_s >= self._slow_due_s:
            self._slow_due_s = now_s + SLOW_EVERY_S
            turns.add(Turn.SLOW)
        row: Reading = {}
        for sensor in [sensor for sensor in self._sensors if sensor.turn in turns]:
            row.update(self._ask(sensor))
        return row

    def read_one_blocking(self) -> Reading:
        """Ask the next of the sensors that take 20 ms; empty if there is none."""
        blocking = [sensor for sensor in self._sensors if sensor.turn is Turn.BLOCKING]
        if not blocking:
            return {}
        self._blocking_turn += 1
        return self._ask(blocking[self._blocking_turn % len(blocking)])

    def _ask(self, sensor: Sensor) -> Reading:
        reading = self._attempt(sensor)
        if reading is not None:
            sensor.failures = 0
            return reading
        sensor.failures += 1
        if sensor.failures >= MAX_FAILURES:
            self._sensors.remove(sensor)
            self._dropped += sensor.columns
            if all(other.turn is not Turn.EACH for other in self._sensors):
                self._sensors.clear()  # a GPU that is lost answers nothing
        return {}

    def _add_if_answered(self, sensor: Sensor) -> None:
        reading = self._attempt(sensor)
        filled = {column for column, value in (reading or {}).items() if value is not None}
        if filled:
            sensor.columns = tuple(column for column in sensor.columns if column in filled)
            self._sensors.append(sensor)

    def _attempt(self, sensor: Sensor) -> Reading | None:
        try:
            return sensor.read()
        except self._failures:
            return None

    def _fields(self) -> list[Sensor]:
        try:
            links = self._num_links()
            each = self._resolved((*_EACH, *(_EACH_WITH_LINKS if links else ())))
            slow = self._resolved((*_SLOW, *(_SLOW_WITH_LINKS if links else ())))
            found = {column.declared.column for column in slow}
            by_link = [column for column in _SLOW_BY_LINK if column.column not in found]
            slow += self._resolved(by_link if links else (), links)
        except self._failures:
            return []  # this GPU or driver has no field values at all
        return [
            Sensor(tuple(c.declared.column for c in columns), self._reader(columns), turn)
            for columns, turn in ((each, Turn.EACH), (slow, Turn.SLOW))
            if columns
        ]

    def _resolved(self, columns: Iterable[FieldColumn], links: int = 0) -> list[ResolvedColumn]:
        found = [nvml_fields.resolve(self._nvml, self._handle, one, links) for one in columns]
        return [column for column in found if column is not None]

    def _reader(self, columns: list[ResolvedColumn]) -> Callable[[], Reading]:
        return lambda: nvml_fields.read_columns(self._nvml, self._handle, columns)

    def _num_links(self) -> int:
        reference = (nvml_fields.FIELD_NUMBERS["NVLINK_LINK_COUNT"], 0)
        [count] = nvml_fields.read_fields(self._nvml, self._handle, [reference])
        return int(count or 0)
