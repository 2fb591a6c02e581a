"""Any profile that can be, and files of profiles."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from neurontools.profile import (
    ColumnTable,
    Engine,
    GraphDefinition,
    GraphExecution,
    OperatorDefinition,
    Profile,
    ProfileMetadata,
    ProfileState,
    SourceLine,
    SpanKind,
    TrainingStep,
)
from neurontools.profile.chunks import TABLES
from neurontools.profile.writer import NewDefinitions, ProfileWriter

METADATA = ProfileMetadata(
    worker="rank 0",
    rank=0,
    local_rank=0,
    world_size=1,
    pid=4242,
    host="trn",
    boot_id="boot",
    instance_type="trn2.3xlarge",
    cores=(0,),
    device_name="xla",
    hbm_limit_bytes=24 << 30,
    began_ns=1_790_000_000_000_000_000,
)
_NS = METADATA.began_ns


def write(path: Path, profile: Profile, parts: int = 1) -> None:
    """Writes a profile, its rows in so many parts, one after the other."""
    writer = ProfileWriter(path, profile.metadata)
    definitions = NewDefinitions(
        list(profile.names), list(profile.stacks), list(profile.graphs), list(profile.operators)
    )
    writer.add_definitions(definitions)
    ends = list(profile.executions.column("operator_count"))
    for part in range(parts):
        for table in TABLES.values():
            rows: ColumnTable[TrainingStep] = getattr(profile, table.field)
            first, last = len(rows) * part // parts, len(rows) * (part + 1) // parts
            if table.replaces:
                writer.add_rows(table.field, rows.columns)
            elif table.field == "executions":
                times = profile.operator_ns[sum(ends[:first]) : sum(ends[:last])]
                writer.add_executions(rows[first:last].columns, times)
            else:
                writer.add_rows(table.field, rows[first:last].columns)
        writer.write_state(replace(profile.state, has_ended=profile.state.has_ended and part == parts - 1))
    writer.close()


_numbers = st.integers(-(1 << 40), 1 << 40)
_times = st.integers(_NS, _NS + 10**15)
_texts = st.text(max_size=20)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Any profile that refers to nothing that isn't there."""
    places = st.builds(SourceLine, _texts, st.integers(0, 10**6), _texts, st.booleans())
    stacks = draw(st.lists(st.lists(places, max_size=3).map(tuple), max_size=4))
    names = draw(st.lists(_texts, min_size=1, max_size=4))
    stack_numbers = st.none() | st.integers(0, len(stacks) - 1) if stacks else st.none()
    row_stacks = st.integers(-1, len(stacks) - 1)
    graphs: list[GraphDefinition] = []
    operators: list[OperatorDefinition] = []
    for number in range(draw(st.integers(1, 3))):
        count = draw(st.integers(0, 4))
        sizes = st.integers(0, 1 << 40)
        graph = st.builds(
            GraphDefinition,
            *(_texts, _texts, st.just(len(operators)), st.just(count), sizes, sizes, sizes, sizes),
            *(st.none() | sizes, st.none() | st.booleans(), _texts, stack_numbers, sizes),
        )
        graphs.append(draw(graph))
        operator = st.builds(
            OperatorDefinition,
            *(st.just(number), sizes, _texts, st.sampled_from(Engine), sizes, sizes, _texts, st.none() | _texts),
            *(stack_numbers, _texts, st.booleans()),
        ) | st.builds(
            OperatorDefinition,
            *(st.just(number), sizes, _texts, st.just(Engine.COLLECTIVES), sizes, sizes, _texts, st.none()),
            *(stack_numbers, _texts, st.just(False), st.just((1, 2)), st.tuples(sizes, sizes)),
        )
        operators += draw(st.lists(operator, min_size=count, max_size=count))
    executions = []
    for _ in range(draw(st.integers(0, 5))):
        number = draw(st.integers(0, len(graphs) - 1))
        count = draw(st.sampled_from([0, graphs[number].operator_count]))
        reason = draw(st.integers(0, len(names) - 1))
        three = (draw(_times), draw(_times), draw(_times))
        executions.append(GraphExecution(number, draw(_numbers), draw(_numbers), draw(_numbers), reason, *three, count))
    operator_ns = array("q", [draw(_numbers) for _ in range(sum(each.operator_count for each in executions))])
    values = {
        "kind": st.sampled_from(SpanKind).map(int),
        "name": st.integers(0, len(names) - 1),
        "graph": st.integers(0, len(graphs) - 1),
        "operator": st.integers(0, max(0, len(operators) - 1)),
        "stack": row_stacks,
        "action": st.integers(0, 1),
        "category": st.integers(0, 4),
    }
    tables: dict[str, Any] = {}
    for table in TABLES.values():
        fields = [values.get(name, _times if name.endswith("_ns") else _numbers) for name in table.row._fields]
        rows = draw(st.lists(st.builds(table.row, *fields), max_size=5))
        if table.field == "operator_totals" and not operators:
            rows = []
        tables[table.field] = ColumnTable.from_rows(table.row, rows)
    tables["executions"] = ColumnTable.from_rows(GraphExecution, executions)
    counts = st.dictionaries(_texts, st.integers(0, 1 << 40), max_size=3)
    return Profile(
        metadata=replace(METADATA, worker=draw(_texts), cores=tuple(draw(st.lists(st.integers(0, 63), max_size=3)))),
        state=ProfileState(
            draw(_times), draw(st.booleans()), draw(counts), draw(counts), (1, 2), draw(st.none() | _texts)
        ),
        names=tuple(names),
        stacks=tuple(stacks),
        graphs=tuple(graphs),
        operators=tuple(operators),
        operator_ns=operator_ns,
        **tables,
    )
