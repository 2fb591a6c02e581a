from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neurond.sources.sysfs.time_in_use import UNITS_PER_SECOND, TimeInUse

LIVE, OLD = (2, 30, 2, 0), (2, 24, 7, 0)


def _run(
    time_in_use: TimeInUse, counts: list[int], *, attached: bool = True, interval_seconds: float = 1.0
) -> list[float | None]:
    return [
        time_in_use.measure(0, raw, tick * interval_seconds, (1,) if attached else (), is_attached=attached)
        for tick, raw in enumerate(counts)
    ]


def _at(time_in_use: TimeInUse, at_seconds: float, raw: int | None, core: int = 0) -> float | None:
    return time_in_use.measure(core, raw, at_seconds, (1,), is_attached=True)


def test_microseconds_are_taken_at_their_word() -> None:
    time_in_use = TimeInUse(None, LIVE)
    assert _run(time_in_use, [0, 900_000, 1_800_000]) == [0.0, 0.9, 1.8]
    assert (time_in_use.unit, time_in_use.warnings) == ("us", ())


def test_one_interval_that_cannot_be_proves_nothing() -> None:
    time_in_use = TimeInUse(None, LIVE)
    assert _run(time_in_use, [0, 50_000_000, 50_500_000]) == [0.0, None, 50.5]
    assert time_in_use.unit == "us"


@pytest.mark.parametrize("unit", ["ns", "ps"])
def test_the_unit_becomes_finer_after_two_intervals_that_cannot_be(unit: str) -> None:
    second = UNITS_PER_SECOND[unit]
    time_in_use = TimeInUse(None, LIVE)
    counts = [int(second * busy) for busy in (0, 0.5, 1.0, 1.5)]
    assert _run(time_in_use, counts) == [0.0, None, 1.0, 1.5]
    assert time_in_use.unit == unit
    assert time_in_use.highest_units_per_second == second / 2
    assert f"{second / 2:.3g} units a second" in time_in_use.warnings[0]


def test_a_driver_that_updates_its_counters_seldom_counts_no_finer_for_that() -> None:
    """A busy core, counters that move once a second, and a reader that comes twice a second and is held up at times."""
    time_in_use = TimeInUse(None, LIVE)
    seen = []
    for step in range(400):
        at_seconds = step / 2 + (0.4 if step % 7 == 3 else 0.0)
        raw = int(int(at_seconds) * 950_000)
        seen.append(time_in_use.measure(0, raw, at_seconds, (1,), is_attached=True))
    assert (time_in_use.unit, time_in_use.warnings) == ("us", ())
    assert seen[-1] == pytest.approx(0.95 * 199)


def test_more_than_possible_on_the_whole_of_half_a_minute_proves_a_finer_unit() -> None:
    """Nanoseconds, and a core that is all but idle: no interval is far beyond what is possible."""
    time_in_use = TimeInUse(None, LIVE)
    _run(time_in_use, [1_400_000 * second for second in range(31)])
    assert time_in_use.unit == "us"
    _run(time_in_use, [0])  # the counter was cleared: the window begins anew
    seen = [time_in_use.measure(0, 1_400_000 * n, 100.0 + n, (1,), is_attached=True) for n in range(40)]
    assert time_in_use.unit == "ns"
    assert seen[-1] == pytest.approx(1.4e6 * 39 / 1e9)


def test_a_unit_that_was_told_is_kept_and_nothing_is_above_one_second_a_second() -> None:
    time_in_use = TimeInUse("us", LIVE)
    assert _run(time_in_use, [0, 10**12, 2 * 10**12, 3 * 10**12]) == [0.0, None, None, None]
    assert (time_in_use.unit, time_in_use.warnings) == ("us", ())
    assert _run(TimeInUse("ps", LIVE), [0, 10**12]) == [0.0, 1.0]


def test_an_old_driver_is_believed_when_nobody_is_attached() -> None:
    assert _run(TimeInUse(None, OLD), [0, 0, 0], attached=False) == [0.0, 0.0, 0.0]
    assert _run(TimeInUse(None, OLD), [0, 0, 0], attached=True) == [None, None, None]


def test_an_old_driver_whose_counters_move_is_believed_too() -> None:
    time_in_use = TimeInUse(None, OLD)
    assert _run(time_in_use, [0, 500_000, 1_000_000]) == [None, None, 1.0]
    assert time_in_use.is_live


def test_the_jump_when_a_process_ends_does_not_change_the_unit() -> None:
    time_in_use = TimeInUse(None, OLD)
    owners = [(7,), (7,), (), (), (), ()]
    counts = [0, 0, 0, 3600 * 10**6, 3600 * 10**6, 3600 * 10**6]
    seen = [
        time_in_use.measure(0, raw, float(second), pids, is_attached=bool(pids))
        for second, (raw, pids) in enumerate(zip(counts, owners, strict=True))
    ]
    assert seen == [None, None, None, None, 3600.0, 3600.0]
    assert (time_in_use.unit, time_in_use.is_live) == ("us", False)


def test_a_counter_that_was_cleared_begins_anew() -> None:
    assert _run(TimeInUse(None, LIVE), [500_000, 900_000, 0, 100_000]) == [0.5, 0.9, 0.0, 0.1]


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
    packed = TimeInUse(None, LIVE)
    assert _run(packed, [0, 2_500_000, 3_000_000, 5_500_001]) == [0.0, 2.5, 3.0, None]
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


@pytest.mark.parametrize(("units_per_second", "unit"), [(1_050_000_000, "ns"), (1_060_000_000, "ps"), (10**15, "us")])
def test_the_unit_becomes_the_coarsest_that_is_possible_if_there_is_one(units_per_second: int, unit: str) -> None:
    time_in_use = TimeInUse(None, LIVE)
    _run(time_in_use, [0, units_per_second, 2 * units_per_second])
    assert time_in_use.unit == unit


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


def test_an_old_driver_is_not_live_for_growth_with_a_rest_between_or_while_nobody_is_attached() -> None:
    resting = TimeInUse(None, OLD)
    assert _run(resting, [0, 500_000, 500_000, 900_000]) == [None] * 4
    unattached = TimeInUse(None, OLD)
    assert _run(unattached, [0, 100_000, 200_000, 300_000], attached=False) == [0.0, 0.1, 0.2, 0.3]
    changing = TimeInUse(None, OLD)
    for second, pids in enumerate([(7,), (7,), (7, 8), (7, 8), (7, 8), (7, 8)]):
        changing.measure(0, second * 500_000, float(second), pids, is_attached=True)
        assert changing.is_live == (second == 5), "growth counts anew once nobody comes or goes"
    assert [resting.is_live, unattached.is_live, TimeInUse(None, (2, 30)).is_live] == [False, False, True]


def test_an_old_driver_whose_unit_is_not_known_is_asked_for_no_proof() -> None:
    time_in_use = TimeInUse(None, OLD)
    _run(time_in_use, [0, 10**12, 2 * 10**12, 3 * 10**12], attached=False)
    assert time_in_use.unit == "us"


def test_cores_that_are_gone_begin_anew_and_others_go_on() -> None:
    time_in_use = TimeInUse("us", LIVE)
    for core in (0, 1):
        assert _at(time_in_use, 0.0, 0, core) == 0.0
    time_in_use.forget({1})
    assert _at(time_in_use, 1.0, 9_000_000, 0) == 9.0
    assert _at(time_in_use, 1.0, 9_000_000, 1) is None, "more than possible since it was last read"


def test_a_counter_that_cannot_be_read_is_unknown_and_comes_back() -> None:
    time_in_use = TimeInUse(None, LIVE)
    assert [_at(time_in_use, float(second), raw) for second, raw in enumerate((0, None, 500_000, 600_000))] == [
        0.0,
        None,
        0.5,
        0.6,
    ]


def test_the_warning_tells_the_growth_and_the_unit_and_the_setting() -> None:
    assert TimeInUse("ns", LIVE).warnings == ()
    time_in_use = TimeInUse(None, LIVE)
    _run(time_in_use, [0, 500_000_000, 900_000_000])
    (text,) = time_in_use.warnings
    assert text == (
        "nc_time_in_use grew by 4e+08 units a second, more than microseconds allow: taken as nanoseconds "
        "(set sysfs.time_in_use_unit to say which it is)"
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
