"""Which records of a process are of one count."""

from __future__ import annotations

import pytest

from neurontools.model import Process
from neurontools.model.counting import continues, count_key


def process(attached_at: float | None = 1.0, counted_since: float | None = 0.5, pid: int = 7) -> Process:
    return Process(
        pid=pid,
        uid=0,
        user="root",
        command="x",
        tag="7",
        runtime_version="1",
        started_at_unix_seconds=0.0,
        attached_at_unix_seconds=attached_at,
        synthetic=False,
        logical_neuroncore_config=1,
        counted_since_seconds=counted_since,
    )


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (process(), process(), True),
        (process(attached_at=1.0), process(attached_at=9.0), True),
        (process(counted_since=0.5), process(counted_since=0.6), False),
        (process(counted_since=None), process(counted_since=None), True),
        (process(counted_since=None), process(counted_since=0.5), False),
        (process(attached_at=1.0, counted_since=None), process(attached_at=9.0), False),
        (process(pid=7), process(pid=8), False),
        (process(pid=7, counted_since=None), process(pid=8, counted_since=None), False),
    ],
)
def test_a_count_goes_on_from_one_record_to_the_next(before: Process, now: Process, expected: bool) -> None:
    assert continues(before, now) is expected
    assert (count_key(before) == count_key(now) is not None) <= expected
