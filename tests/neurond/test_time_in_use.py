from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neurond.sources.sysfs.source import TimeInUse

LIVE, OLD = (2, 30, 2, 0), (2, 24, 7, 0)


def _run(
    time_in_use: TimeInUse, counts: Sequence[int | None], *, attached: bool = True, interval_seconds: float = 1.0
) -> list[float | None]:
    return [
        time_in_use.measure(0, raw, tick * interval_seconds, (1,) if attached else (), is_attached=attached)
        for tick, raw in enumerate(counts)
    ]


def _at(time_in_use: TimeInUse, at_seconds: float, raw: int | None, core: int = 0) -> float | None:
    return time_in_use.measure(core, raw, at_seconds, (1,), is_attached=True)


ATTACHED, ALONE = True, False


@pytest.mark.parametrize(
    ("given", "version", "attached", "counts", "seen", "unit"),
    [
        # Microseconds are taken at their word, and one interval that can't be proves nothing.
        (None, LIVE, ATTACHED, [0, 900_000, 1_800_000], [0.0, 0.9, 1.8], "us"),
        (None, LIVE, ATTACHED, [0, 50_000_000, 50_500_000], [0.0, None, 50.5], "us"),
        (None, LIVE, ATTACHED, [0, 2_500_000, 3_000_000, 5_500_001], [0.0, 2.5, 3.0, None], "us"),
        # Two intervals that can't be make the unit finer: the coarsest that is possible, if there is one.
        (None, LIVE, ATTACHED, [0, 10**9 // 2, 10**9, 3 * 10**9 // 2], [0.0, None, 1.0, 1.5], "ns"),
        (None, LIVE, ATTACHED, [0, 10**12 // 2, 10**12, 3 * 10**12 // 2], [0.0, None, 1.0, 1.5], "ps"),
        (None, LIVE, ATTACHED, [0, 1_050_000_000, 2_100_000_000], [0.0, None, 2.1], "ns"),
        (None, LIVE, ATTACHED, [0, 1_060_000_000, 2_120_000_000], [0.0, None, 0.00212], "ps"),
        (None, LIVE, ATTACHED, [0, 10**15, 2 * 10**15], [0.0, None, None], "us"),
        # A unit that was told is kept, and nothing is above one second a second.
        ("us", LIVE, ATTACHED, [0, 10**12, 2 * 10**12, 3 * 10**12], [0.0, None, None, None], "us"),
        ("ps", LIVE, ATTACHED, [0, 10**12], [0.0, 1.0], "ps"),
        # A counter that was cleared begins anew; one that can't be read comes back.
        (None, LIVE, ATTACHED, [500_000, 900_000, 0, 100_000], [0.5, 0.9, 0.0, 0.1], "us"),
        (None, LIVE, ATTACHED, [0, None, 500_000, 600_000], [0.0, None, 0.5, 0.6], "us"),
        # An old driver is believed when nobody is attached, and when its counters move without a rest between.
        (None, OLD, ALONE, [0, 0, 0], [0.0, 0.0, 0.0], "us"),
        (None, OLD, ALONE, [0, 100_000, 200_000, 300_000], [0.0, 0.1, 0.2, 0.3], "us"),
        (None, OLD, ALONE, [0, 10**12, 2 * 10**12, 3 * 10**12], [0.0, None, None, None], "us"),
        (None, OLD, ATTACHED, [0, 0, 0], [None, None, None], "us"),
        (None, OLD, ATTACHED, [0, 500_000, 1_000_000], [None, None, 1.0], "us"),
        (None, OLD, ATTACHED, [0, 500_000, 500_000, 900_000], [None] * 4, "us"),
    ],
)
def test_what_is_known_of_each_interval(
    given: str | None,
    version: tuple[int, ...],
    attached: bool,
    counts: list[int | None],
    seen: list[float | None],
    unit: str,
) -> None:
    time_in_use = TimeInUse(given, version)
    assert _run(time_in_use, counts, attached=attached) == [at if at is None else pytest.approx(at) for at in seen]
    assert time_in_use.unit == unit
    assert len(time_in_use.warnings) == (unit != "us" and given is None)
    assert time_in_use.is_live == (version == LIVE or (attached and seen[-1] is not None))


def test_the_jump_when_a_process_ends_does_not_change_the_unit() -> None:
    time_in_use = TimeInUse(None, OLD)
    owners = [(7,), (7,), (), (), (), ()]
    counts = [0, 0, 0, 3600 * 10**6, 3600 * 10**6, 3600 * 10**6]
    seen = [
        time_in_use.measure(0, raw, float(second), pids, is_attached=bool(pids))
        for second, (raw, pids) in enumerate(zip(counts, owners, strict=True))
    ]
    assert seen == [None, None, None, None, 3600.0, 3600.0]
    assert (time_in_use.unit, time_in_use.is_live, TimeInUse(None, (2, 30)).is_live) == ("us", False, True)


@pytest.mark.parametrize("interval_seconds", [0.25, 4.0])
def test_the_unit_is_found_from_growth_a_second_however_often_is_read(interval_seconds: float) -> None:
    time_in_use = TimeInUse(None, LIVE)
    each = int(8e8 * interval_seconds)
    seen = _run(time_in_use, [0, each, 2 * each], interval_seconds=interval_seconds)
    assert seen == [0.0, None, pytest.approx(1.6 * interval_seconds)]
    assert (time_in_use.unit, time_in_use.highest_units_per_second) == ("ns", 8e8)
    slow = TimeInUse(None, LIVE)
    slow_each = int(9e5 * interval_seconds)
    assert None not in _run(slow, [tick * slow_each for tick in range(200)], interval_seconds=interval_seconds)
    assert slow.unit == "us"


@pytest.mark.parametrize("interval_seconds", [0.5, 2.0])
def test_half_a_minute_is_half_a_minute_however_often_is_read(interval_seconds: float) -> None:
    time_in_use = TimeInUse(None, LIVE)
    each = int(1.4e6 * interval_seconds)
    ticks = int(30 / interval_seconds)
    _run(time_in_use, [tick * each for tick in range(ticks + 1)], interval_seconds=interval_seconds)
    assert time_in_use.unit == "us", "the window begins with the second measurement"
    assert _at(time_in_use, 30 + interval_seconds, (ticks + 1) * each) == pytest.approx((ticks + 1) * each / 1e9)
    assert time_in_use.unit == "ns"
    assert time_in_use.highest_units_per_second == pytest.approx(1.4e6)


@pytest.mark.parametrize(("last_second", "unit"), [(30, "us"), (31, "ns")])
def test_a_counter_that_rests_at_times_counts_on_the_whole_of_half_a_minute(last_second: int, unit: str) -> None:
    time_in_use = TimeInUse(None, LIVE)
    assert None not in _run(time_in_use, [2_400_000 * ((second + 1) // 2) for second in range(last_second + 1)])
    assert time_in_use.unit == unit


def test_the_jump_when_somebody_comes_or_goes_is_no_part_of_half_a_minute() -> None:
    time_in_use = TimeInUse(None, LIVE)
    for second in range(80):
        pids, raw = ((7,), 0) if second < 10 else ((8,), 40_000_000)
        time_in_use.measure(0, raw, float(second), pids, is_attached=True)
    assert time_in_use.unit == "us"


def test_what_is_just_possible_proves_nothing() -> None:
    far = TimeInUse(None, LIVE)
    _run(far, [0, 10_000_000, 20_000_000, 30_000_000])
    assert far.unit == "us"
    _at(far, 4.0, 40_000_001)
    assert far.unit == "us", "one is no proof"
    _at(far, 5.0, 50_000_002)
    assert far.unit == "ns"
    for growth, unit in ((1_100_000, "us"), (1_100_001, "ns")):
        sustained = TimeInUse(None, LIVE)
        _run(sustained, [second * growth for second in range(40)])
        assert sustained.unit == unit


def test_intervals_far_beyond_what_is_possible_must_follow_each_other() -> None:
    broken = TimeInUse(None, LIVE)
    for second, raw in enumerate((0, 10**9, 10**9 + 1, 2 * 10**9, None, 3 * 10**9, 4 * 10**9)):
        _at(broken, float(second), raw)
    assert broken.unit == "us"
    read_twice = TimeInUse(None, LIVE)
    for at_seconds, raw in ((0.0, 0), (1.0, 10**9), (1.0, 10**9), (2.0, 2 * 10**9)):
        _at(read_twice, at_seconds, raw)
    assert read_twice.unit == "ns", "a moment that is read twice is one"


def test_a_finer_unit_makes_the_proof_of_other_cores_begin_anew() -> None:
    time_in_use = TimeInUse(None, LIVE)
    for second in (0, 1):
        _at(time_in_use, float(second), second * 10**9, core=1)
    for second in (0, 1, 2):
        _at(time_in_use, float(second), second * 10**9)
    assert time_in_use.unit == "ns"
    raw = 10**9
    for second in range(2, 32):
        raw += 11 * 10**9 if second == 2 else 1_200_000_000
        _at(time_in_use, float(second), raw, core=1)
        assert time_in_use.unit == "ns", second
    _at(time_in_use, 33.0, raw + 2_400_000_000, core=1)
    assert time_in_use.unit == "ps"
    assert time_in_use.highest_units_per_second > 1e9


def test_cores_that_are_gone_begin_anew_and_others_go_on() -> None:
    time_in_use = TimeInUse("us", LIVE)
    for core in (0, 1):
        assert _at(time_in_use, 0.0, 0, core) == 0.0
    time_in_use.forget({1})
    assert _at(time_in_use, 1.0, 9_000_000, 0) == 9.0
    assert _at(time_in_use, 1.0, 9_000_000, 1) is None, "more than possible since it was last read"


def test_the_warning_tells_the_growth_and_the_unit_and_the_setting() -> None:
    assert TimeInUse("ns", LIVE).warnings == ()
    time_in_use = TimeInUse(None, LIVE)
    _run(time_in_use, [0, 500_000_000, 900_000_000])
    (text,) = time_in_use.warnings
    assert text == (
        "nc_time_in_use grew by 4e+08 units a second, more than microseconds allow: the unit is assumed to be "
        "nanoseconds (sysfs.time_in_use_unit sets it)"
    )


@given(
    st.lists(st.integers(0, 2**64 - 1) | st.none(), max_size=12),
    st.sampled_from([None, "us", "ns", "ps"]),
    st.sampled_from([LIVE, OLD, None]),
    st.booleans(),
)
def test_no_core_is_ever_busier_than_possible(
    counts: list[int | None], unit: str | None, version: tuple[int, ...] | None, attached: bool
) -> None:
    time_in_use = TimeInUse(unit, version)
    before: float | None = None
    unit_before = time_in_use.unit
    for second, raw in enumerate(counts):
        now = time_in_use.measure(0, raw, float(second), (), is_attached=attached)
        if now is not None and before is not None and time_in_use.unit == unit_before:
            assert now - before <= 2.5 * 1.001 + before * 1e-9
        before, unit_before = now, time_in_use.unit
