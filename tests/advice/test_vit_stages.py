"""The stages of the article on ViT: what is advised at its beginning, and no longer at its end.

The counts are those of three steps of examples/train_vit.py, which takes a CPU half a minute a step.
"""

from __future__ import annotations

from typing import Any

import pytest

from neurontools.advice.advisor import advice
from tests.harness.counted_runs import summary

STEP_FLOPS, TENSORS, STEPS = 806.9e9, 611, 100


def stage(batch: int = 8, dtype: str = "float32", batches_per_execution: int = 1) -> dict[str, Any]:
    executions = STEPS // batches_per_execution
    flops = STEPS * STEP_FLOPS * batch / 8
    document = summary(
        steps_total=STEPS,
        samples_total=STEPS * batch,
        batches_total=STEPS,
        batch_samples=batch,
        executions_total=executions,
        executed_tensors_total=executions * TENSORS,
        flop_total=flops,
        flops_by_dtype={dtype: flops},
        moved_bytes=executions * 2.8e9,
    )
    return document | {"instance_type": "inf2.xlarge"}


@pytest.mark.parametrize(
    ("document", "rules"),
    [
        (stage(batch=16), {"float32", "batches-per-execution"}),
        (stage(batch=8), {"float32", "batches-per-execution"}),
        (stage(dtype="bfloat16"), {"batches-per-execution"}),
        (stage(dtype="bfloat16", batches_per_execution=10), set()),
        (stage(dtype="float8_e4m3fn", batches_per_execution=10), set()),
    ],
)
def test_each_stage_is_advised_what_comes_next(document: dict[str, Any], rules: set[str]) -> None:
    assert {each.rule for each in advice(document)} == rules


def test_neither_a_larger_batch_nor_fp8_is_ever_advised() -> None:
    told = " ".join(f"{each.fix} {each.effect}" for each in advice(stage()))
    assert "larger batch" not in told
    assert "fp8" not in told.lower()


def test_a_few_steps_tell_nothing() -> None:
    assert advice(stage() | {"ranks": [stage()["ranks"][0] | {"steps_total": 9}]}) == []


def test_what_costs_most_comes_first() -> None:
    found = advice(stage())
    assert [each.lost_ratio for each in found] == sorted((each.lost_ratio for each in found), reverse=True)


@pytest.mark.parametrize("places", [None, 3, [{}], [{"what": "read", "file": "a", "line": "b", "count": 3}]])
def test_a_summary_with_odd_places_is_read(places: object) -> None:
    document = stage()
    document["ranks"][0]["places"] = places
    assert {each.rule for each in advice(document)} == {"float32", "batches-per-execution"}
