"""What is concluded from profiles, by profiles of which the answer is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools import catalog
from neurontools.profile import ColumnTable, ProfileState, SpanKind, SpanTotal, TrainingStep
from neurontools.profile.analysis.comparison import compare
from neurontools.profile.analysis.memory import levels_over_time
from neurontools.profile.analysis.report import build_report, latest_run
from neurontools.profile.analysis.steps import group_steps, latest_steps_timeline, slowest_steps, step_times
from neurontools.profile.analysis.topology import LinkKind, find_topology
from neurontools.profile.collective_traffic import sent_bytes
from neurontools.profile.profile import GraphTotal, MemoryLevels
from neurontools.views.profile_report import place_text
from tests.harness.trained_profiles import COLLECTIVE_NS, COMPUTE_NS, FLOPS, PEAK_STEP, STEP_NS, trained


def steps_of(*durations_ns: int) -> ColumnTable[TrainingStep]:
    begun, rows = 0, []
    for number, took in enumerate(durations_ns, 2):
        rows.append(TrainingStep(number, begun, begun + took, 0, 0, 0, took // 2, 0, 1, 10))
        begun += took
    return ColumnTable.from_rows(TrainingStep, rows)


def test_a_profile_of_later_steps_leaves_none_out_and_without_steps_the_whole_time_is_split() -> None:
    (profile,) = trained(10)
    (rank,) = build_report([replace(profile, steps=profile.steps[4:])]).ranks
    assert rank.first_step is None
    assert len(rank.steps) == 6
    waited = SpanTotal(SpanKind.COLLECTIVE, 1, 10, 30_000, 0)
    spans = ColumnTable.from_rows(SpanTotal, [*profile.span_totals, waited])
    (rank,) = build_report([replace(profile, steps=ColumnTable(TrainingStep), span_totals=spans)]).ranks
    assert rank.times is None
    assert rank.split.compute_seconds == pytest.approx(10 * COMPUTE_NS / 1e9)
    assert rank.split.collective_seconds == pytest.approx((10 * COLLECTIVE_NS + 30_000) / 1e9)
    assert rank.split.transfer_seconds == pytest.approx(10 * 50_000 / 1e9)
    whole = profile.state.ended_ns - profile.metadata.began_ns
    assert rank.split.total_seconds == pytest.approx(whole / 1e9)


def test_percentiles_are_by_nearest_rank_and_the_slowest_steps_come_first() -> None:
    times = step_times(steps_of(*(1_000_000_000 * number for number in range(1, 101))))
    assert times is not None
    assert (times.p50_seconds, times.p99_seconds, times.longest_seconds, times.count) == (50, 99, 100, 100)
    assert step_times(ColumnTable(TrainingStep)) is None
    assert [each.step for each in slowest_steps(steps_of(5, 9, 3, 9), 3)] == [3, 5, 2]


@given(count=st.integers(0, 500), most=st.integers(1, 50))
def test_stretches_hold_every_step_once_and_their_means_add_up(count: int, most: int) -> None:
    steps = steps_of(*range(1, count + 1))
    found = group_steps(steps, most)
    assert len(found) <= most
    assert [number for each in found for number in range(each.first_step, each.last_step + 1)] == list(
        range(2, count + 2)
    )
    total = sum(each.mean.total_seconds * (each.last_step - each.first_step + 1) for each in found)
    assert total * 1e9 == pytest.approx(sum(range(1, count + 1)))


def test_the_peak_is_exact_and_says_what_lay_there() -> None:
    (profile,) = trained(10)
    found = build_report([profile]).ranks[0].peak
    assert found is not None
    assert found.bytes == 900_000
    assert [(str(share.place), share.bytes, share.count) for share in found.shares] == [
        ("/home/me/train.py:31", 500_000, 1),
        ("/home/me/train.py:12", 300_000, 1),
        ("/home/me/train.py:20", 100_000, 1),
    ]
    assert found.by_category["tensors"] == sum(found.by_category.values()) == 900_000
    levels = levels_over_time(profile, 0, 100)
    assert max(sum(level.bytes) for level in levels) == 900_000
    assert sum(levels[-1].bytes) == sum(block.bytes for block in profile.blocks)


def test_of_a_worker_that_died_the_peak_is_the_highest_level_that_was_noted() -> None:
    (profile,) = trained(10)
    died = replace(profile, state=ProfileState(), blocks=profile.blocks[:0])
    rank = build_report([died]).ranks[0]
    assert rank.peak is not None
    noted = profile.memory_levels[PEAK_STEP - 1]
    assert (rank.peak.bytes, rank.peak.at_ns) == (noted.total_bytes, noted.time_ns)
    assert "no regular end" in rank.incomplete_reason
    nothing = build_report([replace(died, memory_levels=ColumnTable(MemoryLevels))]).ranks[0]
    assert (nothing.peak, nothing.hbm_peak_bytes) == (None, None)


def test_the_rank_that_waits_least_is_the_one_the_others_wait_for() -> None:
    made = build_report(trained(10, 3, slow_rank=2))
    assert made.straggler is made.ranks[2]
    (use,) = made.collectives
    assert use.seconds_by_rank[2] < min(use.seconds_by_rank[:2])
    assert build_report(trained(10, 3)).straggler is None
    assert build_report(trained(10)).straggler is None


def test_mfu_is_of_the_peak_of_the_logical_cores() -> None:
    made = build_report(trained(10))
    peak = catalog.peak_flops_per_logical_core("trn2.3xlarge")
    assert peak == 2 * (catalog.peak_flops_per_core("trn2.3xlarge") or 0)
    assert made.mfu_ratio == pytest.approx(FLOPS / (STEP_NS / 1e9) / peak)
    (profile,) = trained(2)
    known = build_report([profile]).mfu_ratio
    assert known is not None
    for changed, expected in (
        ({"logical_neuroncore_config": 2}, known),
        ({"logical_neuroncore_config": 1}, 2 * known),
        ({"logical_neuroncore_config": 3}, None),
        ({"instance_type": None}, None),
    ):
        other = replace(profile, metadata=replace(profile.metadata, **changed))
        assert build_report([other]).mfu_ratio == pytest.approx(expected)


def test_runs_of_unlike_length_are_compared_by_step() -> None:
    compared = compare(build_report(trained(10)), build_report(trained(40, 2)))
    by_name = {each.quantity.name: each for each in compared.quantities}
    for name in ("step_p50_seconds", "step_mean_seconds", "compute_seconds", "flops", "busy_ratio"):
        assert by_name[name].ratio == pytest.approx(1.0), name
    assert (by_name["steps_total"].a, by_name["steps_total"].b) == (10, 40)
    assert all(each.change_seconds == pytest.approx(0.0) for each in compared.operators)
    assert compared.only_a_graphs == compared.only_b_graphs == ()


def test_steps_in_part_and_executions_after_the_last_one_make_no_step_larger() -> None:
    (whole,) = trained(10)
    captured = replace(whole, steps=whole.steps[1:])
    (row,) = whole.graph_totals
    evaluated = replace(whole, graph_totals=ColumnTable.from_rows(GraphTotal, [row._replace(executions=40)]))
    for other in (captured, evaluated):
        compared = compare(build_report([whole]), build_report([other]))
        (flops,) = (each for each in compared.quantities if each.quantity.name == "flops")
        assert (flops.a, flops.b) == (FLOPS, FLOPS)
    compared = compare(build_report([whole]), build_report([captured]))
    assert [each.b_count for each in compared.operators] == [pytest.approx(1.0)] * len(whole.operators)


def test_what_only_one_run_has_is_told() -> None:
    (a,) = trained(10)
    operators = (replace(a.operators[0], name="aten::bmm"), *a.operators[1:])
    b = replace(a, operators=operators, graphs=(replace(a.graphs[0], hash_text="other", reason="an input grew"),))
    compared = compare(build_report([a]), build_report([b]))
    changed = {(each.name, each.a_seconds is None, each.b_seconds is None) for each in compared.operators[:2]}
    assert changed == {("aten::mm", False, True), ("aten::bmm", True, False)}
    assert [graph.hash_text for graph in compared.only_a_graphs] == ["8d1f"]
    assert [graph.reason for graph in compared.only_b_graphs] == ["an input grew"]


def test_ranks_without_a_common_clock_or_step_have_no_common_timeline() -> None:
    one, other = trained(10, 2)
    elsewhere = replace(other, metadata=replace(other.metadata, boot_id="another"))
    assert latest_steps_timeline([one, elsewhere], 2) is None
    assert latest_steps_timeline([one, replace(other, steps=ColumnTable(TrainingStep))], 2) is None
    assert latest_steps_timeline([one], 2) is not None


def test_a_rank_that_was_started_again_counts_once() -> None:
    one, other = trained(10, 2)
    again = replace(other, metadata=replace(other.metadata, began_ns=other.metadata.began_ns + 1_000, pid=77))
    assert [each.metadata.pid for each in latest_run([again, other, one])] == [one.metadata.pid, 77]
    earlier = replace(one, metadata=replace(one.metadata, began_ns=1, rank=5), state=ProfileState(ended_ns=2))
    assert latest_run([earlier, one]) == [one]
    assert latest_run([]) == []


def test_the_topology_has_the_devices_of_the_ranks_and_the_bytes_that_each_link_moved() -> None:
    made = trained(10, 2)
    sent, copied = 2 * 10 * 32_000, 2 * 10 * 2_048  # in a ring of two, each rank sends all that it reduces

    def links(**changes: Any) -> list[tuple[LinkKind | None, str, str, int]]:
        second = replace(made[1], metadata=replace(made[1].metadata, **changes))
        found = find_topology([made[0], second]).links
        return [(link.kind, place_text(link.source), place_text(link.target), link.bytes) for link in found]

    assert [rank.devices for rank in find_topology(made).ranks] == [(0,), (0,)]
    copies = (LinkKind.HOST, "trn", "trn, device 0", copied)
    assert links() == [(LinkKind.DEVICE, "trn, device 0", "trn, device 0", sent), copies]
    assert links(instance_type="trn2.48xlarge", cores=(9,))[0] == (
        *(LinkKind.NEURONLINK, "trn, device 0", "trn, device 2"),
        sent,
    )
    assert links(host="other", boot_id="other")[0] == (LinkKind.NETWORK, "other", "trn", sent)
    assert links(instance_type=None)[0][0] is None
    assert {link.kind for link in find_topology(made[:1]).links} == {LinkKind.HOST}


@pytest.mark.parametrize(
    ("kind", "options", "sent_by_rank"),
    [
        ("all_reduce", {}, [{5: 1500}, {6: 1500}, {7: 1500}, {4: 1500}]),
        ("reduce_scatter", {}, [{5: 750}, {6: 750}, {7: 750}, {4: 750}]),
        ("all_gather", {}, [{5: 3000}, {6: 3000}, {7: 3000}, {4: 3000}]),
        ("broadcast", {"root": 1}, [{}, {6: 1000}, {7: 1000}, {4: 1000}]),
        ("all_to_all", {}, [{each: 250 for each in (4, 5, 6, 7) if each != own} for own in (4, 5, 6, 7)]),
        ("scatter", {"root": 1}, [{}, {4: 250, 6: 250, 7: 250}, {}, {}]),
        ("gather", {"root": 1}, [{5: 1000}, {}, {5: 1000}, {5: 1000}]),
        ("send", {"root": 3}, [{7: 1000}, {7: 1000}, {7: 1000}, {}]),
        ("receive", {"root": 3}, [{}, {}, {}, {}]),
        ("permute", {"routes": "4>6 6>6 7>5"}, [{6: 1000}, {}, {}, {5: 1000}]),
    ],
)
def test_a_collective_sends_what_its_algorithm_needs(
    kind: str, options: dict[str, Any], sent_by_rank: list[dict[int, int]]
) -> None:
    ranks = (4, 5, 6, 7)
    assert [sent_bytes(kind, ranks, own, 1000, **options) for own in ranks] == sent_by_rank
    assert sent_bytes(kind, ranks, 0, 1000, **options) == sent_bytes(kind, (), 4, 1000, **options) == {}
