"""What is gathered for drawing is the same in whatever order moments come, and gaps are gaps."""

from __future__ import annotations

import zlib
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.client.history_blocks import decode_block, encode_blocks
from neurontools.client.samples import HostQuantity, Samples, Series, sample_snapshot
from neurontools.client.timeline import HostTimeline, Moment, MomentBuilder, PastMomentBuilder
from neurontools.rpc import neuron_pb2
from tests.harness.examples import examples
from tests.harness.still_feed import StillFeed, message_of, snapshots

MOMENTS = StillFeed(snapshots()).timeline.moments
QUANTITIES = (
    HostQuantity("utilization_ratio"),
    HostQuantity("utilization_ratio", (range(2, 4), range(6, 8))),
    HostQuantity("memory_bytes", pid=snapshots()[0].processes[0].pid),
    HostQuantity("flops_per_second", (range(1, 2),)),
    HostQuantity("executions_per_second"),
)


def reply(moment: Moment) -> bytes:
    return zlib.compress(moment.packed.message())


def in_order(moments: list[Moment]) -> HostTimeline:
    timeline = HostTimeline(None)
    for moment in moments:
        timeline.append(moment)
    return timeline


def drawn(timeline: HostTimeline) -> list[object]:
    """All that a page could draw of the last moment, a half and a whole minute wide."""
    series = timeline.series(len(timeline) - 1)
    axes = [series.axis(cells, window) for cells, window in ((60, 60.0), (90, 30.0), (7, 60.0))]
    curves = [series.curve(quantity, axis, 2) for quantity in QUANTITIES for axis in axes]
    numbers = [number for curve in curves for number in (*curve.values, curve.lowest, curve.mean, curve.highest)]
    numbers += [mean for step in series.core_steps(axes[2]) if step is not None for mean in step.means]
    return [None if number is None else pytest.approx(number) for number in numbers]


@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_pieces_in_any_order_make_the_same_past(data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(MOMENTS) - 1), max_size=6)))
    pieces = [MOMENTS[first:end] for first, end in pairwise([0, *cuts, len(MOMENTS)])]
    timeline = HostTimeline(None)
    is_looked_at = data.draw(st.booleans())
    for piece in data.draw(st.permutations(pieces)):
        timeline.merge(piece)
        if is_looked_at:
            drawn(timeline)
    whole = in_order(MOMENTS)
    assert timeline.moments == whole.moments
    assert timeline.events(len(MOMENTS) - 1) == whole.events(len(MOMENTS) - 1)
    assert timeline.gaps() == []
    assert drawn(timeline) == drawn(whole)


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(1, len(MOMENTS) - 1))
def test_the_past_shows_nothing_of_what_came_later(count: int) -> None:
    whole, part = in_order(MOMENTS), in_order(MOMENTS[:count])
    later, now = whole.series(count - 1), part.series(count - 1)
    axes = later.axis(60, 60.0), now.axis(60, 60.0)
    for quantity in QUANTITIES:
        assert later.curve(quantity, axes[0], 2) == now.curve(quantity, axes[1], 2)
    assert later.core_steps(axes[0]) == now.core_steps(axes[1])
    assert later.core_trend(0, 2, 20) == now.core_trend(0, 2, 20)
    assert whole.events(count - 1) == part.events(count - 1)


def test_from_the_newest_down_the_moments_are_those_in_order() -> None:
    maker = MomentBuilder()
    forward = [moment for taken in snapshots()[10:] if (moment := maker.make(message_of(taken))) is not None]
    oldest, *between, newest = forward
    past = PastMomentBuilder(replace(newest, events=()), oldest)
    timeline = HostTimeline(None)
    timeline.append(oldest)
    for moment in reversed(between):
        timeline.merge(past.make(reply(moment)))
    was_complete = past.is_complete
    timeline.merge(past.make(reply(oldest)))
    assert (was_complete, past.is_complete) == (False, True)
    assert timeline.moments == forward
    assert any(moment.events for moment in forward)


def test_blocks_of_the_daemon_make_the_same_moments_without_decoding_snapshots() -> None:
    maker = MomentBuilder()
    forward = [moment for taken in snapshots() if (moment := maker.make(message_of(taken))) is not None]
    oldest, newest = forward[9], replace(forward[-1], events=())
    past = PastMomentBuilder(newest, oldest)
    timeline = HostTimeline(None)
    timeline.append(oldest)
    timeline.append(newest)
    blocks = [block.SerializeToString() for block in encode_blocks(reversed(forward[2:]))]
    assert len(blocks) > 1
    for block in blocks:
        timeline.merge(past.add(reversed(decode_block(neuron_pb2.HistoryBlock.FromString(block), 0.0))))
    assert past.is_complete
    assert timeline.moments == forward[9:]
    assert drawn(timeline) == drawn(in_order(forward[9:]))
    assert (timeline.snapshot(1), timeline.snapshot(40)) == snapshots()[10:50:39]


@pytest.mark.parametrize(
    "change", [{"position": 32}, {"numbers": [1.0]}, {"taken_at_seconds": -1.0}, {"severity": "dire"}]
)
def test_a_malformed_block_is_refused(change: dict[str, Any]) -> None:
    (block,) = encode_blocks(MOMENTS[:1])
    if "severity" in change:
        block.moments[0].events.add(**change)
    else:
        block.moments[0].MergeFrom(neuron_pb2.HistoryMoment(**change))
    with pytest.raises(ValueError, match=r"malformed|dire"):
        decode_block(block, 0.0)


def test_a_reply_that_is_not_older_is_passed_over() -> None:
    past = PastMomentBuilder(MOMENTS[5], None)
    assert past.make(reply(MOMENTS[5])) == past.make(reply(MOMENTS[9])) == ()
    assert [moment.sequence for moment in past.make(reply(MOMENTS[4]))] == [5, 6]


def test_the_oldest_are_dropped_with_all_that_was_gathered_of_them() -> None:
    limit_bytes = sum(moment.size_bytes for moment in MOMENTS[-20:])
    timeline = HostTimeline(limit_bytes)
    for moment in MOMENTS[-15:]:
        timeline.append(moment)
    drawn(timeline)
    was_full = timeline.is_full
    assert timeline.merge(MOMENTS[:-15]) <= 6
    assert (was_full, timeline.is_full) == (False, True)
    assert 19 <= len(timeline) <= 21
    assert drawn(timeline) == drawn(in_order(MOMENTS[-len(timeline) :]))


def at(*moments: float) -> Samples:
    first = MOMENTS[0].sample
    return Samples(replace(first, at_seconds=float(seconds), interval_seconds=1.0) for seconds in moments)


@pytest.mark.parametrize(
    ("moments", "gaps"),
    [
        (range(100, 160), []),
        ([*range(100, 130), *range(157, 190)], [(129.0, 157.0)]),
        ([*range(100, 130), *range(157, 160), *range(190, 200)], [(129.0, 157.0), (159.0, 190.0)]),
        (range(100, 400, 10), []),  # who looks every ten seconds misses nothing
        ([*range(100, 130), *range(139, 300, 10)], []),  # nor who begins to
        ([*range(100, 200, 10), *range(300, 400, 10)], [(190.0, 300.0)]),
        ([100, 101.2, 102.9, 104, 105.4], []),
        ([100, 200], [(100.0, 200.0)]),
    ],
)
def test_a_gap_is_a_pause_much_longer_than_those_around_it(
    moments: list[float], gaps: list[tuple[float, float]]
) -> None:
    samples = at(*moments)
    assert samples.gaps(float("-inf")) == gaps
    assert samples.gaps(float(moments[-1])) == []


def shape(samples: Samples, cells: int, window_seconds: float) -> str:
    """What of an axis is known."""
    steps = Series(samples).axis(cells, window_seconds).steps()
    return "".join(" " if step is None else "#" for step in steps)


def test_an_outage_is_as_wide_as_it_was_long_and_never_unseen() -> None:
    assert shape(at(*range(3600, 3660)), 60, 3600.0) == " " * 59 + "#"
    moments = at(*(second for second in range(1, 61) if not 20 <= second < 47))
    assert shape(moments, 60, 60.0) == "#" * 19 + " " * 27 + "#" * 14
    assert shape(moments, 30, 60.0).count(" ") == 13
    short = at(*(second for second in range(3600) if not 1000 <= second < 1027))
    assert shape(short, 60, 3600.0).count(" ") == 1


def test_between_two_samples_the_later_one_is_shown() -> None:
    steps = Series(at(*range(60))).axis(240, 60.0).steps()
    assert None not in steps[4:237]
    assert len(set(steps[4:237])) == 59


def test_of_unequal_hosts_each_core_is_known_where_it_was() -> None:
    """As where a device came back while it was looked at."""
    first = MOMENTS[0].sample
    taken = neuron_pb2.GetSnapshotResponse.FromString(message_of(snapshots()[0])).snapshot
    del taken.cores[4:]
    series = Series(Samples([sample_snapshot(taken, 1.0), replace(first, at_seconds=2.0)]))
    steps = series.core_steps(series.axis(2, 2.0))
    assert [step and len(step.means) for step in steps] == [4, 32]
    absent = HostQuantity("utilization_ratio", (range(9, 10),))
    assert series.curve(absent, series.axis(2, 2.0)).values[0] is None


def test_an_infinite_number_of_a_crafted_recording_is_unknown() -> None:
    """No scale of a plot reaches it: a dashboard once looked for one without an end."""
    taken = snapshots()[-1]
    processes = tuple(replace(process, executions_per_second=float("inf")) for process in taken.processes)
    (moment,) = StillFeed([replace(taken, processes=processes)]).timeline.moments
    executions = HostQuantity("executions_per_second", pid=processes[0].pid)
    assert executions.read(moment.sample) is None
    assert HostQuantity("executions_per_second").read(moment.sample) is None
    assert executions.read(MOMENTS[-1].sample) is not None
