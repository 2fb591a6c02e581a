from __future__ import annotations

import re
import tracemalloc
from pathlib import Path

import pytest
from neurond.peers.connection_proxy import BYTE_COST, CALL_COST, FRAME_COST, RequestCost
from neurond.peers.limits import LimitReached, PeerCredentials, PeerLimiter, ResourceKind, limits_for
from neurond.service.server import MAX_REQUEST_BYTES, MAX_STREAMS

from neurontools.rpc.report_limits import MOST_MODELS, MOST_SUBGRAPHS
from tests.harness.hostile_peer import frame, request

MAN = Path(__file__).parents[2] / "man/neurond.8"
A, B, OTHER = PeerCredentials(1, 1000), PeerCredentials(2, 1000), PeerCredentials(3, 1001)


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_nobody_can_take_it_all() -> None:
    for files in (16, 64, 200, 1024, 2**20):
        limits = limits_for(files)
        for most in limits.open.values():
            assert 1 <= most.by_process <= most.by_user <= most.together
        opened = limits.open[ResourceKind.CONNECTION].together * 3 + limits.open[ResourceKind.ATTACHMENT].together * 2
        assert opened <= max(files * 3 // 4, 5)


def test_a_process_and_a_user_have_their_share() -> None:
    limits = limits_for(2**20)
    peers = PeerLimiter(limits, Clock())
    most = limits.open[ResourceKind.HISTORY]
    for _ in range(most.by_process):
        peers.take(A, ResourceKind.HISTORY)
    with pytest.raises(LimitReached, match=r"^PID 1 has 4 history readers open, which is its limit; end some of them$"):
        peers.take(A, ResourceKind.HISTORY)
    for pid in range(10, 10 + most.by_user - most.by_process):
        peers.take(PeerCredentials(pid, 1000), ResourceKind.HISTORY)
    with pytest.raises(LimitReached, match=r"^user 1000 has 16 history readers"):
        peers.take(B, ResourceKind.HISTORY)
    peers.take(OTHER, ResourceKind.HISTORY)
    peers.release(A, ResourceKind.HISTORY)
    peers.take(B, ResourceKind.HISTORY)


def test_who_asks_for_too_much_waits_and_nobody_else() -> None:
    clock = Clock()
    limits = limits_for(2**20)
    peers = PeerLimiter(limits, clock)
    pace = limits.process_pace
    assert peers.spend(A, pace.burst) == 0
    for work in (100, 1, 400.5, 7):
        clock.seconds += 0.0005  # in which half a token comes back
        assert peers.spend(A, work) == pytest.approx(work / pace.per_second - 0.0005)
        clock.seconds += work / pace.per_second - 0.0005
    for _ in range(100):
        assert peers.spend(A, 1000) <= pace.burst / pace.per_second
    assert peers.spend(B, 1) == 0, "what the first asks for while it waits is not its user's debt"
    clock.seconds += 10
    assert peers.spend(A, 1) == 0


def test_processes_that_are_gone_take_no_memory() -> None:
    clock = Clock()
    peers = PeerLimiter(limits_for(2**20), clock)
    tracemalloc.start()
    try:
        for pid in range(1, 5_000):
            peers.take(PeerCredentials(pid, 1000), ResourceKind.CALL)
            peers.release(PeerCredentials(pid, 1000), ResourceKind.CALL)
            clock.seconds += 1
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 1000 * 1000, "a thousand accounts, and not all of them"


def test_frames_are_weighed_however_they_are_cut() -> None:
    pings = b"".join(frame(6, 0, 0, bytes(8)) for _ in range(10))
    sent = bytes(24) + frame(4, 0, 0) + request(1, "GetSnapshot") + pings + frame(0, 0, 1, bytes(3000))
    sent += request(3, "ListHistory") + frame(3, 0, 3, bytes(4))
    for piece in (1, 7, 9, 10, 64, 4096):
        weight = RequestCost()
        work = sum(weight.cost_of(memoryview(sent[start : start + piece])) for start in range(0, len(sent), piece))
        assert work == pytest.approx(2 * CALL_COST + 15 * FRAME_COST + len(sent) * BYTE_COST)


def test_the_manual_page_tells_the_limits() -> None:
    page = MAN.read_text("utf-8")
    limits = limits_for(2**20)
    for kind in ResourceKind:
        name = {ResourceKind.HISTORY: "calls of ListHistory"}.get(kind, kind.value)
        most = limits.open[kind]
        assert f'.It "{name}" Ta {most.by_process} Ta {most.by_user} Ta {most.together}\n' in page
    text = re.sub(r"\s+", " ", page)
    pace = limits.process_pace
    assert f"may ask for {pace.per_second:.0f} units of work a second and {pace.burst:.0f} at once" in text
    assert limits.user_pace.per_second == 2 * pace.per_second
    assert f"on one connection {MAX_STREAMS} calls" in text
    assert f"A request has at most {MAX_REQUEST_BYTES // 2**20} MiB" in text
    assert f"a report at most {MOST_MODELS} models and {MOST_SUBGRAPHS} subgraphs" in text
