"""Writes XSpace, `plugins/profile/<run>/<host>.xplane.pb`, for TensorBoard's Profile tab and xprof; encoded by hand.

Field numbers are those of xla/tsl/profiler/protobuf/xplane.proto. A file has planes, a plane has lines, and a line has
events. xprof shows tables only for planes named /device:TPU:N, so NeuronCores have such names, and state their true
type in their stats. Events have no group_id: with it, xprof would find no steps in a file that also has a plane of the
host.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from neurontools.profile import Engine, OperatorDefinition, Profile, SpanKind
from neurontools.profile.analysis.steps import steady_steps
from neurontools.profile.analysis.topology import device_of
from neurontools.profile.definitions import ENGINE_NAMES, FREED, script_line
from neurontools.rpc.wire import append_varint, encode_bytes, encode_string, encode_uint

_PS = 1000
_EVENT, _STAT = b"\x22", b"\x22"  # protobuf tags of field 4: `events` of a line, `stats` of an event

Stat = int | float | str | bytes


_DEVICE_TYPE = "Trainium (simulated)"
_CATEGORIES = {
    Engine.TENSOR: "tensor engine",
    Engine.VECTOR: "vector engine",
    Engine.SCALAR: "scalar engine",
    Engine.GPSIMD: "gpsimd engine",
}
_COLLECTIVES = {"all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter"}
_PRODUCER = 1
_READ, _HBM = 1, 1  # the operation and the memory space of xprof's MemoryAccessed
_MOST_ALLOCATIONS = 20_000  # limit of written allocations, each of some 150 bytes; the latest are kept


class Plane:
    """Builds one plane of an XSpace file: the lines and events of a device or of the host."""

    def __init__(self, number: int, name: str) -> None:
        self._number = number
        self._name = name
        self._lines: list[bytes] = []
        self._events: list[bytes] = []
        self._event_count = 0
        self._stat_ids: dict[str, int] = {}
        self._stats: list[bytes] = []
        self._by_name: dict[str, int] = {}

    def encode_stat(self, name: str, value: Stat) -> bytes:
        number = self._stat_ids.setdefault(name, len(self._stat_ids) + 1)
        head = encode_uint(1, number)
        if isinstance(value, str):
            return head + encode_string(5, value)
        if isinstance(value, bytes):
            return head + encode_bytes(6, value)
        if isinstance(value, float):
            return head + b"\x11" + struct.pack("<d", value)
        return head + encode_uint(4, value & (1 << 64) - 1)  # as int64: memory viewers read no other integers

    def add_stats(self, **stats: Stat) -> None:
        self._stats += [self.encode_stat(name, value) for name, value in stats.items()]

    def add_event_kind(self, name: str, display_name: str = "", **stats: Stat) -> int:
        """Adds event metadata: the name and stats shared by all events of a kind. Returns its id."""
        self._event_count += 1
        parts = [encode_uint(1, self._event_count), encode_string(2, name)]
        if display_name:
            parts.append(encode_string(4, display_name))
        parts += [encode_bytes(5, self.encode_stat(key, value)) for key, value in stats.items()]
        self._events.append(encode_uint(1, self._event_count) + encode_bytes(2, b"".join(parts)))
        return self._event_count

    def event_kind(self, name: str) -> int:
        """Returns the id of event metadata that has only a name. Adds the metadata if they are missing."""
        if name not in self._by_name:
            self._by_name[name] = self.add_event_kind(name)
        return self._by_name[name]

    def add_line(self, number: int, name: str, base_ns: int, events: Iterable[bytes]) -> None:
        body = bytearray(encode_uint(1, number) + encode_string(2, name) + encode_uint(3, base_ns))
        for each in events:
            body += _EVENT
            append_varint(body, len(each))
            body += each
        self._lines.append(bytes(body))

    def encode(self) -> bytes:
        names = [
            encode_bytes(5, encode_uint(1, number) + encode_bytes(2, encode_uint(1, number) + encode_string(2, name)))
            for name, number in self._stat_ids.items()
        ]
        return b"".join(
            [
                encode_uint(1, self._number),
                encode_string(2, self._name),
                *(encode_bytes(3, line) for line in self._lines),
                *(encode_bytes(4, event) for event in self._events),
                *names,
                *(encode_bytes(6, stat) for stat in self._stats),
            ]
        )


def encode_event(kind: int, offset_ns: int, duration_ns: int, stats: Iterable[bytes] = ()) -> bytes:
    """Encodes an event; its offset is relative to the start of its line."""
    encoded = bytearray(b"\x08")
    append_varint(encoded, kind)
    encoded += b"\x10"
    append_varint(encoded, max(0, offset_ns) * _PS)
    encoded += b"\x18"
    append_varint(encoded, max(0, duration_ns) * _PS)
    for stat in stats:
        encoded += _STAT
        append_varint(encoded, len(stat))
        encoded += stat
    return bytes(encoded)


_STEPS, _MODULES, _OPERATORS, _TRANSFERS = 1, 2, 3, 4


class CorePeaks(NamedTuple):
    """The peak rates of a NeuronCore, for rooflines; None means unknown."""

    flops_per_second: float | None = None
    hbm_bytes_per_second: float | None = None


def write_xplane(profile: Profile, path: Path, peaks: CorePeaks | None = None) -> None:
    """Writes the XSpace file; raises OSError if writing fails."""
    path.write_bytes(xplane(profile, peaks or CorePeaks()))


def xplane(profile: Profile, peaks: CorePeaks) -> bytes:
    about = profile.metadata
    base_ns = min([about.began_ns, *profile.steps.column("start_ns")[:1], *profile.executions.column("queued_ns")[:1]])
    planes = [_device_plane(profile, core, number, base_ns, peaks) for number, core in enumerate(about.cores)]
    planes.append(_host_plane(profile, len(planes), base_ns))
    if any(operator.is_backward for operator in profile.operators):
        planes.append(_training_plane(len(planes)))
    encoded = b"".join(encode_bytes(1, plane.encode()) for plane in planes)
    return encoded + encode_string(3, about.device_time) + encode_string(4, about.host)


def _device_plane(profile: Profile, core: int, number: int, base_ns: int, peaks: CorePeaks) -> Plane:
    plane = Plane(number, f"/device:TPU:{number}")
    stats: dict[str, Stat] = {"device_type_string": _DEVICE_TYPE, "core_details": _core_details(profile, core)}
    if peaks.flops_per_second is not None:
        stats["peak_teraflops_per_second"] = peaks.flops_per_second / 1e12
    if peaks.hbm_bytes_per_second is not None:
        stats["peak_hbm_bw_gigabytes_per_second"] = peaks.hbm_bytes_per_second / 1e9
    plane.add_stats(**stats)
    executions = [row for row in profile.executions if row.core == core]
    shown = {row.step for row in executions}
    steps = [
        encode_event(plane.event_kind(str(step.step)), step.start_ns - base_ns, step.duration_ns)
        for step in steady_steps(profile)
        if step.step in shown
    ]
    plane.add_line(_STEPS, "Steps", base_ns, steps)
    modules = {
        index: plane.add_event_kind(f"{graph.module}({index})", program_id=index + 1)
        for index, graph in enumerate(profile.graphs)
    }
    runs = [
        encode_event(
            modules[row.graph],
            row.start_ns - base_ns,
            row.end_ns - row.start_ns,
            [plane.encode_stat("run_id", row.correlation), *_link_stats(plane, "_c", row.correlation)],
        )
        for row in executions
    ]
    plane.add_line(_MODULES, "XLA Modules", base_ns, runs)
    operators = [*_operator_events(profile, plane, core, base_ns), *_infeed_events(profile, plane, core, base_ns)]
    plane.add_line(_OPERATORS, "XLA Ops", base_ns, [encoded for _, encoded in sorted(operators)])
    transfers = [
        encode_event(
            plane.event_kind("host to device" if row.kind == SpanKind.TO_DEVICE else "device to host"),
            row.start_ns - base_ns,
            row.end_ns - row.start_ns,
            [plane.encode_stat("bytes_accessed", max(0, row.bytes))],
        )
        for row in profile.spans
        if row.core == core and row.kind in (SpanKind.TO_DEVICE, SpanKind.FROM_DEVICE)
    ]
    plane.add_line(_TRANSFERS, "Transfers", base_ns, transfers)
    return plane


def _infeed_events(profile: Profile, plane: Plane, core: int, base_ns: int) -> Iterator[tuple[int, bytes]]:
    """Yields the waits for input while the core executes nothing, with their starts, as infeed of the core.

    xprof derives from them whether a program is input-bound.
    """
    number = len(profile.operators)
    stats: dict[str, Stat] = {
        "hlo_category": "infeed",
        "flops": 0,
        "bytes_accessed": 0,
        "tf_op": "input/infeed:infeed",
        "program_id": 1,
        "symbol_id": number + 1,
    }
    waits = sorted((row.start_ns, row.end_ns) for row in profile.spans if row.kind == SpanKind.INPUT_WAIT)
    if not waits:
        return
    kind = plane.add_event_kind(f"%infeed.{number} = () infeed()", f"infeed.{number}", **stats)
    busy = deque((row.start_ns, row.end_ns) for row in profile.executions if row.core == core)
    begin_ns = 0
    for wait_start_ns, end_ns in waits:
        start_ns = max(wait_start_ns, begin_ns)
        while busy and busy[0][0] < end_ns:
            execution_start_ns, execution_end_ns = busy[0]
            if execution_start_ns > start_ns:
                yield start_ns, encode_event(kind, start_ns - base_ns, execution_start_ns - start_ns)
            start_ns = max(start_ns, execution_end_ns)
            if execution_end_ns > end_ns:
                break
            busy.popleft()
        if end_ns > start_ns:
            yield start_ns, encode_event(kind, start_ns - base_ns, end_ns - start_ns)
        begin_ns = max(begin_ns, end_ns)


def _operator_events(profile: Profile, plane: Plane, core: int, base_ns: int) -> Iterator[tuple[int, bytes]]:
    """Yields the operators of all executions on a core, with their starts."""
    kinds = [_operator_kind(profile, plane, number, operator) for number, operator in enumerate(profile.operators)]
    first = 0
    for row in profile.executions:
        end = first + row.operator_count
        times = profile.operator_ns[first:end]
        first = end
        if row.core != core:
            continue
        begun_ns = row.start_ns - base_ns
        for number, duration_ns in enumerate(times, profile.graphs[row.graph].first_operator):
            yield begun_ns + base_ns, encode_event(kinds[number], begun_ns, duration_ns)
            begun_ns += duration_ns


def _operator_kind(profile: Profile, plane: Plane, number: int, operator: OperatorDefinition) -> int:
    base = operator.name.partition("::")[2] or operator.name
    short = base.replace(".", "_")
    display = f"{short}.{number}"
    category = _CATEGORIES.get(operator.engine) or _COLLECTIVES.get(base, base.replace("_", "-"))
    place = script_line(profile.stack(operator.stack))
    scope = operator.scope or "script"
    stats: dict[str, Stat] = {
        "hlo_category": category,
        "flops": operator.flops,
        "model_flops": operator.flops,
        "bytes_accessed": operator.bytes,
        "memory_access_breakdown": _hbm_accesses(operator.bytes),
        "tf_op": f"{scope}/{short}:{operator.name}",
        "program_id": operator.graph + 1,
        "symbol_id": number + 1,
        "engine": ENGINE_NAMES[operator.engine],
    }
    if place is not None:
        stats["source"] = str(place)
    return plane.add_event_kind(f"%{display} = {operator.result or '()'} {short}()", display, **stats)


def _hbm_accesses(nbytes: int) -> bytes:
    """Encodes xprof's MemoryAccessBreakdown with one entry: bytes of HBM, read or written."""
    return encode_bytes(1, encode_uint(1, _READ) + encode_uint(2, _HBM) + encode_uint(3, nbytes))


def _core_details(profile: Profile, core: int) -> bytes:
    """Encodes xprof's CoreDetails: the device of a core, and its number on the host."""
    about = profile.metadata
    device = device_of(about, core)
    return b"".join(
        [
            encode_string(1, about.host),
            encode_uint(2, core),
            *([] if device is None else [encode_uint(4, device), encode_uint(5, device)]),
            encode_uint(6, core),
        ]
    )


_FLOAT32 = encode_uint(2, 11)  # ShapeProto of a scalar
_SIGNATURE = encode_bytes(1, _FLOAT32) + encode_bytes(2, _FLOAT32) + encode_string(3, "x")  # ProgramShapeProto


def _training_plane(number: int) -> Plane:
    """Returns a plane that tells xprof that the profile is of a training.

    xprof derives this only from HLO modules: an operator named as JAX names gradients makes a training. The profile has
    no HLO, so the module has this one operator. xprof also offers memory_viewer and graph_viewer for it.
    Source: xprof/convert/model_tracker.cc and xplane_to_op_stats.cc.
    """
    plane = Plane(number, "/host:metadata")
    name = "marks_a_training"
    metadata = encode_string(2, "transpose(backward)")
    instruction = [encode_string(1, "x"), encode_string(2, "parameter"), encode_bytes(3, _FLOAT32)]
    instruction += [encode_bytes(7, metadata), encode_uint(35, 1)]
    computation = [encode_string(1, name), encode_bytes(2, b"".join(instruction)), encode_bytes(4, _SIGNATURE)]
    computation += [encode_uint(5, 1), encode_uint(6, 1)]
    module = [encode_string(1, name), encode_string(2, name), encode_bytes(3, b"".join(computation))]
    module += [encode_bytes(4, _SIGNATURE), encode_uint(5, 1), encode_uint(6, 1)]
    plane.add_event_kind(name, name, **{"Hlo Proto": encode_bytes(1, b"".join(module))})
    return plane


def _host_plane(profile: Profile, number: int, base_ns: int) -> Plane:
    plane = Plane(number, "/host:CPU")
    pid = profile.metadata.pid
    main = [
        (
            step.start_ns,
            encode_event(
                plane.event_kind("train"),
                step.start_ns - base_ns,
                step.duration_ns,
                [plane.encode_stat("_r", 1), plane.encode_stat("step_num", step.step)],
            ),
        )
        for step in profile.steps
    ]
    for row in profile.executions:
        launch = encode_event(
            plane.event_kind(f"nrt_execute ({profile.names[row.reason]})"),
            row.queued_ns - base_ns,
            row.start_ns - row.queued_ns,
            _link_stats(plane, "_p", row.correlation),
        )
        main.append((row.queued_ns, launch))
    for span in profile.spans:
        if span.kind in (SpanKind.COMPILE, SpanKind.INPUT_WAIT, SpanKind.ANNOTATION, SpanKind.FALLBACK):
            encoded = encode_event(
                plane.event_kind(profile.names[span.name]), span.start_ns - base_ns, span.end_ns - span.start_ns
            )
            main.append((span.start_ns, encoded))
    main.sort(key=lambda item: item[0])
    plane.add_line(pid, "python", base_ns, [encoded for _, encoded in main])
    plane.add_line(pid + 1, "memory", base_ns, _memory_events(profile, plane, base_ns))
    return plane


def _memory_events(profile: Profile, plane: Plane, base_ns: int) -> Iterator[bytes]:
    """Yields the latest allocations in TensorFlow's form; derives the initial HBM use from the final storages."""
    about = profile.metadata
    changes: dict[int, int] = dict.fromkeys(about.cores, 0)
    for row in profile.allocations:
        changes[row.core] = changes.get(row.core, 0) + (-row.bytes if row.action == FREED else row.bytes)
    level = {core: -change for core, change in changes.items()}
    for block in profile.blocks:
        level[block.core] = level.get(block.core, 0) + block.bytes
    peak = dict(level)
    limit = about.hbm_limit_bytes or 0
    first = len(profile.allocations) - _MOST_ALLOCATIONS
    for number, row in enumerate(profile.allocations):
        is_freed = row.action == FREED
        level[row.core] += -row.bytes if is_freed else row.bytes
        now = level[row.core] = max(0, level[row.core])
        peak[row.core] = max(peak[row.core], now)
        if number < first:
            continue
        place = script_line(profile.stack(row.stack))
        stats: dict[str, Stat] = {
            "allocator_name": f"NeuronCore {row.core}",
            "bytes_reserved": 0,
            "bytes_allocated": now,
            "bytes_available": max(0, limit - now),
            "fragmentation": 0.0,
            "peak_bytes_in_use": peak[row.core],
            "requested_bytes": row.bytes,
            "allocation_bytes": row.bytes,
            "addr": row.address,
            "tf_op": "" if place is None else str(place),
            "region_type": "output",
            "data_type": "uint8",
            "tensor_shape": f"[{row.bytes}]",
        }
        name = "MemoryDeallocation" if is_freed else "MemoryAllocation"
        encoded = [plane.encode_stat(key, value) for key, value in stats.items()]
        yield encode_event(plane.event_kind(name), row.time_ns - base_ns, 0, encoded)


def _link_stats(plane: Plane, end: str, number: int) -> list[bytes]:
    """Returns the stats that link a launch to its execution on the device; `end` is _p (producer) or _c (consumer)."""
    return [plane.encode_stat(f"{end}t", _PRODUCER), plane.encode_stat(end, number)]
