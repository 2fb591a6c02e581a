"""What is told as an event between two snapshots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neurontools.history.events import IDLE_SECONDS, MEMORY_USED_RATIO, STUCK_SECONDS, events_between
from neurontools.model import HbmStack, Snapshot
from neurontools.rpc.convert import to_message
from tests.harness.scenario_host import ScenarioHost


def told(before: Snapshot, after: Snapshot) -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in events_between(to_message(before), to_message(after))]


def test_nothing_is_told_of_the_first_snapshot_and_of_a_quiet_second() -> None:
    host = ScenarioHost("trn1.2xlarge", "steady")
    first, second = host.at(20.0), host.at(21.0)
    assert events_between(None, to_message(first)) == ()
    assert told(first, second) == []


def test_a_device_that_goes_and_comes_back() -> None:
    host = ScenarioHost("trn1.32xlarge", "idle")
    whole = host.at(1.0)
    without = replace(whole, devices=whole.devices[:5] + whole.devices[6:])
    assert told(whole, without) == [("device", "ND 5 is gone")]
    assert told(without, whole) == [("device", "ND 5 is there again")]


def with_stack(snapshot: Snapshot, used_ratio: float) -> Snapshot:
    first, *others = snapshot.devices
    stack = HbmStack(0, 16 * 2**30, int(16 * 2**30 * used_ratio))
    return replace(snapshot, devices=(replace(first, hbm_stacks=(stack, *first.hbm_stacks[1:])), *others))


def test_an_hbm_stack_that_fills_up_is_told_when_it_does() -> None:
    host = ScenarioHost("trn1.2xlarge", "idle")
    below, above, fuller = (with_stack(host.at(at), ratio) for at, ratio in ((1.0, 0.94), (2.0, 0.96), (3.0, 0.97)))
    assert 0.94 < MEMORY_USED_RATIO < 0.96
    assert told(below, above) == [("memory", "ND 0 HBM 0 is nearly full: 96% in use")]
    assert told(above, fuller) == told(above, below) == []


def later(snapshot: Snapshot, seconds: float, clock_moved_seconds: float = 0.0) -> Snapshot:
    """The same so many seconds later, the clock of the host having been set meanwhile."""
    return replace(
        snapshot,
        sequence=snapshot.sequence + 1,
        taken_at_seconds=snapshot.taken_at_seconds + seconds,
        taken_at_unix_seconds=snapshot.taken_at_unix_seconds + seconds + clock_moved_seconds,
    )


@pytest.mark.parametrize(
    ("seconds", "moved_seconds", "text"),
    [
        (1.0, -120.0, "the clock of the host was set back by 2 m 0 s"),
        (1.0, 3600.0, "the clock of the host was set forward by 1 h 0 m"),
        (1.0, -1.5, None),
        (36_000.0, 18.0, None),
        (36_000.0, 40.0, "the clock of the host was set forward by 40.0 s"),
    ],
    ids=["back", "forward", "no step", "slewed for long", "a step after long"],
)
def test_a_clock_that_was_set_is_told(seconds: float, moved_seconds: float, text: str | None) -> None:
    snapshot = ScenarioHost("trn1.2xlarge", "idle").at(20.0)
    found = told(snapshot, later(snapshot, seconds, moved_seconds))
    assert found == ([] if text is None else [("clock", text)])


def test_a_held_core_that_finishes_nothing_is_told_once() -> None:
    host = ScenarioHost("trn1.2xlarge", "steady")
    busy = host.at(20.0)
    last = max(core.last_execution_at_unix_seconds or 0.0 for core in busy.cores)

    def after(seconds: float) -> Snapshot:
        cores = tuple(replace(core, last_execution_at_unix_seconds=last) for core in busy.cores)
        return replace(later(busy, last + seconds - busy.taken_at_unix_seconds), cores=cores)

    found = told(after(IDLE_SECONDS - 1), after(IDLE_SECONDS + 1))
    pids = [core.owner_pid for core in busy.cores]
    assert found == [
        ("idle", f"NC {index} held by PID {pid}: nothing finished for 5 minutes") for index, pid in enumerate(pids)
    ]
    assert told(after(IDLE_SECONDS + 1), after(IDLE_SECONDS + 2)) == []


def test_an_execution_that_does_not_end_is_stuck_and_not_idle() -> None:
    host = ScenarioHost("inf2.xlarge", "steady")
    busy = host.at(20.0)
    first, *others = busy.cores
    started = busy.taken_at_unix_seconds

    def after(seconds: float) -> Snapshot:
        core = replace(first, execution_started_at_unix_seconds=started)
        return replace(later(busy, seconds), cores=(core, *others))

    assert told(after(STUCK_SECONDS - 1), after(STUCK_SECONDS)) == [
        ("stuck", "NC 0 has been in one execution for 30 s")
    ]
    assert [kind for kind, _ in told(after(IDLE_SECONDS - 1), after(IDLE_SECONDS + 1))] == ["idle"]  # of the other core
