"""A profile as XSpace: `plugins/profile/<run>/<host>.xplane.pb`, for TensorBoard's Profile tab and xprof."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from neurontools.profile import Engine, Kind, Operator, Profile
from neurontools.profile.definitions import script_place
from neurontools.profile.formats.xspace import Plane, Stat, event, space
from neurontools.profile.kinds import ENGINE_NAMES, FREED

_DEVICE_TYPE = "Trainium (simulated)"
_STEPS, _MODULES, _OPERATORS, _TRANSFERS = 1, 2, 3, 4
_HOST_MAIN, _HOST_MEMORY = 1, 2
_CATEGORIES = {
    Engine.TENSOR: "tensor engine",
    Engine.VECTOR: "vector engine",
    Engine.SCALAR: "scalar engine",
    Engine.GPSIMD: "gpsimd engine",
}
_COLLECTIVES = {"all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter"}
_PRODUCER = 1
_MOST_ALLOCATIONS = 20_000  # each takes some 150 bytes


class Peaks:
    """What a NeuronCore can do at its most, for the rooflines; None is unknown."""

    def __init__(self, flops_per_second: float | None = None, hbm_bytes_per_second: float | None = None) -> None:
        self.flops_per_second = flops_per_second
        self.hbm_bytes_per_second = hbm_bytes_per_second


def write_xplane(profile: Profile, path: Path, peaks: Peaks | None = None) -> None:
    """Writes the file. Raises OSError."""
    path.write_bytes(xplane(profile, peaks or Peaks()))


def xplane(profile: Profile, peaks: Peaks) -> bytes:
    """The file's content."""
    about = profile.metadata
    base_ns = min([about.began_ns, *profile.steps.column("start_ns")[:1], *profile.executions.column("queued_ns")[:1]])
    planes = [_device(profile, core, number, base_ns, peaks) for number, core in enumerate(about.cores)]
    planes.append(_host(profile, len(planes), base_ns))
    return space(planes, about.host, [about.device_time])


def _device(profile: Profile, core: int, number: int, base_ns: int, peaks: Peaks) -> Plane:
    plane = Plane(number, f"/device:TPU:{number}")
    stats: dict[str, Stat] = {"device_type_string": _DEVICE_TYPE}
    if peaks.flops_per_second is not None:
        stats["peak_teraflops_per_second"] = peaks.flops_per_second / 1e12
    if peaks.hbm_bytes_per_second is not None:
        stats["peak_hbm_bw_gigabytes_per_second"] = peaks.hbm_bytes_per_second / 1e9
    plane.set(**stats)
    executions = [row for row in profile.executions if row.core == core]
    shown = {row.step for row in executions}
    steps = [
        event(plane.named(str(step.step)), step.start_ns - base_ns, step.duration_ns)
        for step in profile.steps
        if step.step in shown
    ]
    plane.line(_STEPS, "Steps", base_ns, steps)
    modules = {
        index: plane.kind(f"{graph.module}({index})", program_id=index + 1)
        for index, graph in enumerate(profile.graphs)
    }
    plane.line(
        _MODULES,
        "XLA Modules",
        base_ns,
        [
            event(
                modules[row.graph],
                row.start_ns - base_ns,
                row.end_ns - row.start_ns,
                [plane.stat("run_id", row.correlation), *_link(plane, "_c", row.correlation)],
            )
            for row in executions
        ],
    )
    plane.line(_OPERATORS, "XLA Ops", base_ns, _operators(profile, plane, core, base_ns))
    transfers = [
        event(
            plane.named("host to device" if row.kind == Kind.TO_DEVICE else "device to host"),
            row.start_ns - base_ns,
            row.end_ns - row.start_ns,
            [plane.stat("bytes_accessed", max(0, row.bytes))],
        )
        for row in profile.spans
        if row.core == core and row.kind in (Kind.TO_DEVICE, Kind.FROM_DEVICE)
    ]
    plane.line(_TRANSFERS, "Transfers", base_ns, transfers)
    return plane


def _operators(profile: Profile, plane: Plane, core: int, base_ns: int) -> Iterator[bytes]:
    kinds = [_kind(profile, plane, number, operator) for number, operator in enumerate(profile.operators)]
    first = 0
    for row in profile.executions:
        end = first + row.operator_count
        times = profile.operator_ns[first:end]
        first = end
        if row.core != core:
            continue
        begun_ns = row.start_ns - base_ns
        for number, took in enumerate(times, profile.graphs[row.graph].first_operator):
            yield event(kinds[number], begun_ns, took)
            begun_ns += took


def _kind(profile: Profile, plane: Plane, number: int, operator: Operator) -> int:
    base = operator.name.partition("::")[2] or operator.name
    short = base.replace(".", "_")
    display = f"{short}.{number}"
    category = _CATEGORIES.get(operator.engine) or _COLLECTIVES.get(base, base.replace("_", "-"))
    place = script_place(profile.stack(operator.stack))
    scope = operator.scope or "script"
    stats: dict[str, Stat] = {
        "hlo_category": category,
        "flops": operator.flops,
        "model_flops": operator.flops,
        "bytes_accessed": operator.bytes,
        "tf_op": f"{scope}/{short}:{operator.name}",
        "program_id": operator.graph + 1,
        "symbol_id": number + 1,
        "engine": ENGINE_NAMES[operator.engine],
    }
    if place is not None:
        stats["source"] = str(place)
    return plane.kind(f"%{display} = {operator.result or '()'} {short}()", display, **stats)


def _host(profile: Profile, number: int, base_ns: int) -> Plane:
    plane = Plane(number, "/host:CPU")
    pid = profile.metadata.pid
    main = [
        (
            step.start_ns,
            event(
                plane.named("train"),
                step.start_ns - base_ns,
                step.duration_ns,
                [plane.stat("_r", 1), plane.stat("step_num", step.step)],
            ),
        )
        for step in profile.steps
    ]
    for row in profile.executions:
        launch = event(
            plane.named(f"nrt_execute ({profile.names[row.reason]})"),
            row.queued_ns - base_ns,
            row.start_ns - row.queued_ns,
            _link(plane, "_p", row.correlation),
        )
        main.append((row.queued_ns, launch))
    for span in profile.spans:
        if span.kind in (Kind.COMPILE, Kind.INPUT_WAIT, Kind.ANNOTATION, Kind.FALLBACK):
            made = event(plane.named(profile.names[span.name]), span.start_ns - base_ns, span.end_ns - span.start_ns)
            main.append((span.start_ns, made))
    main.sort(key=lambda item: item[0])
    plane.line(pid, "python", base_ns, [made for _, made in main])
    plane.line(pid + 1, "memory", base_ns, _memory(profile, plane, base_ns))
    return plane


def _memory(profile: Profile, plane: Plane, base_ns: int) -> Iterator[bytes]:
    """The latest allocations as TensorFlow tells them; what was there before is what the end and the changes leave."""
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
        place = script_place(profile.stack(row.stack))
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
        encoded = [plane.stat(key, value) for key, value in stats.items()]
        yield event(plane.named(name), row.time_ns - base_ns, 0, encoded)


def _link(plane: Plane, end: str, number: int) -> list[bytes]:
    """What ties an event of the host to the one of the device that it caused: producer `_p` or consumer `_c`."""
    return [plane.stat(f"{end}t", _PRODUCER), plane.stat(end, number)]
