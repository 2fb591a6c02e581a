"""A host under two names is one row, and that is said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from neurontools.fleet.direct_feed import DirectFeed
from neurontools.fleet.hosts import Place, Reach
from neurontools.fleet.same_host import once_each
from neurontools.fleet.states import HostState
from neurontools.model import SourceKind
from neurontools.testing import DriverTree
from tests.harness.fleet import live, lost
from tests.harness.running_daemon import StartDaemon
from tests.harness.snapshots import snapshot_of
from tests.harness.waiting import HANG_SECONDS

REAL = replace(snapshot_of("trn1.2xlarge"), source=SourceKind.SYSFS)


def told(name: str, booted: float, **changes: object) -> HostState:
    """A real host that was booted then, an hour later."""
    clocks = {"taken_at_unix_seconds": booted + 3600, "taken_at_seconds": 3600.0, "host_name": "trn-1"}
    return live(name, REAL, 100.0, **(clocks | changes))


def names(states: list[HostState]) -> list[str]:
    return [state.place.name for state in once_each(states)[0]]


def test_one_host_is_told_by_its_name_and_when_it_was_booted() -> None:
    later = told("b", 1e9, taken_at_unix_seconds=1e9 + 3605.0003, taken_at_seconds=3605.0)
    states = [told("a", 1e9), later, told("other boot", 1e9 + 2), told("other name", 1e9, host_name="trn-2")]
    assert names(states) == ["a", "other boot", "other name"]
    assert once_each(states)[1] == ("b is the same host as a: one row",)
    assert names([told("a", 1e9), lost("b", "gone", told("b", 1e9))]) == ["a", "b"], (
        "of one that is lost nothing is known"
    )


def test_simulated_hosts_are_many_on_one_host() -> None:
    assert names([told(name, 1e9, source=SourceKind.SIMULATED) for name in "ab"]) == ["a", "b"]


def test_by_prometheus_the_instance_tells() -> None:
    known = {"taken_at_seconds": None, "source": None}
    states = [told(name, 1e9, host_name=name, instance_id="i-1", **known) for name in "abcde"]
    states += [told(name, 1e9, instance_id=None, **known) for name in ("f", "g")]
    assert names(states) == ["a", "f", "g"]
    assert once_each(states)[1][-1] == "and 1 more hosts are named twice"


@pytest.fixture
def tree() -> Iterator[DriverTree]:
    with DriverTree("trn1.2xlarge") as tree:
        yield tree


def test_a_daemon_at_two_sockets_is_one_host(
    tree: DriverTree, start_daemon: StartDaemon, socket_directory: Path
) -> None:
    daemon = start_daemon(*tree.flags, "--interval", "0.2")
    second = socket_directory / "second.sock"
    second.symlink_to(daemon.socket)
    places = [Place("a", Reach.SOCKET, daemon.socket), Place("b", Reach.SOCKET, str(second))]
    with DirectFeed(places, 0.2) as feed:
        feed.start()
        assert feed.wait_settled(HANG_SECONDS)
        assert [state.place.name for state in feed.states] == ["a"]
        assert feed.notes == ("b is the same host as a: one row",)
