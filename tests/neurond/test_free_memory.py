"""When memory is given back after a flood."""

from __future__ import annotations

import os
import re
from pathlib import Path

from neurond.system.free_memory import AfterFloods, free_unused


def test_it_is_freed_once_when_a_flood_has_ended() -> None:
    freed: list[float] = []
    floods = AfterFloods(lambda: freed.append(now))
    for tenth in range(100):
        now = tenth / 10
        floods.look(min(tenth, 30) * 100, now)  # the last ends after 3 s
    assert freed == [4.0]


def test_what_comes_and_goes_all_the_time_is_no_reason_to_wait_for_ever() -> None:
    freed: list[float] = []
    floods = AfterFloods(lambda: freed.append(now))
    for now in range(40):
        floods.look(now * 100, now)
    assert freed == [11, 22, 33]


def test_a_few_that_end_free_nothing() -> None:
    freed: list[float] = []
    floods = AfterFloods(lambda: freed.append(now))
    for now in range(1000):
        floods.look(min(now, 49), now)
    assert freed == []


def test_what_is_free_goes_back_to_the_system() -> None:
    def resident_bytes() -> int:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{os.getpid()}/status").read_text("ascii"))
        assert found
        return int(found[1]) * 1024

    pieces = [bytes([1]) * 8000 for _ in range(5000)]
    high_bytes, kept = resident_bytes(), pieces[::500]  # what stays is between what goes, so nothing goes by itself
    del pieces
    free_unused()
    assert resident_bytes() < high_bytes - 30_000_000
    assert len(kept) == 10
