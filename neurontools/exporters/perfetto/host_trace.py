"""The state of a host over time as tracks: its events and findings, the host, devices with their cores, processes."""

from __future__ import annotations

from collections.abc import Iterable

from neurontools.client.history.events import Event
from neurontools.exporters.perfetto.packets import Unit
from neurontools.exporters.perfetto.tracks import Tracks
from neurontools.model import (
    Device,
    Finding,
    LogicalNeuronCore,
    Process,
    Snapshot,
    SourceKind,
    logical_cores,
    memory_categories,
    sum_device_memory,
)
from neurontools.model.jobs.running_job import Rank, jobs
from neurontools.util.process_text import script_text
from neurontools.util.terminal import escape_controls
from neurontools.util.units import ranges_text

_EVENTS, _HOST, _DEVICES = range(3)  # the order of the tracks at the top; processes have a place of their own
_GAP_PAUSES = (
    2.5  # a pause that is so much longer than the one before it, and than the interval, is one of no knowledge
)
_LONGEST_TEXT = 200
_LONGEST_COMMAND = 4000
_CATEGORY_ENDING = "_bytes"


class HostTrace:
    """Makes the packets of a trace of snapshots that come in their order; `tracks` counts what is in it."""

    def __init__(self) -> None:
        self.tracks = Tracks()
        self._last_seconds: float | None = None
        self._pause_seconds: float | None = None
        self._interval_seconds = 0.0

    def add(self, at_seconds: float, snapshot: Snapshot, events: Iterable[Event]) -> bytes:
        """The packets of one more moment, and of what has happened since the one before.

        `at_seconds`: when that was, by the clock of the host that nobody sets.
        """
        tracks = self.tracks
        is_first = self._last_seconds is None
        self._end_at_gap(at_seconds, snapshot.interval_seconds)
        self._last_seconds, self._interval_seconds = at_seconds, snapshot.interval_seconds
        happened = tuple(events)
        is_clock_set = any(event.kind == "clock" for event in happened)
        tracks.begin(at_seconds, snapshot.taken_at_unix_seconds if is_first or is_clock_set else None)
        self._add_events(happened)
        self._add_findings(snapshot)
        self._add_host(snapshot)
        cores: dict[int, list[LogicalNeuronCore]] = {}
        for core in logical_cores(snapshot, max(1, snapshot.instance.logical_neuroncore_config)):
            cores.setdefault(core.device_index, []).append(core)
        processes = {process.pid: process for process in snapshot.processes}
        for device in snapshot.devices:
            self._add_device(device, cores.get(device.index, []), processes, snapshot)
        for job in jobs(snapshot):
            for rank in job.ranks:
                self._add_process(rank)
        tracks.end()
        return tracks.take()

    def end(self) -> bytes:
        """The last packets: what the last moment tells holds for one interval, as before a gap."""
        self._end_knowledge()
        return self.tracks.take()

    def _end_knowledge(self) -> None:
        if self._last_seconds is not None:
            self.tracks.end_all(self._last_seconds + self._interval_seconds)

    def _end_at_gap(self, at_seconds: float, interval_seconds: float) -> None:
        if self._last_seconds is not None:
            pause_seconds, usual_seconds = at_seconds - self._last_seconds, self._pause_seconds
            if usual_seconds is not None and pause_seconds > _GAP_PAUSES * max(usual_seconds, interval_seconds):
                self._end_knowledge()
            self._pause_seconds = pause_seconds

    def _add_events(self, events: Iterable[Event]) -> None:
        for event in events:
            track = self.tracks.group("events", "Events", parent=self._health())
            places = (("pid", event.pid), ("device", event.device_index), ("core", event.core_index))
            notes: dict[str, str | int] = {"severity": event.severity}
            notes |= {name: number for name, number in places if number is not None}
            self.tracks.instant(track, event.text, event.kind, notes)

    def _add_findings(self, snapshot: Snapshot) -> None:
        for finding in snapshot.health.findings if snapshot.health is not None else ():
            notes = {"severity": finding.severity.name.lower(), "action": escape_controls(finding.action)}
            self.tracks.lasting(
                ("finding", finding.identity),
                escape_controls(finding.reason[:_LONGEST_TEXT]),
                "finding",
                notes,
                track=_finding_name(finding),
                parent=self._health(),
                rank=1,
            )

    def _health(self) -> int:
        return self.tracks.group("health", "Events and health", rank=_EVENTS)

    def _add_host(self, snapshot: Snapshot) -> None:
        host, tracks = snapshot.host, self.tracks
        group = tracks.group("host", "Host", rank=_HOST)
        usage = host.vcpu_average
        busy = None if usage is None else 100.0 * max(0.0, 1.0 - usage.idle_ratio - usage.io_wait_ratio)
        tracks.value("vcpu", busy, "vCPUs busy", "%", parent=group)
        tracks.value("memory", host.memory_used_bytes, "memory in use", Unit.BYTES, parent=group, rank=1)
        for interface in host.network_interfaces:
            name = escape_controls(interface.name)
            for direction, rate in (
                ("received", interface.received_bytes_per_second),
                ("sent", interface.sent_bytes_per_second),
            ):
                tracks.value(("net", name, direction), rate, f"{name} {direction}", "B/s", parent=group, rank=2)

    def _add_device(
        self, device: Device, cores: list[LogicalNeuronCore], processes: dict[int, Process], snapshot: Snapshot
    ) -> None:
        tracks, index = self.tracks, device.index
        simulated = " (simulated)" if snapshot.source is SourceKind.SIMULATED else ""
        group = tracks.group(
            ("device", index), f"Neuron device {index}{simulated}", rank=_DEVICES + index, description=device.bdf or ""
        )
        for core in cores:
            self._add_core(core, processes, group)
        memory = memory_categories(sum_device_memory(core.memory for each in cores for core in each.cores))
        for rank, (field, size) in enumerate(memory.items()):
            key = ("hbm", index, field)
            if size or tracks.has(key):
                name = field.removesuffix(_CATEGORY_ENDING).replace("_", " ")
                tracks.value(key, size, f"HBM: {name}", Unit.BYTES, parent=group, rank=1000 + rank)
        if device.power is not None:
            power = 100.0 * device.power.average_ratio
            tracks.value(("power", index), power, "power of its maximum", "%", parent=group, rank=2000)

    def _add_core(self, core: LogicalNeuronCore, processes: dict[int, Process], device: int) -> None:
        tracks, name = self.tracks, f"NeuronCore {core.index}"
        track = tracks.group(("core", core.index), name, parent=device, rank=core.index)
        if core.owner_pids:
            owners = [processes[pid] for pid in core.owner_pids if pid in processes]
            text = " and ".join(map(_process_name, owners)) or f"PID {ranges_text(core.owner_pids)}"
            if core.is_owner_inferred:
                text += " (inferred)"
            tracks.lasting(("core", core.index), text, "owner", {"pid": core.owner_pids[0]})
        utilization, flops = core.utilization_ratio, core.flops_per_second
        percent = None if utilization is None else 100.0 * utilization
        tracks.value(("busy", core.index), percent, f"{name} busy", "%", parent=track)
        tracks.value(("flops", core.index), flops, f"{name} FLOPS", "FLOPS", parent=track, rank=1)
        size = core.memory.total_bytes
        tracks.value(("memory", core.index), size, f"{name} HBM", Unit.BYTES, parent=track, rank=2)

    def _add_process(self, rank: Rank) -> None:
        process, tracks = rank.process, self.tracks
        key = ("process", process.pid, process.started_at_unix_seconds)
        track = tracks.process(
            key, process.pid, _script_name(process), escape_controls(process.command[:_LONGEST_COMMAND])
        )
        held = ranges_text(process.neuroncore_indices)
        text = f"holds NeuronCore{'s' if len(process.neuroncore_indices) > 1 else ''} {held}" if held else "no cores"
        notes = {"tag": escape_controls(process.tag[:_LONGEST_TEXT])}
        if process.job is not None:
            notes["job"] = escape_controls(process.job.name[:_LONGEST_TEXT])
        tracks.lasting((key, "held"), text, "process", notes, track="NeuronCores", parent=track)
        for place, (title, value, unit) in enumerate(_process_values(rank), 1):
            tracks.value((key, title), value, title, unit, parent=track, rank=place)


def _process_values(rank: Rank) -> list[tuple[str, float | None, Unit | str]]:
    process, rates, latency = rank.process, rank.process.training_rates, rank.process.device_latency
    sizes = [size for core in rank.cores if (size := core.memory.total_bytes) is not None]
    return [
        ("NeuronCores busy", _percent(rank.utilization_ratio), "%"),
        ("HBM", sum(sizes) if sizes else None, Unit.BYTES),
        ("host memory", process.host_memory.total_bytes, Unit.BYTES),
        ("resident memory", process.resident_bytes, Unit.BYTES),
        ("vCPU", _percent(_sum(process.vcpu_user_ratio, process.vcpu_system_ratio)), "%"),
        ("executions", process.executions_per_second, "1/s"),
        ("latency p50", None if latency is None else 1e3 * latency.p50_seconds, "ms"),
        ("latency p99", None if latency is None else 1e3 * latency.p99_seconds, "ms"),
        ("steps", rank.steps_per_second, "1/s"),
        ("samples", None if rates is None else rates.samples_per_second, "1/s"),
        ("collectives", None if rates is None else _percent(rates.collective_ratio), "%"),
        ("input wait", None if rates is None else _percent(rates.input_wait_ratio), "%"),
        ("to device", None if rates is None else rates.to_device_bytes_per_second, "B/s"),
        ("from device", None if rates is None else rates.from_device_bytes_per_second, "B/s"),
    ]


def _process_name(process: Process) -> str:
    return f"PID {process.pid} {_script_name(process)}"


def _script_name(process: Process) -> str:
    """What it runs; Perfetto itself adds the PID of a process."""
    name = escape_controls(script_text(process.command)[:_LONGEST_TEXT]) or "unknown command"
    return f"{name} (synthetic)" if process.synthetic and "synthetic" not in name else name


def _finding_name(finding: Finding) -> str:
    where = f" of PID {finding.pid}" if finding.pid is not None else ""
    if not where and finding.device_indices:
        where = f" of device {ranges_text(finding.device_indices)}"
    return escape_controls(f"{finding.kind}{where}")


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else 100.0 * ratio


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second
