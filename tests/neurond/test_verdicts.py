"""Verdicts on devices, processes and jobs, and on ranks that hold up their job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from neurond.snapshots.rates import LEAST_STEPS, RateCalculator
from neurond.verdicts.evidence import HealthThresholds, process_identity
from neurond.verdicts.rule_evaluator import RuleEvaluator

from neurontools.faults.kinds import KINDS
from neurontools.model import (
    Device,
    EccCounters,
    Finding,
    HbmStack,
    Job,
    LatencyHistogram,
    NeuronCore,
    PodAllocation,
    Process,
    Snapshot,
    SourceKind,
    StatusCounters,
    TrainingCounters,
    health,
)
from neurontools.model.finding import FindingKind, Severity
from tests.harness.scenario_host import STARTED_AT_UNIX_SECONDS, ScenarioHost
from tests.harness.snapshots import rank_of, snapshot_of


def findings(judge: RuleEvaluator, snapshot: Snapshot, *kinds: str) -> list[Finding]:
    """What this judge finds in the next snapshot, of these kinds or of all."""
    judged = judge.evaluate(snapshot).health
    assert judged is not None
    return [finding for finding in judged.findings if not kinds or finding.kind in kinds]


def verdicts(
    snapshot: Snapshot, earlier: Snapshot | None = None, limits: HealthThresholds | None = None
) -> tuple[health.Verdict, ...]:
    """The verdicts of a daemon that had seen the earlier snapshot too."""
    judge = RuleEvaluator(limits)
    if earlier is not None:
        judge.evaluate(earlier)
    return health.verdicts(judge.evaluate(snapshot))


def kinds(found: tuple[health.Verdict, ...]) -> dict[int | None, list[str]]:
    return {
        verdict.device_index: [str(finding.kind) for finding in verdict.findings]
        for verdict in found
        if verdict.findings
    }


def with_device(snapshot: Snapshot, index: int, device: Device | None) -> Snapshot:
    devices = [each if each.index != index else device for each in snapshot.devices]
    return replace(snapshot, devices=tuple(each for each in devices if each is not None))


def test_a_steady_host_is_healthy_and_one_with_a_device_missing_is_not() -> None:
    host = ScenarioHost("trn1.32xlarge")
    earlier, now = host.at(60), host.at(120)
    found = verdicts(now, earlier)
    assert [verdict.device_index for verdict in found] == list(range(16))
    assert all(verdict.severity is Severity.OK and verdict.is_healthy for verdict in found)
    assert health.is_healthy(found)
    assert health.is_healthy(health.verdicts(replace(now, health=None))) is None
    found = verdicts(with_device(now, 3, None))
    assert kinds(found) == {3: ["device_missing"]}
    assert len(found) == 16


def test_a_stuck_core_is_one_finding_for_the_whole_job() -> None:
    host = ScenarioHost("trn1.32xlarge", "stuck-core", neuroncores=32)
    host.at(5)
    now = host.at(81)
    found = verdicts(now)
    assert kinds(found) == {0: ["stuck"]}, "nobody is told to end the ranks that wait"
    (stuck,) = found[0].findings
    assert (stuck.severity, stuck.neuroncore_index, stuck.pid) == (Severity.CRITICAL, 0, now.processes[0].pid)
    assert (len(stuck.pids), stuck.job, stuck.synthetic) == (32, "synthetic load stuck-core", True)
    assert stuck.began_at_unix_seconds == STARTED_AT_UNIX_SECONDS + 10
    assert health.sentence(stuck, now) == (
        f"31 ranks wait for rank 0, PID {stuck.pid}, in one execution [synthetic] (for 1 m 11 s)"
    )
    assert not found[0].is_healthy


@pytest.mark.parametrize("name", ["stuck_seconds", "idle_seconds"])
def test_none_switches_a_check_off(name: str) -> None:
    host = ScenarioHost("trn1.32xlarge", "stuck-core", neuroncores=4)
    host.at(5)
    limits = replace(HealthThresholds(), **{name: None})  # type: ignore[arg-type]
    found = {kind for each in kinds(verdicts(host.at(400), None, limits)).values() for kind in each}
    assert found == {"stuck", "idle"} - {name.removesuffix("_seconds")}


def test_the_minority_of_a_job_is_the_cause_and_idle_ranks_are_one_notice() -> None:
    now = ScenarioHost("trn1.32xlarge", neuroncores=8).at(500)
    pids = [process.pid for process in now.processes]

    def found(in_flight: set[int], job: Job | None, since: float = 71) -> list[Finding]:
        """With the ranks on these cores in an execution and the others after theirs."""
        at = now.taken_at_unix_seconds - since
        cores = tuple(
            replace(
                core,
                execution_started_at_unix_seconds=at if core.index in in_flight else None,
                last_execution_at_unix_seconds=at - 1,
            )
            for core in now.cores
        )
        processes = tuple(
            replace(process, synthetic=False, job=None if job is None else replace(job, rank=rank))
            for rank, process in enumerate(now.processes)
        )
        return findings(RuleEvaluator(), replace(now, cores=cores, processes=processes))

    job = Job("Slurm job 17")
    for in_flight, of, devices, reason in (
        ({5}, job, (2,), f"7 ranks wait for rank 5, PID {pids[5]}, in one execution"),
        (
            set(range(8)) - {3},
            job,
            (1,),
            f"7 ranks are in one execution and wait for rank 3, PID {pids[3]}, which executes nothing",
        ),
        (set(range(8)), job, (0, 1, 2, 3), "8 ranks of Slurm job 17 are in one execution and none of them finishes"),
        ({5}, None, (2,), f"NeuronCore 5: one execution of PID {pids[5]} runs and does not finish"),
    ):
        (one,) = found(in_flight, of)
        assert (one.kind, one.device_indices, one.reason) == ("stuck", devices, reason)
    assert found(set(), job) == []
    (idle,) = found(set(), Job("pod default/train"), since=400)
    assert (idle.kind, idle.severity) == ("idle", Severity.NOTICE)
    assert idle.reason == "NeuronCores 0-7 are held by 8 processes of pod default/train and idle"
    assert idle.action.startswith("end pod default/train if its work is done")


def test_silent_processes_of_a_job_are_one_finding() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=32)
    host.at(10)
    assert kinds(verdicts(host.at(24, frozen=True))) == {}
    found = verdicts(host.at(10 + (KINDS["reports-lost"].found_within_seconds or 0), frozen=True))
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
    judge = RuleEvaluator(HealthThresholds(idle_seconds=None, stuck_seconds=None))
    told = ["NeuronCore 2 has failed for 2 processes in a row (PID 7, 8)"]
    for second, owner, successes, timeouts, aborts, reasons in (
        (1, 7, 5, 0, 0, []),
        (2, 7, 5, 0, 1, []),
        (3, None, 5, 0, 1, []),
        (4, 8, 5, 1, 1, told),  # it hangs now
        (5, 8, 5, 1, 1, told),
        (6, 8, 6, 1, 1, []),  # it works again
        (7, 7, 6, 2, 1, []),
        (8, 8, 6, 3, 1, []),  # time-outs alone may have their cause elsewhere
    ):
        now = status(
            host.at(second), owner, success_total=successes, timeout_total=timeouts, hw_dma_abort_error_total=aborts
        )
        assert [finding.reason for finding in findings(judge, now, FindingKind.NEEDS_RESET)] == reasons, second


def test_cores_that_the_kubelet_has_given_and_nobody_holds_are_orphaned() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=3)
    judge = RuleEvaluator()
    given = (
        PodAllocation("train-0", "ml", "main", neuroncore_indices=(2, 3)),
        PodAllocation("used", "ml", "main", neuroncore_indices=(0, 1)),
        PodAllocation("whole", "ml", "main", device_indices=(4,)),
    )

    def orphans(second: float, given: tuple[PodAllocation, ...] = given) -> list[tuple[tuple[int, ...], str]]:
        found = findings(judge, replace(host.at(second), pod_allocations=given), FindingKind.ORPHANED)
        return [(finding.device_indices, finding.reason) for finding in found]

    assert orphans(1) == []
    assert orphans(300) == [], "a pod may take a while"
    told = [
        ((1,), "the kubelet has given NeuronCore 3 to pod ml/train-0, container main, where no process holds it"),
        ((4,), "the kubelet has given NeuronCores 8-9 to pod ml/whole, container main, where no process holds them"),
    ]
    assert orphans(302) == told
    assert orphans(303, given[:2]) == told[:1]
    assert orphans(304, ()) == []


@pytest.mark.parametrize(
    ("ecc", "kind", "severity"),
    [
        (EccCounters(0, 1, 0, 0, 0), FindingKind.ECC_UNCORRECTED, Severity.CRITICAL),
        (EccCounters(0, 0, 0, 0, 2), FindingKind.ECC_UNCORRECTED, Severity.CRITICAL),
        (EccCounters(0, 0, 1, 0, 0), FindingKind.ECC_REPAIRABLE, Severity.WARNING),
        (EccCounters(None, None, None, None, None), None, Severity.OK),
    ],
)
def test_uncorrected_ecc(ecc: EccCounters, kind: FindingKind | None, severity: Severity) -> None:
    now = ScenarioHost("inf2.xlarge").at(1)
    (verdict,) = verdicts(with_device(now, 0, replace(now.devices[0], ecc=ecc)))
    assert [finding.kind for finding in verdict.findings] == ([kind] if kind else [])
    assert verdict.severity is severity


def test_growth_needs_an_earlier_snapshot() -> None:
    host = ScenarioHost("trn1.32xlarge", "ecc-burst")
    earlier, now = host.at(5), host.at(16)
    for before, grows in ((None, False), (earlier, True)):
        assert ("ecc_corrected" in {kind for found in kinds(verdicts(now, before)).values() for kind in found}) is grows


def nearly_full(judge: RuleEvaluator, *used_percents: int | None) -> list[Finding | None]:
    """What a judge says, second by second, of an HBM stack of which so much is used."""
    now = ScenarioHost("inf2.xlarge").at(1)
    told: list[Finding | None] = []
    for used_percent in used_percents:
        stacks = (HbmStack(0, 100, used_percent), HbmStack(1, 100, 94))
        now = replace(
            with_device(now, 0, replace(now.devices[0], hbm_stacks=stacks)),
            sequence=now.sequence + 1,
            taken_at_seconds=now.taken_at_seconds + 1,
            taken_at_unix_seconds=now.taken_at_unix_seconds + 1,
        )
        (*found,) = findings(judge, now, FindingKind.MEMORY_NEARLY_FULL)
        assert len(found) <= 1
        told.append(found[0] if found else None)
    return told


def test_memory_near_its_threshold_is_one_finding_until_it_is_clearly_less() -> None:
    found = nearly_full(RuleEvaluator(), 94, 95, 94, 95, 93, 96, 91, 90, 94, 95)
    assert [finding is not None for finding in found] == [False, *[True] * 6, False, False, True]
    assert len({finding.began_at_unix_seconds for finding in found[:8] if finding is not None}) == 1
    first, again = found[1], found[-1]
    assert first is not None
    assert again is not None
    assert first.reason == "HBM 0 is 95% full, of 100 B"
    assert again.began_at_unix_seconds > first.began_at_unix_seconds
    found = nearly_full(RuleEvaluator(), 95, 96, 94, 96, 97, 96, 98, 99)
    assert [finding and finding.reason.split()[3] for finding in found] == ["95%"] * 4 + ["97%"] * 3 + ["99%"]
    assert len({finding and finding.began_at_unix_seconds for finding in found}) == 1, "the text stays for a while"


def test_memory_that_is_unknown_is_not_nearly_full() -> None:
    judge = RuleEvaluator()
    assert [finding is not None for finding in nearly_full(judge, 95, None, 94, 95)] == [True, False, False, True]
    judge.limits = HealthThresholds(memory_used_ratio=None)
    assert nearly_full(judge, 100) == [None]
    judge.limits = HealthThresholds(memory_used_ratio=1.0)
    assert [finding is not None for finding in nearly_full(judge, 99, 100, 96, 94)] == [False, True, True, False]


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
    empty = replace(host.at(40), processes=())
    by_driver = failing(host.at(50), age_seconds=None, hardware_total=1)
    assert kinds(verdicts(by_driver, empty)) == {0: ["hardware_errors"]}
    assert kinds(verdicts(replace(by_driver, sequence=99), by_driver)) == {}, "since it was first seen"


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


def test_errors_from_long_before_the_daemon_started_are_no_news() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=1)
    judge = RuleEvaluator(HealthThresholds(idle_seconds=None))
    judge.evaluate(replace(host.at(1), processes=()))  # the process has not come back yet
    for seconds, numerical_total, found in ((2, 5, []), (61, 5, []), (62, 5, []), (63, 6, ["numerical_errors"])):
        now = failing(host.at(seconds), age_seconds=9000 + seconds, counted=True, numerical_total=numerical_total)
        assert [finding.kind for finding in findings(judge, now)] == found


def test_failed_executions_warn_while_they_are_recent_or_until_they_are_healed() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=2)
    judge = RuleEvaluator(HealthThresholds(idle_seconds=None))

    def failed(seconds: float, timeouts: int, *, ended: bool = False) -> list[tuple[str, str | None, int | None]]:
        """Kind, part and core of the findings at this time, of which one execution met a hardware error."""
        now = host.at(seconds)
        process, other = now.processes
        assert process.errors is not None
        assert process.executions is not None
        process = replace(
            process,
            errors=replace(process.errors, hardware_total=1),
            executions=replace(process.executions, timed_out_total=timeouts, completed_with_err_total=3),
        )
        processes = (other,) if ended else (process, other)
        judged = judge.evaluate(replace(now, processes=processes), [process] if ended else ()).health
        assert judged is not None
        assert all(finding.device_indices == (0,) for finding in judged.findings)
        return [(finding.kind, finding.part, finding.neuroncore_index) for finding in judged.findings]

    judge.evaluate(host.at(1))
    hardware, timeout = ("hardware_errors", None, 0), ("failed_executions", "timeout", 0)
    assert failed(2, 1) == [hardware, timeout, ("failed_executions", None, 0)]
    pid, attached_at = host.at(2).processes[0].pid, STARTED_AT_UNIX_SECONDS
    judge.mark_healed({(pid, attached_at): False}, host.at(3).taken_at_seconds)
    assert failed(3, 2) == [], "its next report may tell of what was before"
    assert failed(4, 2) == []
    assert failed(5, 3) == [timeout]
    assert failed(6, 4, ended=True) == [timeout], "why it has ended"
    last = replace(host.at(7), processes=())
    assert [finding.reason for finding in findings(judge, last)] == [
        f"PID {pid}: 2 timed-out executions in the last minutes"
    ]
    judge.mark_healed({(pid, attached_at): False}, last.taken_at_seconds)
    assert findings(judge, replace(host.at(8), processes=())) == []


@pytest.mark.parametrize("is_corrupted", [False, True])
def test_numerical_errors_that_a_healed_fault_left_in_the_weights_stay_marked(is_corrupted: bool) -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=1)
    judge = RuleEvaluator(HealthThresholds(idle_seconds=None))
    judge.evaluate(host.at(1))
    (process,) = host.at(2).processes
    judge.mark_healed({process_identity(process): is_corrupted}, host.at(2).taken_at_seconds)
    for seconds, numerical_total, found in ((3, 5, []), (4, 6, [("numerical_errors", is_corrupted)])):
        (process,) = (now := host.at(seconds)).processes
        assert process.errors is not None
        process = replace(process, errors=replace(process.errors, numerical_total=numerical_total))
        told = findings(judge, replace(now, processes=(process,)))
        assert [(finding.kind, finding.injected) for finding in told] == found


def test_errors_of_an_ended_process_are_forgotten_after_the_window() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=1)
    judge = RuleEvaluator()
    (process,) = failing(host.at(10), age_seconds=9, counted=True, hardware_total=1).processes
    for seconds, ended, count in ((11, [process], 1), (300, [], 1), (312, [], 0)):
        judged = judge.evaluate(replace(host.at(seconds), processes=()), ended).health
        assert judged is not None
        assert len(judged.findings) == count


def test_latency_of_a_reporter_that_began_anew_is_not_judged() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=1)
    earlier, now = host.at(10), host.at(11)
    for histogram in (LatencyHistogram(), LatencyHistogram((900,), (1,))):
        anew = replace(now.processes[0], device_latency_histogram=histogram)
        assert kinds(verdicts(replace(now, processes=(anew,)), earlier)) == {}


def test_a_finding_begins_when_it_is_first_seen_and_ends_with_its_cause() -> None:
    host = ScenarioHost("trn1.32xlarge")
    judge = RuleEvaluator()
    for second, uncorrected, began in ((1, 0, []), (2, 1, [2]), (3, 1, [2]), (4, 2, [2]), (5, 0, []), (6, 1, [6])):
        now = host.at(second)
        ecc = EccCounters(0, uncorrected, 0, 0, 0)
        found = findings(judge, with_device(now, 3, replace(now.devices[3], ecc=ecc)))
        assert [finding.began_at_unix_seconds - STARTED_AT_UNIX_SECONDS for finding in found] == began


def test_between_two_ticks_nothing_is_said_of_processes_that_have_ended() -> None:
    host = ScenarioHost("trn1.32xlarge", "stuck-core", neuroncores=2)
    judge = RuleEvaluator(HealthThresholds(stuck_seconds=5))
    host.at(5)
    now = judge.evaluate(host.at(20))
    assert kinds(health.verdicts(now)) == {0: ["stuck"]}
    assert judge.carry_over(replace(now, health=None)).health == now.health
    assert kinds(health.verdicts(judge.carry_over(replace(now, processes=now.processes[1:])))) == {}


WAITS = (0.4, 0.1, 0.4, 0.4)  # seconds a step
FIRST = 2


class Host:
    """Rates and verdicts as the daemon has them, of ranks in step."""

    def __init__(self, world_size: int = 4) -> None:
        self._rates, self._judge = RateCalculator(), RuleEvaluator()
        self._world_size = world_size
        self._waited = dict.fromkeys(range(4), 0.0)
        self._steps = 0

    def slow(self, steps: int, waits: tuple[float, ...] = WAITS, attached_at: float = 5.0) -> list[Finding]:
        """The findings after so many steps, since the last time with these waits each."""
        for number, wait in enumerate(waits):
            self._waited[number] += wait * (steps - self._steps)
        self._steps = steps
        ranks = [self._rank(number, attached_at) for number in range(len(waits))]
        snapshot = replace(snapshot_of("trn1.32xlarge", ranks), sequence=steps + 1, taken_at_seconds=float(steps))
        return findings(self._judge, self._rates.derive(snapshot, processes_read=True), FindingKind.SLOW_RANK)

    def _rank(self, number: int, attached_at: float) -> Process:
        """A rank that spends what it does not wait of each second's step on its loader."""
        waited = self._waited[number]
        return rank_of(
            number,
            Job("Slurm job 7", number, self._world_size),
            measured_at_seconds=float(self._steps),
            attached_at_unix_seconds=attached_at,
            training=TrainingCounters(
                steps_total=self._steps,
                collective_wait_seconds_total=waited,
                input_wait_seconds_total=self._steps - waited,
                host_seconds_total=0.0,
            ),
        )


def test_a_rank_that_holds_up_the_others_twice_in_a_row_is_named_for_as_long_as_it_does() -> None:
    host = Host()
    assert host.slow(FIRST) == host.slow(FIRST + LEAST_STEPS) == []
    (found,) = host.slow(FIRST + 2 * LEAST_STEPS)
    assert (found.pid, found.part, found.job, found.severity) == (101, "input wait", "Slurm job 7", Severity.NOTICE)
    assert found.pids == (100, 101, 102, 103)
    assert found.reason == (
        "the ranks of Slurm job 7 wait for rank 1, PID 101, which takes longer in input wait: "
        "without it each step would be at least a fifth shorter"
    )
    assert found.action.startswith("its loader is slower")
    assert len(host.slow(19)) == 1, "until there are new steps to judge by"
    host.slow(20)
    assert host.slow(28, (0.4,) * 4) == []


def test_other_ranks_of_the_same_name_begin_anew() -> None:
    anew, fewer = Host(), Host()
    for steps in (2, 10):
        anew.slow(steps)
        fewer.slow(steps)
    assert [len(anew.slow(steps, attached_at=7.0)) for steps in (18, 26, 34)] == [0, 0, 1]
    assert fewer.slow(18, WAITS[:3]) == [], "the slow one may be the rank that nobody sees"
    chance, several = Host(), Host(world_size=8)
    seldom = ((2, WAITS), (10, WAITS), (18, (0.3, 0.35, 0.4, 0.4)), (26, (0.1, 0.4, 0.4, 0.4)))
    assert [chance.slow(*each) for each in seldom] == [[], [], [], []], "once is chance"
    assert [several.slow(steps) for steps in (2, 10, 18, 26)] == [[], [], [], []], "no host tells alone"


NOW, UNIX = 1000.0, 1.7e9
JOB = "torchrun exp1"


def rank(number: int, *, world: int = 4, reporting: bool = True, vcpu: float = 0.0, **counters: object) -> Process:
    """A rank whose steps take a second, the latest one 70 s ago; without more it is in no collective."""
    told = TrainingCounters(
        steps_total=100, collectives_total=411, latest_collective="all_reduce", last_step_at_seconds=NOW - 70.0
    )
    return rank_of(
        number,
        Job(JOB, number, world),
        device_indices=(number // 2,),
        reporting=reporting,
        measured_at_seconds=NOW if reporting else NOW - 60.0,
        counted_since_seconds=NOW - 170.0,
        vcpu_user_ratio=vcpu,
        training=replace(told, **counters),  # type: ignore[arg-type]
    )


def waiting(number: int, seconds: float = 69.0, **counters: object) -> Process:
    return rank(number, collective_since_seconds=NOW - seconds, **counters)  # type: ignore[arg-type]


def found(*ranks: Process, cores: dict[int, float] | None = None, limit: float | None = 60.0) -> list[Finding]:
    """The findings; `cores` says how many seconds ago the execution began that is in flight on a core."""
    empty = snapshot_of("trn1.32xlarge", list(ranks))

    def core(each: NeuronCore) -> NeuronCore:
        began = (cores or {}).get(each.index)
        at = None if began is None else UNIX - began
        return replace(each, execution_started_at_unix_seconds=at, last_execution_at_unix_seconds=UNIX - 70.0)

    snapshot = replace(empty, taken_at_seconds=NOW, taken_at_unix_seconds=UNIX, cores=tuple(map(core, empty.cores)))
    return findings(
        RuleEvaluator(HealthThresholds(stuck_seconds=limit, idle_seconds=None)),
        snapshot,
        FindingKind.STUCK,
        FindingKind.WAITING,
    )


THREE = (waiting(0), waiting(1), waiting(3))


def test_the_rank_that_is_absent_from_the_collective_is_named_with_what_it_does() -> None:
    (one,) = found(*THREE, rank(2))
    assert one.reason == (
        "3 ranks wait in all_reduce (number 412) for rank 2, PID 102, "
        "which executes nothing after all_reduce (number 411)"
    )
    assert (one.severity, one.pid, one.pids) == (Severity.CRITICAL, 102, (100, 101, 102, 103))
    assert (one.device_indices, one.job, one.began_at_unix_seconds) == ((1,), JOB, UNIX - 69.0)
    assert "py-spy dump --pid 102" in one.action
    (stopped,) = found(*THREE, replace(waiting(2), reporting=False))
    assert "rank 2, PID 102, which has stopped reporting after all_reduce (number 412)" in stopped.reason
    (hangs,) = found(*THREE, rank(2), cores={2: 65.0})
    assert "rank 2, PID 102, whose execution does not finish" in hangs.reason


@pytest.mark.parametrize(
    ("last", "cores"),
    [
        (rank(2, compiling_since_seconds=NOW - 700.0), {}),
        (rank(2, checkpointing_since_seconds=NOW - 700.0), {}),
        (rank(2), {2: 3.0}),  # it executes: an evaluation
        (rank(2, vcpu=1.0), {}),  # its script does something
        (waiting(2, 5.0), {}),  # they have just come together
    ],
)
def test_a_rank_at_work_is_waited_for(last: Process, cores: dict[int, float]) -> None:
    assert found(*THREE, last, cores=cores) == []


def test_the_limit_grows_with_steps_and_for_work_on_a_vcpu() -> None:
    late = [waiting(number, 301.0) for number in (0, 1, 3)]
    assert len(found(*late, rank(2, vcpu=1.0))) == 1, "not for ever"
    slow = [replace(each, counted_since_seconds=NOW - 870.0) for each in (*THREE, rank(2))]
    assert found(*slow) == [], "ten steps long"
    assert found(*THREE, rank(2), limit=None) == []


def test_ranks_in_different_collectives_and_on_other_hosts_are_told_one_by_one() -> None:
    (one,) = found(*THREE, waiting(2, latest_collective="broadcast"))
    assert one.reason == (
        f"no rank of {JOB} makes progress: 3 ranks in all_reduce (number 412), "
        "rank 2, PID 102 in broadcast (number 412)"
    )
    assert (one.pid, one.severity) == (102, Severity.CRITICAL)
    (here,) = found(*(replace(waiting(number), job=Job(JOB, number, 8)) for number in range(4)))
    assert here.reason == f"4 ranks of {JOB} wait in all_reduce (number 412) for ranks on other hosts"
    assert (here.kind, here.severity) == (FindingKind.WAITING, Severity.NOTICE)
    (alone,) = found(rank(2, world=8))
    assert alone.reason == f"rank 2, PID 102, of {JOB} makes no step any more", "the host of the absent tells the rest"
    assert alone.severity is Severity.WARNING
    assert found(rank(0, world=1)) == [], "nobody waits for one that works alone"


def test_ranks_that_all_do_nothing_are_a_warning() -> None:
    (one,) = found(*(rank(number) for number in range(4)))
    assert one.reason == f"no rank of {JOB} makes a step any more, and none is in a collective"
    assert one.severity is Severity.WARNING
    assert found(*(rank(number, last_step_at_seconds=None) for number in range(4))) == []
