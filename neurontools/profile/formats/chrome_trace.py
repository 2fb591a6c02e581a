"""Writes the JSON trace of torch.profiler: a track for each NeuronCore, and the host.

Device events use Kineto's GPU categories, because HolisticTraceAnalysis and the trace views read only `kernel`,
`gpu_memcpy` and `cuda_runtime`.

Viewers store times as doubles in microseconds since a base time. If the base is too early, rounding makes consecutive
operators overlap by a nanosecond, and Perfetto drops overlapping slices. So the base of our own traces is at most 12
days before their start. Kineto's base may be a quarter of a year earlier; operators are then written 2 ns shorter.
Sources: pytorch/kineto libkineto/src/output_json.cpp and ActivityType.h; facebookresearch/HolisticTraceAnalysis.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from neurontools.profile import Engine, OperatorDefinition, Profile, SourceLine, Span, SpanKind
from neurontools.profile.definitions import CATEGORIES, ENGINE_NAMES, script_line

_BASE_NS = 2**20 * 10**9  # 12 days
_EXACT_NS = 2**41 * 1000  # below this time, a double that counts microseconds resolves nanoseconds
_INEXACT_BY_NS = 2
_GRAPHS, _TRANSFERS = 1, 7
_LANES = {_GRAPHS: "graphs", **{2 + engine: name for engine, name in ENGINE_NAMES.items()}, _TRANSFERS: "transfers"}
_HOST_CATEGORIES = {
    SpanKind.COMPILE: "privateuse1_runtime",
    SpanKind.INPUT_WAIT: "user_annotation",
    SpanKind.ANNOTATION: "user_annotation",
    SpanKind.FALLBACK: "cpu_op",
}
_GZIP_LEVEL = 4
_METADATA_EVENT = re.compile(r'\{[^{}]*"ph": "M"[^{}]*\{[^{}]*\}\s*\},?\s*')
_TAGS_OF_A_RANK = 1 << 24
FIRST_TAG = 1 << 30
"""Added to correlations: torch's own ids are smaller, and readers choose an integer type by the largest id."""


def base_ns(first_ns: int) -> int:
    """Returns the base time of a trace: a multiple of 2^20 s (12 days), so that workers of a run mostly share it."""
    return first_ns // _BASE_NS * _BASE_NS


def write_trace(path: Path, *profiles: Profile) -> None:
    """Writes a compressed trace of one or more workers of a host; raises OSError if writing fails."""
    base = base_ns(min(profile.metadata.began_ns for profile in profiles))
    with gzip.open(path, "wt", _GZIP_LEVEL, encoding="utf-8") as file:
        file.write(_header(profiles[0], base))
        separator = ""
        for profile in profiles:
            for event in trace_events(profile, base):
                file.write(separator + event)
                separator = ",\n"
        file.write("\n]}\n")


def merge_into_trace(text: str, profile: Profile, *, with_host: bool = False) -> str:
    """Inserts the tracks of a profile into a trace of torch.profiler; raises ValueError if `text` is no trace."""
    base = re.search(r'"baseTimeNanoseconds":\s*(\d+)', text)
    events = re.search(r'"traceEvents":\s*\[', text)
    if events is None:
        raise ValueError("no trace of torch.profiler")
    ours = ",\n".join(trace_events(profile, int(base[1]) if base else 0, with_host=with_host))
    rest = _drop_gpu_names(text[events.end() :], profile.metadata.cores)
    comma = ",\n" if ours and not rest.lstrip().startswith("]") else ""
    return f"{text[: events.end()]}\n{ours}{comma}{rest}"


def _drop_gpu_names(text: str, cores: Sequence[int]) -> str:
    """Removes Kineto's names of GPU tracks that have the same number as one of our cores."""

    def without_gpu_name(found: re.Match[str]) -> str:
        pid = re.search(r'"pid": (\d+)', found[0])
        return "" if pid is not None and int(pid[1]) in cores else found[0]

    return _METADATA_EVENT.sub(without_gpu_name, text)


def _header(profile: Profile, base: int) -> str:
    about = profile.metadata
    head = {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": core, "name": "NeuronCore (simulated)", "totalGlobalMem": about.hbm_limit_bytes or 0}
            for core in about.cores
        ],
        "distributedInfo": {"backend": "xla", "rank": about.rank, "world_size": about.world_size},
        "host_name": about.host,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base,
        "traceName": f"{about.worker} of {about.script}: {about.device_time}",
        "written_by": about.written_by,
    }
    # HolisticTraceAnalysis finds the rank by the pattern "rank":\s+(\d+), so a space must follow the colon.
    return json.dumps(head)[:-1] + ', "traceEvents":[\n'


def trace_events(profile: Profile, base: int, *, with_host: bool = True) -> Iterator[str]:
    """Yields the events as JSON objects.

    Without `with_host`, yields only device events, because the trace of torch has the host events.
    """
    yield from _track_names(profile, with_host)
    if with_host:
        yield from _step_events(profile, base)
    yield from _execution_events(profile, base)
    yield from _span_events(profile, base, with_host)
    yield from _memory_events(profile, base)


def _track_names(profile: Profile, with_host: bool) -> Iterator[str]:
    about = profile.metadata

    def named(record_name: str, pid: int, tid: int | str, **arguments: Any) -> str:
        return json.dumps({"ph": "M", "name": record_name, "pid": pid, "tid": tid, "ts": 0, "args": arguments})

    if with_host:
        yield named("process_name", about.pid, 0, name=f"{about.worker}: {about.script or 'python'}")
        yield named("process_labels", about.pid, 0, labels="CPU")
        yield named("process_sort_index", about.pid, 0, sort_index=about.rank * 100)
        yield named("thread_name", about.pid, about.pid, name="main thread")
    for core in about.cores:
        yield named("process_name", core, 0, name=f"NeuronCore {core} ({about.worker})")
        yield named("process_labels", core, 0, labels=f"simulated: {about.device_time}")
        yield named("process_sort_index", core, 0, sort_index=5_000_000 + about.rank * 100 + core)
        for lane, name in _LANES.items():
            yield named("thread_name", core, lane, name=name)
            yield named("thread_sort_index", core, lane, sort_index=lane)


def _step_events(profile: Profile, base: int) -> Iterator[str]:
    pid = profile.metadata.pid
    for step in profile.steps:
        parts = {
            "host": step.host_ns,
            "compile": step.compile_ns,
            "input wait": step.input_wait_ns,
            "transfer": step.transfer_ns,
            "compute": step.compute_ns,
            "collective": step.collective_ns,
        }
        arguments = {"flops": step.flops, **{f"{name} us": duration_ns / 1e3 for name, duration_ns in parts.items()}}
        yield _complete_event(
            "user_annotation", f"ProfilerStep#{step.step}", pid, pid, step.start_ns, step.end_ns, base, arguments
        )


def _execution_events(profile: Profile, base: int) -> Iterator[str]:
    pid = profile.metadata.pid
    first_tag = FIRST_TAG + profile.metadata.rank % 64 * _TAGS_OF_A_RANK
    parts = [_operator_parts(profile, operator) for operator in profile.operators]
    graphs = [
        f',"args":{json.dumps({"graph": graph.hash_text, "flops": graph.flops, "bytes": graph.moved_bytes})[:-1]}'
        for graph in profile.graphs
    ]
    modules = [json.dumps(f"graph {graph.hash_text}") for graph in profile.graphs]
    first = 0
    for row in profile.executions:
        graph, core, tag = profile.graphs[row.graph], row.core, first_tag + row.correlation
        name = json.dumps(f"nrt_execute ({profile.names[row.reason]})")
        common = f'"execution":{row.correlation},"step":{row.step}'
        ids = f'"External id":{tag},"correlation":{tag}'  # host and device event share ids, as analyses expect
        start, launched = _us(row.start_ns - base), _us(row.queued_ns - base)
        yield (
            f'{{"ph":"X","cat":"cuda_runtime","name":{name},"pid":{pid},"tid":{pid},"ts":{launched},'
            f'"dur":{_us(row.start_ns - row.queued_ns)},"args":{{{ids},{common}}}}}'
        )
        yield (
            f'{{"ph":"X","cat":"gpu_user_annotation","name":{modules[row.graph]},"pid":{core},"tid":{_GRAPHS},"ts":{start},'
            f'"dur":{_us(row.end_ns - row.start_ns)}{graphs[row.graph]},{common}}}}}'
        )
        if not row.operator_count:
            continue
        begun_ns = row.start_ns - base
        times = profile.operator_ns[first : first + row.operator_count]
        first += row.operator_count
        lane = 2 + profile.operators[graph.first_operator].engine
        yield f'{{"ph":"s","id":{tag},"pid":{pid},"tid":{pid},"ts":{launched},"cat":"ac2g","name":"ac2g"}}'
        yield f'{{"ph":"f","id":{tag},"pid":{core},"tid":{lane},"ts":{start},"cat":"ac2g","name":"ac2g","bp":"e"}}'
        extra = f'"device":{core},{ids},{common}'
        for number, duration_ns in enumerate(times, graph.first_operator):
            head, tail = parts[number]
            shown_ns = duration_ns if begun_ns < _EXACT_NS else max(0, duration_ns - _INEXACT_BY_NS)
            yield f'{head},"pid":{core},"ts":{_us(begun_ns)},"dur":{_us(shown_ns)},"args":{{{extra}{tail}'
            begun_ns += duration_ns
            extra = f'"device":{core},{common}'


def _operator_parts(profile: Profile, operator: OperatorDefinition) -> tuple[str, str]:
    """Returns the constant parts of an operator's events: the JSON text before and after the variable part."""
    lane = 2 + operator.engine
    arguments: dict[str, Any] = {
        "stream": lane,
        "operator": operator.name,
        "result": operator.result,
        "flops": operator.flops,
        "bytes": operator.bytes,
        "engine (inferred)": ENGINE_NAMES[operator.engine],
        "module": operator.scope,
        "source": _source(profile.stack(operator.stack)),
    }
    if operator.is_backward:
        arguments["gradient"] = "backward"
    shown = {name: value for name, value in arguments.items() if value != ""}
    name = _collective_name(operator.name) if operator.engine is Engine.COLLECTIVES else operator.name
    head = f'{{"ph":"X","cat":"kernel","name":{json.dumps(name)},"tid":{lane}'
    return head, "," + json.dumps(shown, separators=(",", ":"))[1:] + "}"


def _collective_name(name: str) -> str:
    return f"ncclDevKernel_{name.partition('::')[2]}"  # existing analyses recognize collectives by the prefix nccl


def _source(stack: tuple[SourceLine, ...]) -> str:
    place = script_line(stack)
    return "" if place is None else str(place)


def _span_events(profile: Profile, base: int, with_host: bool) -> Iterator[str]:
    about = profile.metadata
    for row in profile.spans:
        kind, name = SpanKind(row.kind), profile.names[row.name]
        arguments: dict[str, Any] = {"step": row.step}
        if row.bytes >= 0:
            arguments["bytes"] = row.bytes
        source = _source(profile.stack(row.stack))
        if source:
            arguments["source"] = source
        if kind in (SpanKind.TO_DEVICE, SpanKind.FROM_DEVICE, SpanKind.COLLECTIVE):
            yield _device_span(row, kind, name, base, arguments)
        elif with_host or kind is SpanKind.COMPILE:
            category = _HOST_CATEGORIES.get(kind, "user_annotation")
            yield _complete_event(category, name, about.pid, about.pid, row.start_ns, row.end_ns, base, arguments)


def _device_span(row: Span, kind: SpanKind, name: str, base: int, arguments: dict[str, Any]) -> str:
    lane = 2 + Engine.COLLECTIVES if kind is SpanKind.COLLECTIVE else _TRANSFERS
    arguments |= {"device": row.core, "stream": lane}
    if kind is SpanKind.COLLECTIVE:
        shown, category = _collective_name(name), "kernel"
    else:
        shown, category = "Memcpy HtoD" if kind is SpanKind.TO_DEVICE else "Memcpy DtoH", "gpu_memcpy"
    return _complete_event(category, shown, row.core, lane, row.start_ns, row.end_ns, base, arguments)


def _memory_events(profile: Profile, base: int) -> Iterator[str]:
    for row in profile.memory_levels:
        levels = ",".join(f'"{name}":{level}' for name, level in zip(CATEGORIES, row[2:], strict=True))
        head = f'"name":"HBM (bytes)","pid":{row.core},"tid":0,"ts":{_us(row.time_ns - base)}'
        yield f'{{"ph":"C",{head},"args":{{{levels}}}}}'


def _complete_event(
    category: str, name: str, pid: int, tid: int, start_ns: int, end_ns: int, base: int, arguments: dict[str, Any]
) -> str:
    return (
        f'{{"ph":"X","cat":"{category}","name":{json.dumps(name)},"pid":{pid},"tid":{tid},"ts":{_us(start_ns - base)},'
        f'"dur":{_us(end_ns - start_ns)},"args":{json.dumps(arguments)}}}'
    )


def _us(ns: int) -> str:
    """Formats nanoseconds as microseconds with three decimals."""
    if ns < 0:
        return f"-{_us(-ns)}"
    return f"{ns // 1000}.{ns % 1000:03d}"
