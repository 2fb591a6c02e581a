"""The files of one core in a tree that we write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from neurontools.driver.sysfs import file_table
from neurontools.driver.sysfs.file_table import CORE_FILES, File, files_of, place_of
from neurontools.driver.sysfs.tree_writer import TreeWriter
from neurontools.model import NeuronCore, Process

MICROSECONDS = 1e6
PE_COUNTERS = "stats/tensor_engine/pe_cntrs"
_PE_TEXT = "xrow_grp,mm_active,wl_active,idle\n" + "".join(f"{row},0,0,0\n" for row in range(4))

# Outcomes of executions other than success, and the driver's counter of each.
OUTCOMES = {
    "completed_with_err_total": "execute_completed_with_error",
    "completed_with_num_err_total": "execute_completed_with_num_error",
    "timed_out_total": "timeout",
    "incorrect_input_total": "exec_bad_input",
    "failed_to_queue_total": "execute_failed_to_queue",
}
# Errors of a process, and the driver's counter that comes closest. Numerical ones are an outcome; it has no transient.
ERRORS = {
    "generic_total": "generic_error",
    "model_total": "unsupported_neff_version",
    "runtime_total": "resource_error",
    "hardware_total": "hw_error",
}

# What the daemon knows of simulated cores beside what processes report: where faults were injected.
_OF_HARDWARE = tuple(
    name for name in file_table.STATUS if name.startswith(("hw_", "oob_", "execute_sw_")) and name != "hw_error"
)


class Counter:
    """A counter with its files: `total`, `present` (size of the last change) and, for memory, `peak`."""

    __slots__ = ("_mode", "_path", "_peak", "_total", "_writer")

    def __init__(self, writer: TreeWriter, path: str, total: int, mode: int, *, has_peak: bool) -> None:
        self._writer = writer
        self._path = path
        self._total = total
        self._mode = mode
        self._peak = total if has_peak else None
        self._write("total", total)
        self._write("present", total)
        if has_peak:
            self._write("peak", total)

    def set(self, total: int) -> None:
        """Gives the counter a new value."""
        if total == self._total:
            return
        self._write("total", total)
        self._write("present", abs(total - self._total))
        self._total = total
        if self._peak is not None and total > self._peak:
            self._peak = total
            self._write("peak", total)

    def _write(self, value: str, number: int) -> None:
        self._writer.write(f"{self._path}/{value}", f"{number}\n", self._mode)


def counters(
    writer: TreeWriter, directory: str, files: Iterable[File], initial: Mapping[str, int] | None = None
) -> dict[str, Counter]:
    """The counters among these files of a directory, by their own directory in it."""
    modes = {file.path: file.mode for file in files}
    made = {}
    for path, mode in modes.items():
        at, _, value = path.rpartition("/")
        if value == "total":
            total = (initial or {}).get(at, 0)
            made[at] = Counter(writer, f"{directory}/{at}", total, mode, has_peak=f"{at}/peak" in modes)
    return made


class ExportedCore:
    """One core's directory. A driver before 2.30 publishes the runtime's counters when their process ends: so do we."""

    def __init__(
        self,
        writer: TreeWriter,
        directory: str,
        arch_type: str,
        driver_version: tuple[int, ...],
        generation: int,
        host_memory_bytes: int,
    ) -> None:
        self._is_live = driver_version >= file_table.LIVE_COUNTERS
        self._before: NeuronCore | None = None
        self._version = driver_version
        self._kept: dict[str, int] = {}
        files = files_of(CORE_FILES, driver_version, generation)
        resets = place_of(file_table.other_info_path("reset_req_count"), driver_version).rpartition("/")[0]
        initial = {resets: 1, "stats/memory_usage/host_mem": host_memory_bytes}
        self._counters = counters(writer, directory, files, initial)
        texts = {file_table.ARCH_TYPE: f"{arch_type}\n", PE_COUNTERS: _PE_TEXT}
        for file in files:
            if file.path in texts:
                writer.write(f"{directory}/{file.path}", texts[file.path], file.mode)

    def update(self, core: NeuronCore, owner: Process | None) -> None:
        """Brings the files up to this state. `owner` is the process whose first core this is."""
        if core is not self._before:
            self._memory(core)
            self._before = core
        if self._is_live or core.owner_pid is None:
            self._counts(core, owner)

    def _memory(self, core: NeuronCore) -> None:
        total = 0
        for category in file_table.DEVICE_MEMORY:
            size_bytes = getattr(core.memory, f"{category}_bytes") or 0
            total += size_bytes
            self._set(file_table.device_memory_path(category), size_bytes)
        self._set(file_table.core_memory_path("device_mem"), total)

    def _counts(self, core: NeuronCore, owner: Process | None) -> None:
        failed = 0
        for field, name in OUTCOMES.items():
            failed += self._count(name, None if owner is None else getattr(owner.executions, field, None))
        # The driver has counters of their own for some errors of the hardware; what is left is of no other kind.
        own = 0
        for name in _OF_HARDWARE if core.status is not None else ():
            count = getattr(core.status, f"{name}_total") or 0
            self._set(file_table.status_path(name), count)
            own += count if file_table.status_path(name).rpartition("/")[0] in self._counters else 0
        for field, name in ERRORS.items():
            count = None if owner is None else getattr(owner.errors, field, None)
            self._count(name, max(0, count - own) if count is not None and name == "hw_error" else count)
        executions = core.executions_total or 0
        succeeded = max(0, executions - failed)
        self._set(file_table.status_path("success"), succeeded)
        self._set(file_table.other_info_path(file_table.INFERENCES), succeeded)
        self._set(file_table.other_info_path(file_table.FLOPS), core.flop_total or 0)
        busy = round((core.busy_seconds_total or 0.0) * MICROSECONDS)
        self._set(file_table.other_info_path(file_table.TIME_IN_USE), busy)

    def _count(self, name: str, now: int | None) -> int:
        """A status counter. A new owner counts from nothing; what this core counted before stays."""
        count = self._kept[name] = max(self._kept.get(name, 0), now or 0)
        self._set(place_of(file_table.status_path(name), self._version), count)
        return count

    def _set(self, path: str, value: int) -> None:
        counter = self._counters.get(path.rpartition("/")[0])
        if counter is not None:
            counter.set(value)
