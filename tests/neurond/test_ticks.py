"""When ticks come, and reports between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neurond.snapshots.ticks import Ticks


@pytest.mark.parametrize(
    ("now_seconds", "following_seconds"),
    [(100.0, 102.0), (101.9, 102.0), (102.9, 102.0), (103.1, 104.0), (104.9, 104.0), (147.5, 148.0)],
    ids=["at once", "in time", "a little late", "very late", "an interval late", "stopped"],
)
def test_a_tick_that_is_late_is_taken_at_once_and_one_that_was_missed_left_out(
    now_seconds: float, following_seconds: float
) -> None:
    assert Ticks(2.0, 50.0).after(100.0, now_seconds) == following_seconds


@given(st.integers(1, 2**22), st.floats(0.05, 60.0), st.integers(0, 1000))
def test_between_two_ticks_there_is_one_report_far_from_either(pid: int, interval_seconds: float, ticks: int) -> None:
    grid = Ticks(interval_seconds, 1000.0)
    tick = 1000.0 + ticks * interval_seconds
    since = (grid.report_at(pid) - tick) % interval_seconds
    assert 0.29 * interval_seconds < since < 0.71 * interval_seconds


def test_processes_that_start_together_report_apart() -> None:
    assert len({Ticks(1.0, 0.0).report_at(pid) for pid in range(4711, 4743)}) == 16
