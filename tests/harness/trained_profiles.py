"""Profiles as a training leaves them: some steps of a small network on several ranks, one of which is slow."""

from __future__ import annotations

from array import array
from dataclasses import replace

from neurontools.profile import (
    Allocation,
    Block,
    ColumnTable,
    Engine,
    GraphDefinition,
    GraphExecution,
    MemoryLevels,
    OperatorDefinition,
    Profile,
    ProfileState,
    SourceLine,
    Span,
    SpanKind,
    TrainingStep,
)
from neurontools.profile.collective_traffic import sent_bytes
from neurontools.profile.definitions import ALLOCATED, FREED
from neurontools.profile.profile import GraphTotal, OperatorTotal, SpanTotal
from tests.harness.profiles import METADATA

BEGAN_NS = METADATA.began_ns
STEP_NS = 1_000_000
PEAK_STEP = 3  # the step in which memory is at its highest
_FORWARD = (
    SourceLine("/venv/torch/nn.py", 99, "linear", is_package=True),
    SourceLine("/home/me/train.py", 12, "forward"),
)
_LOSS = (SourceLine("/home/me/train.py", 20, "loss"),)
_STEP = (SourceLine("/home/me/train.py", 31, "<module>"),)
# An operator: its name, engine, FLOPs, bytes, stack, modules, whether it is of the backward pass, nanoseconds.
_REDUCED_BYTES = 32_000
_OPERATORS = (
    ("aten::mm", Engine.TENSOR, 4_000_000, 96_000, 0, "Net/encoder/Linear", False, 200_000),
    ("aten::gelu", Engine.SCALAR, 0, 32_000, 0, "Net/encoder/GELU", False, 50_000),
    ("aten::_log_softmax", Engine.VECTOR, 0, 8_000, 1, "", False, 20_000),
    ("aten::mm", Engine.TENSOR, 8_000_000, 192_000, 0, "Net/encoder/Linear", True, 180_000),
    ("xla::all_reduce", Engine.COLLECTIVES, 0, 64_000, 2, "", False, 50_000),
)
COMPUTE_NS = sum(each[7] for each in _OPERATORS[:4])
COLLECTIVE_NS = _OPERATORS[4][7]
FLOPS = sum(each[2] for each in _OPERATORS)
BYTES = sum(each[3] for each in _OPERATORS)


def trained(steps: int = 10, ranks: int = 1, *, slow_rank: int | None = None) -> list[Profile]:
    """A profile for each rank. All but the slow one wait in their collective for as long as it is slower."""
    return [_rank(steps, rank, ranks, slow_rank) for rank in range(ranks)]


def _rank(steps: int, rank: int, ranks: int, slow_rank: int | None) -> Profile:
    waits_ns = 0 if slow_rank in (None, rank) else 300_000
    works_ns = 300_000 if slow_rank == rank else 0
    sent = sent_bytes("all_reduce", range(ranks), rank, _REDUCED_BYTES)
    traffic = {Engine.COLLECTIVES: (tuple(sent), tuple(sent.values()))}
    operators = tuple(
        OperatorDefinition(
            *(0, position, name, engine, flops, size, "bfloat16[8,64]", "bfloat16", stack, scope, is_backward),
            *traffic.get(engine, ()),
        )
        for position, (name, engine, flops, size, stack, scope, is_backward, _) in enumerate(_OPERATORS)
    )
    graph = GraphDefinition(
        "8d1f", "SyncTensorsGraph.8d1f", 0, 5, FLOPS, BYTES, 4_096, 65_536, 90_000_000, False, "the first one", 2, 1
    )
    times = [each[7] for each in _OPERATORS]
    times[0] += works_ns
    times[4] += waits_ns
    compute, collective = sum(times[:4]), times[4]
    columns: dict[str, list[tuple[int, ...]]] = {
        name: [] for name in ("steps", "executions", "spans", "levels", "moves")
    }
    for number in range(1, steps + 1):
        begun = BEGAN_NS + number * STEP_NS * 3
        compiled = 90_000_000 if number == 1 else 0
        if compiled:
            begun -= compiled
        ended = begun + STEP_NS + compiled + works_ns + waits_ns
        runs = begun + compiled + 200_000
        columns["steps"].append((number, begun, ended, compiled, 100_000, 50_000, compute, collective, 1, FLOPS))
        columns["executions"].append((0, rank, number, number, 0, runs - 20_000, runs, runs + compute + collective, 5))
        columns["spans"].append((SpanKind.TO_DEVICE, 1, rank, number, begun + 100_000, begun + 150_000, 2_048, -1, 2))
        tensors = 500_000 if number < PEAK_STEP else 900_000 if number == PEAK_STEP else 600_000
        columns["levels"].append((runs, rank, 1_000, 4_096, 65_536, 0, tensors))
        if number == PEAK_STEP:
            columns["moves"].append((runs - 10, ALLOCATED, rank, 0x1000, 300_000, 4, 0))
            columns["moves"].append((runs - 5, ALLOCATED, rank, 0x2000, 100_000, 4, 1))
            columns["moves"].append((runs + 10, FREED, rank, 0x1000, 300_000, 4, -1))
            columns["moves"].append((runs + 20, ALLOCATED, rank, 0x3000, 50_000, 4, 1))
    return Profile(
        metadata=replace(
            METADATA,
            worker=f"rank {rank}",
            rank=rank,
            local_rank=rank,
            world_size=ranks,
            pid=METADATA.pid + rank,
            cores=(rank,),
            script="/home/me/train.py",
        ),
        state=ProfileState(ended_ns=BEGAN_NS + (steps + 1) * STEP_NS * 3, has_ended=True, hbm_peak_bytes=(970_632,)),
        names=("MarkStep", "to device"),
        stacks=(_FORWARD, _LOSS, _STEP),
        graphs=(graph,),
        operators=operators,
        steps=ColumnTable.from_rows(TrainingStep, [TrainingStep(*row) for row in columns["steps"]]),
        executions=ColumnTable.from_rows(GraphExecution, [GraphExecution(*row) for row in columns["executions"]]),
        operator_ns=array("q", times * steps),
        spans=ColumnTable.from_rows(Span, [Span(*row) for row in columns["spans"]]),
        memory_levels=ColumnTable.from_rows(MemoryLevels, [MemoryLevels(*row) for row in columns["levels"]]),
        allocations=ColumnTable.from_rows(Allocation, [Allocation(*row) for row in columns["moves"]]),
        blocks=ColumnTable.from_rows(
            Block,
            [
                Block(0x100, 500_000, rank, 4, 2, -1),
                *(Block(move[3], move[4], rank, 4, 1, move[0]) for move in columns["moves"][1::2]),
            ],
        ),
        graph_totals=ColumnTable.from_rows(GraphTotal, [GraphTotal(0, steps, 0, steps * (compute + collective))]),
        operator_totals=ColumnTable.from_rows(
            OperatorTotal, [OperatorTotal(n, steps * t, t) for n, t in enumerate(times)]
        ),
        span_totals=ColumnTable.from_rows(
            SpanTotal, [SpanTotal(SpanKind.TO_DEVICE, 1, steps, steps * 50_000, steps * 2_048)]
        ),
    )
