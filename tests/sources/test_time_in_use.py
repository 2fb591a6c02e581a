from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neurond.sources.sysfs.time_in_use import UNITS_PER_SECOND, TimeInUse

LIVE, OLD = (2, 30, 2, 0), (2, 24, 7, 0)


def _run(time_in_use: TimeInUse, counts: list[int], *, attached: bool = True) -> list[float | None]:
    return [
        time_in_use.measure(0, raw, float(second), (1,) if attached else (), is_attached=attached)
        for second, raw in enumerate(counts)
    ]


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
