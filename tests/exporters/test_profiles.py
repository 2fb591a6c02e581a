"""What a small training's profile is in the files of viewers and in the report, to the letter."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neurontools.cli.profile import command
from neurontools.profile import ColumnTable, GraphExecution, Profile, Span, SpanKind, SpanTotal
from neurontools.profile.formats.chrome_trace import merge_into_trace, write_trace
from neurontools.profile.formats.outputs import write_outputs
from neurontools.profile.profile import GraphTotal, OperatorTotal
from neurontools.rpc import wire
from tests.harness.command import call_main
from tests.harness.pictures import is_as_stored, rounded
from tests.harness.profiles import write
from tests.harness.trained_profiles import BEGAN_NS, trained

GOLDEN = Path(__file__).parent / "golden"
decode: Callable[[bytes], dict[int, list[Any]]] = wire.decode


def eventful(steps: int) -> list[Profile]:
    """Two ranks that also have, except in steps 1 and 3, a span of each kind and an update by another graph."""
    return [_eventful(profile) for profile in trained(steps, 2, slow_rank=1)]


def _eventful(profile: Profile) -> Profile:
    core = profile.metadata.rank
    names = (*profile.names, *(kind.name.lower() for kind in SpanKind))
    update = replace(profile.operators[1], graph=1, position=0, name="aten::_foreach_add_", scope="AdamW.step", stack=2)
    graph = replace(profile.graphs[0], hash_text="9e2a", first_operator=5, operator_count=1, compile_ns=None, step=6)
    graph = replace(graph, reason="the shape of input 0", was_cached=True, stack=1, flops=0)
    spans, executions, times, updates = [*profile.spans], [], array("q"), 0
    for number, execution in enumerate(profile.executions):
        executions.append(execution)
        times += profile.operator_ns[5 * number : 5 * number + 5]
        if execution.step in (1, 3):
            continue
        updates += 1
        begin_ns, end_ns = execution.end_ns + 10_000, execution.end_ns + 50_000
        executions.append(
            execution._replace(graph=1, queued_ns=begin_ns, start_ns=begin_ns, end_ns=end_ns, operator_count=1)
        )
        times.append(40_000)
        for kind, on, start_ns, size, stack in (
            (SpanKind.FROM_DEVICE, core, execution.end_ns, 4_096, 1),
            (SpanKind.COLLECTIVE, core, execution.end_ns + 5, 512, -1),
            (SpanKind.COMPILE, -1, execution.queued_ns - 950_000, -1, 2),
            (SpanKind.INPUT_WAIT, -1, execution.start_ns - 100_000, -1, 0),
            (SpanKind.INPUT_WAIT, -1, execution.end_ns + 1_000_000, -1, 0),
            (SpanKind.ANNOTATION, -1, execution.start_ns, -1, -1),
            (SpanKind.FALLBACK, -1, execution.end_ns + 10, 64, 1),
        ):
            name = len(profile.names) + kind
            spans.append(Span(kind, name, on, execution.step, start_ns, start_ns + 900_000, size, -1, stack))
    totals = [
        SpanTotal(row.kind, row.name, updates, updates * 900_000, updates * max(0, row.bytes))
        for row in spans[len(profile.spans) :][:7]
    ]
    return replace(
        profile,
        names=names,
        graphs=(*profile.graphs, graph),
        operators=(*profile.operators, update),
        operator_ns=times,
        executions=ColumnTable.from_rows(GraphExecution, executions),
        spans=ColumnTable.from_rows(Span, spans),
        graph_totals=ColumnTable.from_rows(
            GraphTotal, [*profile.graph_totals, GraphTotal(1, updates, 1, updates * 40_000)]
        ),
        operator_totals=ColumnTable.from_rows(
            OperatorTotal, [*profile.operator_totals, OperatorTotal(5, updates * 40_000, 40_000)]
        ),
        span_totals=ColumnTable.from_rows(SpanTotal, [*profile.span_totals, *totals]),
    )


def trace_lines(path: Path, profile: Profile) -> Iterator[str]:
    """The document and the events of the trace, and what else torch's trace of two GPUs has, after a merge."""
    trace = json.loads(gzip.decompress(path.read_bytes()))
    events = trace.pop("traceEvents")
    gpus = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"GPU {pid}"}} for pid in (1, 7)]
    theirs = json.dumps({"baseTimeNanoseconds": trace["baseTimeNanoseconds"], "traceEvents": gpus})
    merged = json.loads(merge_into_trace(theirs, profile))["traceEvents"]
    yield from map(json.dumps, (trace, *events, *(event for event in merged if event not in events)))
    assert merge_into_trace('{"traceEvents": []}', profile, with_host=True).count('"ts"') == len(events)


def space_lines(space: bytes) -> Iterator[str]:
    """Each plane of an XSpace with its statistics, its kinds of events, and its lines with their events."""
    decoded = decode(space)
    yield f"{decoded[3]} {decoded[4]}"
    for plane in map(decode, decoded[1]):
        entries = [decode(decode(entry)[2][0]) for entry in plane.get(5, ())]
        names = {entry[1][0]: entry[2][0].decode() for entry in entries}

        def stats(encoded: list[bytes], names: dict[int, str] = names) -> str:
            found = []
            for stat in map(decode, encoded):
                ((number, (value,)),) = (item for item in stat.items() if item[0] != 1)
                shown = struct.unpack("<d", value)[0] if number == 2 else decode(value) if number == 6 else value
                found.append(f"{names[stat[1][0]]}={shown}")
            return " ".join(found)

        yield f"{plane[1]} {plane[2]} {stats(plane.get(6, []))}"
        kinds: dict[int, str] = {}
        for kind in map(decode, plane.get(4, ())):
            (about,) = map(decode, kind[2])
            kinds[kind[1][0]] = str(about[2][0])
            yield f"  {kind[1]} {about[1]} {about[2]} {about.get(4)} {stats(about.get(5, []))}"
        for line in map(decode, plane.get(3, ())):
            yield f"  line {line[1]} {line[2]} at {line[3]}"
            for event in map(decode, line.get(4, ())):
                yield f"    {kinds[event[1][0]]}: {event[2]} {event[3]} {stats(event.get(4, []))}"


def snapshot_lines(snapshot: dict[str, Any]) -> Iterator[str]:
    yield str(snapshot["allocator_settings"])
    for part in (snapshot["segments"], *snapshot["device_traces"], snapshot["external_annotations"]):
        yield from map(str, part)


def test_the_files_of_viewers_have_all_that_was_recorded(tmp_path: Path) -> None:
    _, profile = eventful(3)
    trace, space, snapshot = write_outputs(profile, tmp_path, "run")
    assert (space.parent, trace.name.partition(".")[0]) == (tmp_path / "plugins/profile/run", "trn-rank1-4243")
    lines = (
        *trace_lines(trace, profile),
        *space_lines(space.read_bytes()),
        *snapshot_lines(pickle.loads(snapshot.read_bytes())),
    )
    assert is_as_stored("\n".join(lines), GOLDEN / "viewers.txt"), "UPDATE_GOLDEN=1 writes it anew"


@pytest.mark.parametrize("order", [1, -1])
def test_no_event_of_several_workers_begins_before_the_base_of_the_trace(tmp_path: Path, order: int) -> None:
    """Readers add the base to each time; ten weeks later is another base."""
    (profile,) = trained(1)
    late = replace(profile, metadata=replace(profile.metadata, began_ns=BEGAN_NS + 70 * 86_400 * 10**9))
    write_trace(tmp_path / "trace.gz", *[profile, late][::order])
    trace = json.loads(gzip.decompress((tmp_path / "trace.gz").read_bytes()))
    assert trace["baseTimeNanoseconds"] <= BEGAN_NS
    assert min(event["ts"] for event in trace["traceEvents"] if "ts" in event) >= 0


def test_the_report_of_two_ranks(tmp_path: Path) -> None:
    for profile in eventful(13):
        write(tmp_path / f"rank{profile.metadata.rank}.neuronprofile", profile)
    shown, document = (
        call_main(command.main, "show", ".", *options, cwd=tmp_path, COLUMNS="120", TZ="UTC").stdout
        for options in ((), ("--json",))
    )
    shown += "".join(f"{rounded({name: value})}\n" for name, value in json.loads(document).items())
    assert is_as_stored(shown, GOLDEN / "profile.txt"), "UPDATE_GOLDEN=1 writes it anew"
