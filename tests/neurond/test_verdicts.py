from __future__ import annotations

from dataclasses import replace

import pytest
from neurond.verdicts.judge import Judge
from neurond.verdicts.thresholds import Thresholds

from neurontools import health
from neurontools.health import Kind, Severity
from neurontools.model import (
    Device,
    EccCounters,
    Finding,
    HbmStack,
    Job,
    LatencyHistogram,
    PodAllocation,
    Snapshot,
    SourceKind,
    StatusCounters,
)
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


def test_a_stuck_core_is_one_finding_for_the_whole_job() -> None:
    host = ScenarioHost("trn1.32xlarge", "stuck-core", neuroncores=32)
    host.at(5)
    now = host.at(81)
    found = verdicts(now)
    assert kinds(found) == {0: ["stuck"]}, "nobody is told to end the ranks that wait"
    (stuck,) = found[0].findings
    assert (stuck.severity, stuck.neuroncore_index, stuck.pid) == (Severity.CRITICAL, 0, now.processes[0].pid)
    assert (len(stuck.pids), stuck.job, stuck.synthetic) == (32, "synthetic load stuck-core", True)
    assert stuck.began_at_unix_seconds == host.load._started_at_unix_seconds + 10
    assert health.sentence(stuck, now) == (
        f"31 ranks wait for rank 0, PID {stuck.pid}, in one execution [synthetic] (for 1 m 11 s)"
    )
    assert not found[0].is_healthy


def standing(snapshot: Snapshot, in_flight: set[int], *, since: float, job: Job | None) -> Snapshot:
    """The snapshot with the ranks on these cores in an execution and the others after theirs."""
    at = snapshot.taken_at_unix_seconds - since
    return replace(
        snapshot,
        cores=tuple(
            replace(
                core,
                execution_started_at_unix_seconds=at if core.index in in_flight else None,
                last_execution_at_unix_seconds=at - 1,
            )
            for core in snapshot.cores
        ),
        processes=tuple(
            replace(process, synthetic=False, job=None if job is None else replace(job, rank=rank))
            for rank, process in enumerate(snapshot.processes)
        ),
    )


def test_the_few_are_the_cause() -> None:
    now = ScenarioHost("trn1.32xlarge", neuroncores=8).at(500)
    pids = [process.pid for process in now.processes]
    job = Job("Slurm job 17")

    def told(in_flight: set[int], job: Job | None = job) -> list[tuple[str, tuple[int, ...], str]]:
        judged = Judge().judge(standing(now, in_flight, since=71, job=job)).health
        assert judged is not None
        return [(finding.kind, finding.device_indices, finding.reason) for finding in judged.findings]

    assert told({5}) == [("stuck", (2,), f"7 ranks wait for rank 5, PID {pids[5]}, in one execution")]
    assert told(set(range(8)) - {3}) == [
        ("stuck", (1,), f"7 ranks are in one execution and wait for rank 3, PID {pids[3]}, which executes nothing")
    ]
    assert told(set(range(8))) == [
        ("stuck", (0, 1, 2, 3), "8 ranks of Slurm job 17 are in one execution and none of them finishes")
    ]
    assert told(set()) == []
    alone = told({5}, None)
    assert alone == [("stuck", (2,), f"NeuronCore 5: one execution of PID {pids[5]} runs and does not finish")]


def test_idle_cores_of_a_job_are_one_notice() -> None:
    now = ScenarioHost("trn1.32xlarge", neuroncores=8).at(500)
    judged = Judge().judge(standing(now, set(), since=400, job=Job("pod default/train"))).health
    assert judged is not None
    (idle,) = judged.findings
    assert (idle.kind, idle.severity) == ("idle", Severity.NOTICE)
    assert idle.reason == "NeuronCores 0-7 are held by 8 processes of pod default/train and idle"
    assert idle.action.startswith("end pod default/train if its work is done")


def test_what_all_processes_of_a_job_do_is_said_once() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=32)
    host.at(10)
    found = verdicts(host.at(45, frozen=True))
    assert {tuple(each) for each in kinds(found).values()} == {("stale_report",)}
    (silent,) = {finding for verdict in found for finding in verdict.findings}
    assert silent.reason.endswith("has stopped reporting; so do 31 more of synthetic load steady")
    assert (len(silent.pids), silent.device_indices) == (32, tuple(range(16)))


def status(snapshot: Snapshot, owner: int | None, core: int = 2, **totals: int) -> Snapshot:
    """The snapshot of a driver, with a core that has this owner and these counters."""
    cores = tuple(
        replace(each, owner_pid=owner, status=StatusCounters(**totals)) if each.index == core else each
        for each in snapshot.cores
    )
    processes = tuple(
        replace(snapshot.processes[0], pid=pid, core_indices=(core,), errors=None, executions=None) for pid in (7, 8)
    )
    return replace(snapshot, source=SourceKind.SYSFS, cores=cores, processes=processes)


def test_a_core_that_fails_for_one_process_after_the_other_needs_a_reset() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=1)
    judge = Judge(Thresholds(idle_seconds=None, stuck_seconds=None))

    def needs_reset(second: float, owner: int | None, **totals: int) -> list[str]:
        judged = judge.judge(status(host.at(second), owner, **totals)).health
        assert judged is not None
        return [finding.reason for finding in judged.findings if finding.kind == Kind.NEEDS_RESET]

    assert needs_reset(1, 7, success_total=5, timeout_total=0, hw_dma_abort_error_total=0) == []
    assert needs_reset(2, 7, success_total=5, timeout_total=0, hw_dma_abort_error_total=1) == []
    assert needs_reset(3, None, success_total=5, timeout_total=0, hw_dma_abort_error_total=1) == []
    told = ["NeuronCore 2 has failed for 2 processes in a row (PID 7, 8)"]
    assert needs_reset(4, 8, success_total=5, timeout_total=1, hw_dma_abort_error_total=1) == told, "it hangs now"
    assert needs_reset(5, 8, success_total=5, timeout_total=1, hw_dma_abort_error_total=1) == told
    assert needs_reset(6, 8, success_total=6, timeout_total=1, hw_dma_abort_error_total=1) == [], "it works again"
    assert needs_reset(7, 7, success_total=6, timeout_total=2, hw_dma_abort_error_total=1) == []
    assert needs_reset(8, 8, success_total=6, timeout_total=3, hw_dma_abort_error_total=1) == [], (
        "time-outs alone may have their cause elsewhere"
    )


def test_what_the_kubelet_has_given_and_nobody_holds_is_orphaned() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=3)
    judge = Judge()
    given = (
        PodAllocation("train-0", "ml", "main", neuroncore_indices=(2, 3)),
        PodAllocation("used", "ml", "main", neuroncore_indices=(0, 1)),
        PodAllocation("whole", "ml", "main", device_indices=(4,)),
    )

    def orphans(second: float, given: tuple[PodAllocation, ...] = given) -> list[tuple[tuple[int, ...], str]]:
        judged = judge.judge(replace(host.at(second), pod_allocations=given)).health
        assert judged is not None
        return [(f.device_indices, f.reason) for f in judged.findings if f.kind == Kind.ORPHANED]

    assert orphans(1) == []
    assert orphans(300) == [], "a pod may take a while"
    told = [
        ((1,), "the kubelet has given NeuronCore 3 to pod ml/train-0, container main, where nobody holds it"),
        ((4,), "the kubelet has given NeuronCores 8-9 to pod ml/whole, container main, where nobody holds them"),
    ]
    assert orphans(302) == told
    assert orphans(303, given[:2]) == told[:1]
    assert orphans(304, ()) == []


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


def nearly_full(judge: Judge, *used_percents: int | None) -> list[Finding | None]:
    """What a judge says, second by second, of an HBM stack of which so much is used."""
    now = ScenarioHost("inf2.xlarge").at(1)
    told: list[Finding | None] = []
    for used_percent in used_percents:
        stacks = (HbmStack(0, 100, used_percent), HbmStack(1, 100, 10))
        now = replace(
            with_device(now, 0, replace(now.devices[0], hbm_stacks=stacks)),
            sequence=now.sequence + 1,
            taken_at_seconds=now.taken_at_seconds + 1,
            taken_at_unix_seconds=now.taken_at_unix_seconds + 1,
        )
        health = judge.judge(now).health
        assert health is not None
        found = [finding for finding in health.findings if finding.kind == Kind.MEMORY_NEARLY_FULL]
        assert len(found) <= 1
        told.append(found[0] if found else None)
    return told


def test_memory_that_moves_about_its_threshold_is_one_finding_until_it_is_clearly_less() -> None:
    found = nearly_full(Judge(), 94, 95, 94, 95, 93, 96, 91, 90, 94, 95)
    assert [finding is not None for finding in found] == [False, *[True] * 6, False, False, True]
    assert len({finding.began_at_unix_seconds for finding in found[:8] if finding is not None}) == 1
    first, again = found[1], found[-1]
    assert first is not None
    assert again is not None
    assert again.began_at_unix_seconds > first.began_at_unix_seconds


def test_how_full_memory_is_stays_as_it_was_told_until_it_is_quite_another() -> None:
    found = nearly_full(Judge(), 95, 96, 94, 96, 97, 96, 98, 99)
    assert [finding and finding.reason.split()[3] for finding in found] == ["95%"] * 4 + ["97%"] * 3 + ["99%"]
    assert len({finding and finding.began_at_unix_seconds for finding in found}) == 1


def test_memory_of_which_nothing_is_known_any_more_is_not_nearly_full() -> None:
    judge = Judge()
    assert [finding is not None for finding in nearly_full(judge, 95, None, 94, 95)] == [True, False, False, True]
    judge.change(Thresholds(memory_used_ratio=None))
    assert nearly_full(judge, 100) == [None]
    judge.change(Thresholds(memory_used_ratio=1.0))
    assert [finding is not None for finding in nearly_full(judge, 99, 100, 96, 94)] == [False, True, True, False]


def test_missing_device() -> None:
    now = ScenarioHost("trn1.32xlarge").at(1)
    found = verdicts(with_device(now, 3, None))
    assert kinds(found) == {3: ["device_missing"]}
    assert len(found) == 16


def failing(snapshot: Snapshot, *, age_seconds: float | None, counted: bool = False, **totals: int) -> Snapshot:
    """The snapshot with errors of its only process, which counts since so long ago; None: the driver counts for it."""
    (process,) = snapshot.processes
    assert process.errors is not None
    now_seconds, now_unix_seconds = snapshot.taken_at_seconds, snapshot.taken_at_unix_seconds
    changed = replace(
        process,
        errors=replace(process.errors, **totals),
        counted_since_seconds=now_seconds - age_seconds if counted and age_seconds is not None else None,
        attached_at_unix_seconds=None if age_seconds is None else now_unix_seconds - (1 if counted else age_seconds),
    )
    return replace(snapshot, processes=(changed,))


def test_errors_of_a_process_count_for_its_devices() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=1)
    first = failing(host.at(10), age_seconds=310)
    now = failing(host.at(20), age_seconds=320, numerical_total=3, hardware_total=1)
    assert kinds(verdicts(now, first)) == {0: ["hardware_errors", "numerical_errors"]}
    assert kinds(verdicts(now)) == {}, "nobody knows when they came"
    other = failing(host.at(30), age_seconds=1000)
    assert kinds(verdicts(now, other)) == {}, "another process of the same PID is no past"


@pytest.mark.parametrize("counted", [False, True])
def test_a_process_that_is_younger_than_the_window_is_judged_over_its_life(counted: bool) -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=1)
    now = failing(host.at(400), age_seconds=2, counted=counted, numerical_total=1)
    without = replace(now, sequence=1, taken_at_seconds=now.taken_at_seconds - 300, processes=())
    met = failing(replace(without, processes=now.processes), age_seconds=0, counted=counted)
    for earlier in (None, without, met):
        assert kinds(verdicts(now, earlier)) == {0: ["numerical_errors"]}
    (told,) = {finding.reason for verdict in verdicts(now) for finding in verdict.findings}
    assert told.endswith(": 1 numerical error in the last minutes")
    assert kinds(verdicts(failing(now, age_seconds=301, counted=counted), without)) == {}


def test_errors_that_an_attached_process_had_long_before_a_daemon_met_it_are_no_news() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=1)
    judge = Judge(Thresholds(idle_seconds=None))

    def found(seconds: float, numerical_total: int) -> list[str]:
        now = failing(host.at(seconds), age_seconds=9000 + seconds, counted=True, numerical_total=numerical_total)
        judged = judge.judge(now).health
        assert judged is not None
        return [str(finding.kind) for finding in judged.findings]

    judge.judge(replace(host.at(1), processes=()))  # the daemon has begun anew, and the process has not come back yet
    assert [found(2, 5), found(61, 5), found(62, 5), found(63, 6)] == [[], [], [], ["numerical_errors"]]


def test_errors_that_the_driver_counts_are_those_since_a_process_was_first_seen() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=1)
    empty = replace(host.at(10), processes=())
    now = failing(host.at(20), age_seconds=None, hardware_total=1)
    assert kinds(verdicts(now, empty)) == {0: ["hardware_errors"]}
    assert kinds(verdicts(replace(now, sequence=99), now)) == {}


def test_silent_process() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=1)
    host.at(10)
    now = host.at(45, frozen=True)
    assert not now.processes[0].reporting
    assert kinds(verdicts(now)) == {0: ["stale_report"]}
    assert kinds(verdicts(host.at(30, frozen=True))) == {}


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
