"""What is told as an event between two snapshots."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from neurond.verdicts.evidence import HealthThresholds
from neurond.verdicts.rule_evaluator import RuleEvaluator

from neurontools.client.events import EventLog, EventSeverity, HostEvent, events_between
from neurontools.model import EccCounters, ErrorCounters, Finding, LoadedModel, Process, Severity, Snapshot
from neurontools.model.finding import FindingKind
from neurontools.rpc.convert import to_message
from tests.harness.scenario_host import ScenarioHost

NO_ERRORS = ErrorCounters()
EVENTS = r"""warning restart None None None the daemon was restarted (PID 99)
warning clock None None None the clock of the host was set forward by 5.0 s
warning error 1 None None PID 1: 1 generic error
warning error 1 None None PID 1: 3 transient errors
warning error 1 None None PID 1: 4 model errors
warning error 1 None None PID 1: 5 runtime errors
critical error 1 None None PID 1: 6 hardware errors
info model 1 None None PID 1 has 3 models loaded, had 1
warning silent 1 None None PID 1 has stopped reporting
info attached 2 None None PID 2 took 2 cores
info attached 6 None None a\x09b (PID 6) attached, holds 1 core
info ended 3 None None PID 3 ended, 1 core is free
info ended 4 None None PID 4 ended, 3 cores are free
critical device None 1 None ND 1 is gone
warning device None 2 None ND 2 is there again
warning device None 3 None ND 3 is there again
warning ecc None 0 None ND 0: 1 corrected HBM ECC error
critical ecc None 0 None ND 0: 2 uncorrected HBM ECC errors
critical ecc None 0 None ND 0: 6 uncorrected SRAM ECC errors
critical ecc None 2 2 ND 2: ecc-repairable\x09
warning device 1 1 4 unhealthy-component\x09
critical error None 2 0 ND 2: core-errors\x09
info reset None 0 1 ND 0: reset-failed\x09
warning reset None 1 2 ND 1: needs-reset\x09
critical stuck None 2 3 ND 2: stuck\x09
info memory None 0 2 ND 0: memory-nearly-full\x09
critical latency None 2 4 ND 2: latency-risen\x09
info idle None 0 0 ND 0: idle\x09
warning orphaned None 1 1 ND 1: orphaned\x09
critical error None 2 2 ND 2: kernel-error\x09
info reset None 0 3 ND 0: was-reset\x09
warning slow rank None 1 4 ND 1: slow-rank\x09
critical waiting for other hosts None 2 0 ND 2: waiting\x09
info finding None 0 1 ND 0: cores-without-model\x09
warning finding None 1 2 ND 1: duplicated-weights\x09
critical finding None 2 3 ND 2: test-failed\x09
info finding None 0 4 ND 0: core-tired
warning warning None None None a file\x09can't be read
"""


def told(before: Snapshot, after: Snapshot) -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in events_between(to_message(before), to_message(after))]


def test_a_quiet_second_has_no_events() -> None:
    host = ScenarioHost("trn1.2xlarge", "steady")
    first, second = host.at(20.0), host.at(21.0)
    assert events_between(None, to_message(first)) == ()
    assert told(first, second) == []


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


def process(pid: int, cores: int, models: int = 0, errors: ErrorCounters = NO_ERRORS, **other: Any) -> Process:
    held, loaded = tuple(range(cores)), (LoadedModel(1, "m", "u", False),) * models
    known = Process(pid, 0, "u", "c", str(pid), "2", 1.0, 1.0, False, 1, held, held, (0,) * bool(cores))
    return replace(known, models=loaded, errors=errors, **other)


def test_each_kind_of_event_with_its_severity_and_place() -> None:
    snapshot = ScenarioHost("trn1.32xlarge", "idle").at(1.0)
    reports: dict[str, Any] = {"measured_at_seconds": 1.0, "reporting": True}
    first, second, third, *others = snapshot.devices
    before = replace(
        snapshot,
        devices=(replace(first, ecc=EccCounters(5, 5, 5, 5, 5)), second, *others[1:]),
        processes=(
            process(1, 2, 1, ErrorCounters(1, 1, 1, 1, 1, 1), **reports),
            process(2, 0),
            process(3, 1),
            process(4, 3),
            process(5, 0),
        ),
        warnings=("the disk is full",),
    )
    kinds = [FindingKind(kind) for kind in FindingKind]
    reasons = [f"{kind.replace('_', '-')}\t" for kind in kinds] + ["core-tired"]
    severities = [Severity.NOTICE, Severity.WARNING, Severity.CRITICAL]
    findings = [
        Finding(
            kind, severities[at % 3], reason, "act", 1.0, (at % 3,), 1 if at == 4 else None, neuroncore_index=at % 5
        )
        for at, (kind, reason) in enumerate(zip([*kinds, "core_tired"], reasons, strict=True))
    ]
    assert snapshot.health is not None
    after = replace(
        before,
        devices=(replace(first, ecc=EccCounters(6, 7, 9, 5, 11)), third, *others),
        processes=(
            process(1, 2, 3, ErrorCounters(2, 1, 4, 5, 6, 7), measured_at_seconds=1.0),
            *(process(2, 2), process(6, 1, tag="a\tb"), process(7, 0)),
        ),
        health=replace(snapshot.health, findings=tuple(findings)),
        warnings=("the disk is full", "a file\tcan't be read"),
        daemon_pid=99,
        taken_at_unix_seconds=snapshot.taken_at_unix_seconds + 5,
    )
    events = events_between(to_message(before), to_message(after))
    assert {event.at_unix_seconds for event in events} == {after.taken_at_unix_seconds}
    found = [(e.severity.value, e.kind, e.pid, e.device_index, e.core_index, e.text) for e in events]
    assert "\n".join(" ".join(map(str, each)) for each in found).splitlines() == EVENTS.splitlines()
    folded = EventLog()
    for at_seconds, event in enumerate(each for _ in range(2) for each in events):
        folded.add(replace(event, at_seconds=float(at_seconds)))
    assert {event.times for event in folded.events()} == {2}


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
