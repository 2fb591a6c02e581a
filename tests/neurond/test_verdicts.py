from __future__ import annotations

from dataclasses import replace

import pytest
from neurond.verdicts.judge import Judge
from neurond.verdicts.thresholds import Thresholds

from neurontools import health
from neurontools.health import Kind, Severity
from neurontools.model import Device, EccCounters, HbmStack, LatencyHistogram, Snapshot
from tests.harness.judged import verdicts
from tests.harness.scenario_host import ScenarioHost


def kinds(found: tuple[health.Verdict, ...]) -> dict[int, list[str]]:
    return {
        verdict.device_index: [str(finding.kind) for finding in verdict.findings]
        for verdict in found
        if verdict.findings
    }


def with_device(snapshot: Snapshot, index: int, device: Device | None) -> Snapshot:
    devices = [each if each.index != index else device for each in snapshot.devices]
    return replace(snapshot, devices=tuple(each for each in devices if each is not None))


def test_steady_host_is_well() -> None:
    host = ScenarioHost("trn1.32xlarge")
    earlier = host.at(60)
    found = verdicts(host.at(120), earlier)
    assert [verdict.device_index for verdict in found] == list(range(16))
    assert all(verdict.severity is Severity.OK and verdict.is_healthy for verdict in found)
    assert health.is_healthy(found)


def test_stuck_core_is_critical_and_its_waiting_peers_are_idle() -> None:
    host = ScenarioHost("trn1.32xlarge", "stuck-core", neuroncores=4)
    host.at(5)
    found = verdicts(host.at(400))
    assert kinds(found) == {0: ["stuck", "idle"], 1: ["idle", "idle"]}
    stuck = found[0].findings[0]
    assert (stuck.severity, stuck.neuroncore_index) == (Severity.CRITICAL, 0)
    assert stuck.began_at_unix_seconds == host.load._started_at_unix_seconds + 10
    assert "(for 6 m 30 s)" in health.sentence(stuck, host.at(400))
    assert not found[0].is_healthy
    assert found[1].is_healthy, "idle is a notice"
    assert found[1].severity is Severity.NOTICE


def test_growth_needs_an_earlier_snapshot() -> None:
    host = ScenarioHost("trn1.32xlarge", "ecc-burst")
    earlier = host.at(5)
    now = host.at(16)
    assert "ecc_corrected" not in {kind for found in kinds(verdicts(now)).values() for kind in found}
    assert "ecc_corrected" in {kind for found in kinds(verdicts(now, earlier)).values() for kind in found}


@pytest.mark.parametrize(
    ("ecc", "kind", "severity"),
    [
        (EccCounters(0, 1, 0, 0, 0), Kind.ECC_UNCORRECTED, Severity.CRITICAL),
        (EccCounters(0, 0, 0, 0, 2), Kind.ECC_UNCORRECTED, Severity.CRITICAL),
        (EccCounters(0, 0, 1, 0, 0), Kind.ECC_REPAIRABLE, Severity.WARNING),
        (EccCounters(None, None, None, None, None), None, Severity.OK),
    ],
)
def test_uncorrected_ecc(ecc: EccCounters, kind: Kind | None, severity: Severity) -> None:
    now = ScenarioHost("inf2.xlarge").at(1)
    (verdict,) = verdicts(with_device(now, 0, replace(now.devices[0], ecc=ecc)))
    assert [finding.kind for finding in verdict.findings] == ([kind] if kind else [])
    assert verdict.severity is severity


def test_memory_near_full_of_one_stack() -> None:
    now = ScenarioHost("inf2.xlarge").at(1)
    stacks = (HbmStack(0, 100, 95), HbmStack(1, 100, 94))
    (verdict,) = verdicts(with_device(now, 0, replace(now.devices[0], hbm_stacks=stacks)))
    assert [finding.reason for finding in verdict.findings] == ["HBM 0 is 95% full, of 100 B"]
    unknown = with_device(now, 0, replace(now.devices[0], hbm_stacks=(HbmStack(0, 100, None),)))
    assert health.is_healthy(verdicts(unknown))


def test_missing_device() -> None:
    now = ScenarioHost("trn1.32xlarge").at(1)
    found = verdicts(with_device(now, 3, None))
    assert kinds(found) == {3: ["device_missing"]}
    assert len(found) == 16


def test_errors_of_a_process_count_for_its_devices() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=3)
    earlier, now = host.at(10), host.at(20)
    first, second, third = now.processes
    assert third.errors is not None
    errors = replace(third.errors, numerical_total=3, hardware_total=1)
    now = replace(now, processes=(first, second, replace(third, errors=errors)))
    assert kinds(verdicts(now, earlier)) == {1: ["hardware_errors", "numerical_errors"]}
    assert kinds(verdicts(now)) == {}
    other = replace(earlier, processes=tuple(replace(p, attached_at_unix_seconds=1.0) for p in earlier.processes))
    assert kinds(verdicts(now, other)) == {}, "another process of the same PID is no past"


def test_silent_process() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=1)
    host.at(10)
    now = host.at(45, frozen=True)
    assert not now.processes[0].reporting
    assert kinds(verdicts(now)) == {0: ["stale_report"]}
    assert kinds(verdicts(host.at(30, frozen=True))) == {}


def test_risen_latency() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=1)
    earlier = host.at(10)
    (rank,) = host.load._ranks.values()
    for _ in range(40):
        rank.execute(11, 0.25, 0.9, 0.1)
    found = verdicts(host.at(10.25), earlier)
    assert kinds(found) == {0: ["latency_risen"]}
    assert "rose from 50." in found[0].findings[0].reason


def test_latency_of_a_reporter_that_began_anew_is_not_judged() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=1)
    earlier, now = host.at(10), host.at(11)
    for histogram in (LatencyHistogram(), LatencyHistogram((900,), (1,))):
        anew = replace(now.processes[0], device_latency_histogram=histogram)
        assert kinds(verdicts(replace(now, processes=(anew,)), earlier)) == {}


@pytest.mark.parametrize("name", ["stuck_seconds", "idle_seconds"])
def test_none_switches_a_check_off(name: str) -> None:
    host = ScenarioHost("trn1.32xlarge", "stuck-core", neuroncores=4)
    host.at(5)
    limits = replace(Thresholds(), **{name: None})  # type: ignore[arg-type]
    found = {kind for each in kinds(verdicts(host.at(400), None, limits)).values() for kind in each}
    assert found == {"stuck", "idle"} - {name.removesuffix("_seconds")}


def test_every_sentence_fits_a_line() -> None:
    host = ScenarioHost("trn1.32xlarge", "stuck-core", neuroncores=4)
    earlier = host.at(5)
    for verdict in verdicts(host.at(400), earlier):
        for finding in verdict.findings:
            for sentence in (finding.reason, finding.action):
                assert "\n" not in sentence
                assert not sentence.endswith(".")


def test_a_finding_begins_when_it_is_first_seen_and_ends_with_its_cause() -> None:
    host = ScenarioHost("trn1.32xlarge")
    judge = Judge()
    sick = EccCounters(0, 1, 0, 0, 0)

    def began(seconds: float, ecc: EccCounters) -> list[float]:
        now = host.at(seconds)
        found = judge.judge(with_device(now, 3, replace(now.devices[3], ecc=ecc))).health
        assert found is not None
        return [finding.began_at_unix_seconds - host.load._started_at_unix_seconds for finding in found.findings]

    well = EccCounters(0, 0, 0, 0, 0)
    assert [began(1, well), began(2, sick), began(3, sick), began(4, replace(sick, mem_uncorrected_total=2))] == [
        [],
        [2.0],
        [2.0],
        [2.0],
    ]
    assert [began(5, well), began(6, sick)] == [[], [6.0]], "what comes again begins again"


def test_between_two_ticks_nothing_is_said_of_processes_that_have_ended() -> None:
    host = ScenarioHost("trn1.32xlarge", "stuck-core", neuroncores=2)
    judge = Judge(Thresholds(stuck_seconds=5))
    host.at(5)
    now = judge.judge(host.at(20))
    assert kinds(health.verdicts(now)) == {0: ["stuck"]}
    assert judge.carry(replace(now, health=None)).health == now.health
    assert kinds(health.verdicts(judge.carry(replace(now, processes=now.processes[1:])))) == {}


def test_what_nobody_has_judged_is_not_known_to_be_well() -> None:
    now = replace(ScenarioHost("trn1.32xlarge").at(1), health=None)
    found = health.verdicts(now)
    assert [(verdict.severity, verdict.is_healthy) for verdict in found] == [(None, None)] * 16
    assert health.is_healthy(found) is None
    assert health.summary(found, now) == "health of 16 of 16 devices not known: neurond 0.0.0 makes no verdicts"
