"""The rules over what runs counted: just below each threshold and just above it.

The counts are those of examples/train_vit.py at the stages of the article on ViT.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neurontools.estimate.advice import format_advice
from neurontools.estimate.calibration import LAUNCH_SECONDS
from neurontools.estimate.inference_rules import INFERENCE_RULES
from neurontools.estimate.rules import RULES, find_advice
from neurontools.estimate.summary_evidence import summary_verdict
from tests.harness.counted_runs import MIB, bert, summary
from tests.harness.pictures import is_as_stored, rounded

STEP_FLOPS, TENSORS = 806.9e9, 611
PEAK_FLOPS = 95e12  # of bfloat16, a core of inf2.xlarge
STORED = Path(__file__).parent / "golden" / "advice.txt"


def stage(
    dtype: str = "float32", batches_per_execution: int = 1, batch: int = 8, steps: int = 100, **changes: Any
) -> dict[str, Any]:
    """A run of one worker, whose counts are changed."""
    executions = steps // batches_per_execution
    flops = changes.pop("flops", steps * STEP_FLOPS * batch / 8)
    counts = {
        "steps_total": steps,
        "samples_total": steps * batch,
        "batches_total": steps,
        "batch_samples": batch,
        "executions_total": executions,
        "executed_tensors_total": executions * TENSORS,
        "flop_total": flops,
        "flops_by_dtype": {dtype: flops},
        "moved_bytes": executions * 2.8e9,
        "split": split(10.0),
    }
    return summary(**counts | changes) | {"instance_type": "inf2.xlarge"}


def place(what: str, steps: int, count: int | None = None, line: int = 7) -> dict[str, Any]:
    return {"what": what, "file": "train.py", "line": line, "count": steps if count is None else count, "steps": steps}


def graph(*late_steps: int) -> dict[str, Any]:
    return place("graph", len(late_steps)) | {"late_steps": list(late_steps)}


def split(total_seconds: float, **parts: float) -> dict[str, Any]:
    """The time of a hundred steps, of which all but these parts is spent on the host."""
    names = ("compile", "input_wait", "transfer", "compute", "collective")
    seconds = {f"{name}_seconds": parts.get(name, 0.0) for name in names}
    host_seconds = total_seconds - sum(seconds.values())
    return {"steps_total": 100, "total_seconds": total_seconds, "host_seconds": host_seconds} | seconds


def good(**changes: Any) -> dict[str, Any]:
    """The last stage, of which nothing is said, changed."""
    last: dict[str, Any] = {"dtype": "bfloat16", "batches_per_execution": 10}
    other_rank = changes.pop("other_rank", None)
    document = stage(**last | changes)
    if other_rank is not None:
        document["ranks"].append(document["ranks"][0] | {"flop_total": 0} | other_rank)
    return document


@pytest.mark.parametrize(
    ("document", "rules"),
    [
        (stage(batch=16), {"float32", "batches-per-execution"}),
        (stage(batch=8), {"float32", "batches-per-execution"}),
        (stage("bfloat16"), {"batches-per-execution"}),
        (stage("bfloat16", 10), set()),
        (stage("float8_e4m3fn", 10), set()),
    ],
)
def test_each_stage_is_advised_what_comes_next(document: dict[str, Any], rules: set[str]) -> None:
    assert {each.rule for each in find_advice(document)} == rules


LOOP = place("mark_step", 100)
MARKS = [place("mark_step", 100, 101), place("mark_step", 100, line=9)]
READ, SORT, NONZERO = "read", "fallback aten::sort", "fallback aten::nonzero"
LAUNCH_FLOPS = 100 * PEAK_FLOPS * LAUNCH_SECONDS  # a hundred executions as short as a launch
LONG_FLOPS = 100 * PEAK_FLOPS * 40e-3
HALF = {"float32": 50 * STEP_FLOPS, "bfloat16": 50 * STEP_FLOPS}
MORE = {"float32": 60 * STEP_FLOPS, "bfloat16": 40 * STEP_FLOPS}
EACH = {"batches_per_execution": 1}
GROWN = {"hbm_warm_bytes": 100 * MIB, "hbm_latest_bytes": 105 * MIB, "hbm_rises_total": 51}
# A rule, the line that it names and what it measured (nothing where it is silent), and the changed counts.
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("recompile", "", {"steps": 99, "places": [graph(80, 90)]}),
    ("recompile", "", {"steps": 150, "places": [graph(100, 120, 140)]}),
    ("recompile", "7: 0.0% of a step: compiling 3 graphs after", {"steps": 149, "places": [graph(100, 120, 140)]}),
    ("recompile", "in the last graph b", {"places": [graph(60, 80, 99)], "graph_changes": ["a", "b"]}),
    ("recompile", "", {"steps": 40, "places": [graph(6, 8, 11)]}),
    ("recompile", "compiling 4 graphs", {"steps": 40, "places": [graph(6, 8, 30, 39)]}),
    ("recompile", "", {"places": [place("library graph by lightning", 9)]}),
    ("host-read", "", {"places": [place(READ, 50)]}),
    ("host-read", "", {"places": [place(READ, 30, 30, 5), place("result read", 30)]}),
    ("host-read", "", {"places": [place(f"library {READ} by transformers", 100)]}),
    (
        "host-read",
        "",
        {"training_seconds": 10.0, "save_seconds": 9.0, "places": [place(READ, 100), place("save", 100)]},
    ),
    (
        "host-read",
        "7: 0.0% of a step: 0.6 host reads a step, each a wait on hardware",
        {"places": [place(READ, 21, 21, 5), place("result read", 51, 60)]},
    ),
    ("load-imbalance", "", {"split": split(10.0, collective=5.0)}),
    ("load-imbalance", "", {"other_rank": {"rank": 1, "split": split(10.0, collective=3.2)}}),
    ("load-imbalance", "", {"split": split(2.0), "other_rank": {"rank": 1, "split": split(2.0, collective=0.8)}}),
    (
        "load-imbalance",
        ": 17.0% of a step: ranks waiting for rank 0",
        {"other_rank": {"rank": 1, "split": split(10.0, collective=3.4)}},
    ),
    ("two-executions", "", {"executions_total": 150, "places": [LOOP]}),
    ("two-executions", "", {"executions_total": 151}),
    ("two-executions", "", {"executions_total": 200, "places": [LOOP, place("library read by trl", 51)]}),
    ("two-executions", "", {"executions_total": 200, "places": [LOOP, place(READ, 30), place(SORT, 21)]}),
    ("two-executions", "", {"executions_total": 400, "batches_total": None, "places": [place("mark_step", 100, 400)]}),
    ("two-executions", "9: 1.5 executions for each batch", {"executions_total": 151, "places": MARKS}),
    ("two-executions", "9: 2.0 executions", {"executions_total": 200, "batches_total": None, "places": MARKS}),
    ("two-executions", "7: 2.0 executions", {"executions_total": 200, "places": [place("mark_step", 50)]}),
    ("batches-per-execution", "", {"executions_total": 200}),
    ("batches-per-execution", "", {"executions_total": 66}),
    ("batches-per-execution", "", {**EACH, "flops": 0.99 * LAUNCH_FLOPS}),
    ("batches-per-execution", "", {**EACH, "flops": LONG_FLOPS, "executed_tensors_total": 100}),
    ("batches-per-execution", "", {**EACH, "batches_total": None}),
    ("batches-per-execution", "7: one batch per execution, 8.5 ms at the bfloat16 peak", {**EACH, "places": [LOOP]}),
    ("batches-per-execution", "0.3 ms", {**EACH, "flops": 1.01 * LAUNCH_FLOPS}),
    ("batches-per-execution", "12.7 ms", {**EACH, "executions_total": 67}),
    ("batches-per-execution", "40.0 ms", {**EACH, "flops": LONG_FLOPS, "executed_tensors_total": 10**8}),
    ("fallback", "", {"places": [place(SORT, 50)]}),
    ("fallback", "7: aten::nonzero ran on the host 102 times in 100 steps", {"places": [place(NONZERO, 51, 102)]}),
    ("fallback", ", and others at 1 more place(s)", {"places": [place(SORT, 51, 51, 5), place(NONZERO, 51, 102)]}),
    ("float32", "", {"flops_by_dtype": HALF}),
    ("float32", "", {"dtype": "float32", "executed_tensors_total": 10**10}),
    ("float32", "60% of the FLOPs are float32", {"flops_by_dtype": MORE}),
    ("optimizer-on-host", "", {"host_parameters": 0}),
    ("optimizer-on-host", "3 parameter(s) on the host", {"host_parameters": 3}),
    (
        "loader-wait",
        "",
        {"split": split(20.0, input_wait=9.0), "training_seconds": 20.0, "training_run_delay_seconds": 16.0},
    ),
    ("loader-wait", "", {"split": split(20.0, input_wait=1.99)}),
    ("loader-wait", "", {"split": split(15.0, input_wait=1.99)}),
    ("loader-wait", "", {"split": None}),
    (
        "loader-wait",
        "7: 10.0% of a step: waiting for the data loader",
        {"split": split(20.0, input_wait=2.0), "places": [place("input", 100), *MARKS[1:]]},
    ),
    ("small-collectives", "", {"collectives_total": 2000, "collective_bytes": 2000}),
    ("small-collectives", "", {"collectives_total": 2500, "collective_bytes": 2500 * MIB}),
    ("small-collectives", "25 collectives a step", {"collectives_total": 2500, "collective_bytes": 2500 * MIB - 1}),
    ("memory-growth", "", {**GROWN, "hbm_rises_total": 50}),
    ("memory-growth", "", {**GROWN, "hbm_latest_bytes": 105 * MIB - 1}),
    ("memory-growth", "", {**GROWN, "hbm_warm_bytes": 0, "hbm_latest_bytes": MIB - 1}),
    ("memory-growth", ": HBM grew from 100.0 MiB to 105.0 MiB, in 51 of 100 steps", {**GROWN, "places": [LOOP]}),
    ("hbm-headroom", "", {"hbm_limit_bytes": 1000, "hbm_peak_bytes": 900}),
    ("hbm-headroom", "", {"hbm_limit_bytes": 0, "hbm_peak_bytes": 900}),
    ("hbm-headroom", "of HBM at the peak", {"hbm_limit_bytes": 1000, "hbm_peak_bytes": 901}),
    ("compile-cache", "", {"compile_cache_stored_total": 1}),
    ("compile-cache", "", {"compile_cache_stored_total": 0, "graphs_compiled_total": 0}),
    ("compile-cache", "compiled but not cached: 2", {"compile_cache_stored_total": 0}),
    ("checkpoint-cost", "", {"training_seconds": 15.0, "save_seconds": 0.99}),
    ("checkpoint-cost", "", {"training_seconds": 30.0, "save_seconds": 1.49}),
    ("checkpoint-cost", "", {"training_seconds": None, "save_seconds": 9.0}),
    ("checkpoint-cost", "7: torch.save", {"training_seconds": 20.0, "save_seconds": 1.0, "places": [place("save", 1)]}),
    ("outside-loop", "", {"wall_seconds": 59.0, "training_seconds": 30.0}),
    ("outside-loop", "", {"wall_seconds": 200.0, "training_seconds": 101.0}),
    ("outside-loop", "", {"wall_seconds": 200.0, "training_seconds": None}),
    ("outside-loop", "", {"wall_seconds": 90.0, "training_seconds": 30.0, "start_run_delay_seconds": 31.0}),
    ("outside-loop", "before the first step or after", {"wall_seconds": 60.0, "training_seconds": 30.0}),
    ("nan", "", {"numerical_errors_total": 0}),
    ("nan", "1 execution had NaN", {"numerical_errors_total": 1}),
    ("idle-cores", "", {"cores": [0, 1], "cores_without_work": 0}),
    ("idle-cores", "", {"cores_without_work": 1}),
    ("idle-cores", "1 of 4 NeuronCores were held", {"cores": [0, 1, 2, 3], "cores_without_work": 1}),
    ("deprecated-variable", "", {"deprecated_variables": []}),
    ("deprecated-variable", "XLA_USE_BF16 and A are set", {"deprecated_variables": ["XLA_USE_BF16", "A"]}),
]


@pytest.mark.parametrize(("rule", "text", "changes"), CASES)
def test_a_rule_speaks_above_its_threshold(rule: str, text: str, changes: dict[str, Any]) -> None:
    document = good(**changes)
    told = [
        f"{(each.place or '').partition(':')[2]}: {each.measured}; {each.fix}"
        for each in find_advice(document)
        if each.rule == rule
    ]
    assert [text in each for each in told] == [True] * bool(text)
    assert rule not in {each.rule for each in find_advice(document, [rule])}


def test_advice_is_as_stored() -> None:
    """The whole document of each piece of advice, then the texts of two runs with their verdicts."""
    loading = good(loader_wait_seconds=9.0, split=split(20.0, input_wait=9.0), places=[place(READ, 100)])
    documents = [good(**changes) for _, text, changes in CASES if text]
    documents += [loading, stage(batch=16), bert(cores=[1], padded_samples=50)]
    lines = dict.fromkeys(rounded(each.document()) for document in documents for each in find_advice(document))
    texts = [format_advice(find_advice(loading), limit, summary_verdict(loading)) for limit in (None, 1)]
    assert is_as_stored("\n".join((*lines, *texts)), STORED), "look at the difference; then UPDATE_GOLDEN=1 writes it"


def test_every_rule_is_here() -> None:
    assert (
        {rule for rule, text, _ in CASES if text}
        == {rule for rule, text, _ in CASES if not text}
        == set(RULES) - set(INFERENCE_RULES)
    )


def test_savings_that_no_step_can_notice_are_left_out() -> None:
    tiny = find_advice(good(flops_by_dtype={"bfloat16": 100}, flop_total=100, places=[place(READ, 100)]))
    assert [each.saving for each in tiny if each.rule == "host-read"] == [None]
    (found,) = find_advice(good(split=split(20.0, input_wait=9.0)), predicts_savings=False)
    assert (found.saving, found.document()["saving"]) == (None, None)


def test_neither_a_larger_batch_nor_fp8_is_ever_advised() -> None:
    told = " ".join(f"{each.fix} {each.effect}" for each in find_advice(stage()))
    assert "larger batch" not in told
    assert "fp8" not in told.lower()


def test_fewer_than_ten_steps_tell_nothing() -> None:
    assert find_advice(stage(steps=9)) == []
    assert find_advice(stage(steps=10)) != []
    assert find_advice({}) == []


def test_what_costs_most_comes_first() -> None:
    found = find_advice(stage(numerical_errors_total=1, host_parameters=1))
    assert found[0].rule == "nan"
    assert [each.lost_ratio for each in found] == sorted((each.lost_ratio for each in found), reverse=True)


@pytest.mark.parametrize("places", [None, 3, [{}], [{"what": "read", "file": "a", "line": "b", "count": 3}]])
def test_a_summary_with_odd_places_is_read(places: object) -> None:
    assert {each.rule for each in find_advice(stage(places=places))} == {"float32", "batches-per-execution"}


def test_no_advice_is_no_text_and_no_line_is_wide() -> None:
    assert format_advice([]) == ""
    assert max(map(len, format_advice(find_advice(stage())).splitlines())) <= 100
