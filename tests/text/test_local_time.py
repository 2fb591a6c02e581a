"""Moments in local time: as long as the reader's room for them."""

from __future__ import annotations

import time

import pytest

from neurontools.text.local_time import clock_text, date_text, day_text

NEW_YEAR_1970 = 0.0


@pytest.mark.parametrize(
    ("zone", "clock", "date"), [("UTC", "00:00:00", "1970-01-01"), ("XYZ+1:30", "22:30:00", "1969-12-31")]
)
def test_a_moment_is_told_by_the_local_clock(monkeypatch: pytest.MonkeyPatch, zone: str, clock: str, date: str) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        assert clock_text(NEW_YEAR_1970) == clock
        assert day_text(NEW_YEAR_1970) == f"{date[5:]} {clock}"
        assert date_text(NEW_YEAR_1970) == f"{date} {clock}"
    time.tzset()
