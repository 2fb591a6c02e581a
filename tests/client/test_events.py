"""What is told as an event between two snapshots."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from neurond.verdicts.evidence import HealthThresholds
from neurond.verdicts.rule_evaluator import RuleEvaluator

from neurontools.client.events import EventLog, EventSeverity, HostEvent, events_between
from neurontools.model import EccCounters, Finding, Severity, Snapshot
from neurontools.rpc.convert import to_message
from tests.harness.scenario_host import ScenarioHost


def told(before: Snapshot, after: Snapshot) -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in events_between(to_message(before), to_message(after))]


def test_a_device_that_goes_and_comes_back_is_told_and_a_quiet_second_is_not() -> None:
    host = ScenarioHost("trn1.2xlarge", "steady")
    first, second = host.at(20.0), host.at(21.0)
    assert events_between(None, to_message(first)) == ()
    assert told(first, second) == []
    host = ScenarioHost("trn1.32xlarge", "idle")
    whole = host.at(1.0)
    without = replace(whole, devices=whole.devices[:5] + whole.devices[6:])
    assert told(whole, without) == [("device", "ND 5 is gone")]
    assert told(without, whole) == [("device", "ND 5 is there again")]


@pytest.mark.parametrize(("count", "words"), [(1, ("1 core", "is")), (2, ("2 cores", "are"))])
def test_one_core_is_one_core(count: int, words: tuple[str, str]) -> None:
    busy = ScenarioHost("trn1.2xlarge", "steady").at(20.0)
    holder = replace(busy.processes[0], core_indices=tuple(range(count)), neuroncore_indices=tuple(range(count)))
    free, held = replace(busy, processes=()), replace(busy, processes=(holder,))
    cores, verb = words
    assert [text.partition(", ")[2] for _, text in told(free, held)] == [f"holds {cores}"]
    assert [text.partition(", ")[2] for _, text in told(held, free)] == [f"{cores} {verb} free"]


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


def judged(judge: RuleEvaluator, snapshot: Snapshot) -> Snapshot:
    return judge.evaluate(replace(snapshot, health=None))


def test_what_the_daemon_judges_is_told_when_it_begins_to_and_in_its_words() -> None:
    host = ScenarioHost("trn1.32xlarge", "stuck-core", neuroncores=4)
    judge = RuleEvaluator(HealthThresholds(stuck_seconds=60.0, idle_seconds=20.0))
    begun, at = judged(judge, host.at(10.0)), 10.0
    found: dict[float, list[tuple[str, str]]] = {}
    for _ in range(100):
        at += 1.0
        now = judged(judge, host.at(at))
        if events := told(begun, now):
            found[at] = events
        begun = now
    pids = [process.pid for process in begun.processes]
    assert found == {
        30.0: [("idle", "NeuronCores 1-3 are held by 3 processes of synthetic load stuck-core and idle")],
        70.0: [("stuck", f"3 ranks wait for rank 0, PID {pids[0]}, in one execution")],
    }, "not before the limit of the daemon, and once"


def test_a_burst_is_one_event_and_displaces_no_rare_one() -> None:
    log = EventLog()
    log.add(HostEvent(0.0, "restart", EventSeverity.WARNING, "the daemon was restarted (PID 7)"))
    host, total = ScenarioHost("inf2.24xlarge", "ecc-burst").at(1.0), 0
    first, before = host.devices[3].ecc.mem_corrected_total, to_message(host)
    for second in range(2, 1000):
        devices = tuple(replace(device, ecc=EccCounters(second * second)) for device in host.devices)
        after = to_message(replace(host, devices=devices))
        for event in events_between(before, after):
            log.add(replace(event, at_seconds=float(second + 100 * (second > 500))))
            total += 1
        before = after
    found = log.events()
    assert [event.kind for event in found] == ["restart", *["ecc"] * 12], "each device has one before and one after"
    assert sum(event.times for event in found) == 1 + total
    assert sum(event.quantity for event in found if event.device_index == 3) == 999**2 - (first or 0)
    assert found[-1].text.endswith("corrected HBM ECC errors, 499 times in 8 m 18 s"), found[-1].text
    for number in range(1000):
        log.add(HostEvent(0.0, "warning", EventSeverity.WARNING, f"file {number} can't be read", at_seconds=2000.0))
    assert [event.kind for event in log.events()].count("restart") == 1
    assert len(log.events()) == 1 + 12 + 100


def test_a_finding_of_a_kind_that_is_not_known_here_is_told() -> None:
    snapshot = ScenarioHost("trn1.2xlarge", "idle").at(1.0)
    later_on = Finding(
        "core_tired", Severity.WARNING, "NeuronCore 1 is\ttired", "let it sleep", 1.0, (0,), neuroncore_index=1
    )
    assert snapshot.health is not None
    after = replace(later(snapshot, 1.0), health=replace(snapshot.health, findings=(later_on,)))
    (event,) = events_between(to_message(snapshot), to_message(after))
    assert (event.kind, event.severity, event.device_index, event.core_index) == (
        "finding",
        EventSeverity.WARNING,
        0,
        1,
    )
    assert event.text == "ND 0: NeuronCore 1 is\\x09tired"


def test_without_verdicts_nothing_is_told_that_somebody_would_have_to_judge() -> None:
    host = ScenarioHost("trn1.32xlarge", "stuck-core", neuroncores=4)
    snapshots = [replace(host.at(float(at)), health=None) for at in range(10, 500, 10)]
    kinds = {kind for before, after in pairwise(snapshots) for kind, _ in told(before, after)}
    assert kinds == set()
    unjudged, now = snapshots[-1], host.at(500.0)
    assert now.health is not None
    assert now.health.findings
    assert told(unjudged, now) == [], "when what is found now began is not known"


def test_a_warning_is_told_once_while_only_its_seconds_grow() -> None:
    quiet = ScenarioHost("trn1.2xlarge", "idle").at(5.0)
    texts = [f"the driver has not answered for {seconds} s" for seconds in (1, 2)] + ["another thing"]
    snapshots = [quiet, *(replace(quiet, warnings=(text,)) for text in texts)]
    assert [told(before, after) for before, after in pairwise(snapshots)] == [
        [("warning", texts[0])],
        [],
        [("warning", texts[2])],
    ]
