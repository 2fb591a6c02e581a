"""Verdicts on latencies that rise, and how long a state must last before a verdict changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neurond.verdicts.evidence import Hysteresis, HysteresisLevel
from neurond.verdicts.rule_evaluator import RuleEvaluator

from neurontools.client.events import events_between
from neurontools.faults.kinds import KINDS
from neurontools.model import Finding, Job, LatencyHistogram, Snapshot, SourceKind, execution
from neurontools.model.finding import FindingKind, Severity
from neurontools.rpc.convert import to_message
from tests.harness.scenario_host import ScenarioHost

WINDOW_SECONDS = 300
FAST_SECONDS, SLOW_SECONDS, BETWEEN_SECONDS = 0.010, 0.020, 0.014
PER_SECOND = 10


class Watched:
    """A process that executes ten times a second and is judged once a second; it was fast before it was met."""

    def __init__(
        self,
        fast_before_seconds: int = 0,
        jobs: Sequence[str] = ("train.py",),
        source: SourceKind = SourceKind.SIMULATED,
    ) -> None:
        self._judge = RuleEvaluator()
        self._still = replace(ScenarioHost("trn1.2xlarge", neuroncores=1).at(10.0), source=source)
        self._jobs = jobs
        self._counts = Counter({execution.bucket_index(FAST_SECONDS): fast_before_seconds * PER_SECOND})
        self._at_seconds = 0
        self.snapshots: list[Snapshot] = []

    def execute(self, seconds: int, latency_seconds: float | None) -> None:
        """Goes on for so long with executions that take so long; None: without any."""
        for _ in range(seconds):
            self._at_seconds += 1
            if latency_seconds is not None:
                self._counts[execution.bucket_index(latency_seconds)] += PER_SECOND
            (process,) = self._still.processes
            indices = sorted(index for index, count in self._counts.items() if count)
            histogram = LatencyHistogram(tuple(indices), tuple(self._counts[index] for index in indices))
            now_unix_seconds = self._still.taken_at_unix_seconds + self._at_seconds
            snapshot = replace(
                self._still,
                sequence=self._at_seconds,
                taken_at_seconds=self._still.taken_at_seconds + self._at_seconds,
                taken_at_unix_seconds=now_unix_seconds,
                processes=tuple(
                    replace(process, pid=pid, job=Job(job), device_latency_histogram=histogram)
                    for pid, job in enumerate(self._jobs, process.pid)
                ),
                cores=tuple(
                    replace(core, last_execution_at_unix_seconds=now_unix_seconds) for core in self._still.cores
                ),
            )
            self.snapshots.append(self._judge.evaluate(snapshot))

    @property
    def found(self) -> list[Finding | None]:
        """The finding of each second."""
        found = []
        for snapshot in self.snapshots:
            assert snapshot.health is not None
            findings = {each.kind: each for each in snapshot.health.findings}
            assert findings.keys() <= {FindingKind.LATENCY_RISEN, FindingKind.IDLE}
            found.append(findings.get(FindingKind.LATENCY_RISEN))
        return found

    @property
    def changes(self) -> int:
        """How often the finding began or ended."""
        return sum((one is None) is not (other is None) for one, other in pairwise(self.found))

    @property
    def events(self) -> list[str]:
        messages = [to_message(snapshot) for snapshot in self.snapshots]
        return [event.kind for pair in pairwise(messages) for event in events_between(*pair) if event.kind != "idle"]


def test_latencies_that_stay_high_are_a_finding_from_when_they_rose_until_executions_end() -> None:
    host = Watched()
    host.execute(1200, FAST_SECONDS)
    assert not any(host.found)
    host.execute(400, SLOW_SECONDS)
    found = host.found
    (first, *others) = [each for each in found if each is not None]
    assert all(each == first for each in others), "the text is a label and stays"
    assert "median latency rose from 10.0 ms to 20.0 ms" in first.reason
    assert (first.severity, first.device_indices) == (Severity.NOTICE, ()), "one process says nothing about a device"
    begun = found.index(first)
    told_at, began_at = host.snapshots[begun].taken_at_unix_seconds, first.began_at_unix_seconds
    assert told_at - began_at == WINDOW_SECONDS * 0.1
    assert begun - 1199 <= (KINDS["slow-core"].found_within_seconds or 0)
    most_seconds = 0.2 * WINDOW_SECONDS + 1  # half of the recent executions, of which two fifths of the window exist
    assert began_at - host.snapshots[1199].taken_at_unix_seconds <= most_seconds
    host.execute(2 * WINDOW_SECONDS, None)
    assert host.found[-1] is None


@pytest.mark.parametrize(
    ("source", "jobs", "devices"),
    [
        (SourceKind.SYSFS, ("a", "b"), [(0,)]),
        (SourceKind.SYSFS, ("a", "a"), []),  # ranks of one job wait for each other
        (SourceKind.SIMULATED, ("a", "b"), []),
    ],
)
def test_only_unrelated_processes_on_real_hardware_tell_of_a_device(
    source: SourceKind, jobs: tuple[str, ...], devices: list[tuple[int, ...]]
) -> None:
    host = Watched(3200, jobs, source)
    host.execute(400, FAST_SECONDS)
    host.execute(100, SLOW_SECONDS)
    judged = host.snapshots[-1].health
    assert judged is not None
    risen = [finding for finding in judged.findings if finding.kind == FindingKind.LATENCY_RISEN]
    assert [finding.device_indices for finding in risen if finding.severity > Severity.NOTICE] == devices
    assert len(risen) > len(devices)


@pytest.mark.slow
@pytest.mark.parametrize("before_seconds", [2, 100, 1200])
def test_one_noisy_period_is_no_finding(before_seconds: int) -> None:
    host = Watched()
    host.execute(before_seconds, FAST_SECONDS)
    host.execute(30, SLOW_SECONDS)
    host.execute(600, FAST_SECONDS)
    assert not any(host.found)


@pytest.mark.parametrize(("fast_before_seconds", "is_found"), [(0, False), (1, True)])
def test_twenty_executions_before_the_rise_are_enough(fast_before_seconds: int, is_found: bool) -> None:
    host = Watched(fast_before_seconds)
    host.execute(1, FAST_SECONDS)
    host.execute(100, SLOW_SECONDS)
    assert any(host.found) is is_found


@pytest.mark.slow
def test_a_finding_stays_until_latencies_are_clearly_better_for_a_while() -> None:
    host = Watched(3200)
    host.execute(400, FAST_SECONDS)
    host.execute(600, SLOW_SECONDS)
    for _ in range(5):
        host.execute(200, BETWEEN_SECONDS)
        host.execute(60, FAST_SECONDS)
    assert host.changes == 1
    *_, last = host.found
    assert last is not None
    host.execute(WINDOW_SECONDS, FAST_SECONDS)
    assert host.changes == 2
    *_, last = host.found
    assert last is None
    assert host.events == ["latency"], "a recording tells the same: it began once"


def test_latencies_that_rise_much_further_are_told_anew() -> None:
    host = Watched(3200)
    host.execute(400, FAST_SECONDS)
    host.execute(400, SLOW_SECONDS)
    host.execute(400, 10 * SLOW_SECONDS)
    told = {finding.reason.partition("latency ")[2]: finding for finding in host.found if finding is not None}
    assert list(told) == ["rose from 10.0 ms to 20.0 ms", "rose from 10.0 ms to 200.0 ms"]
    assert len({finding.began_at_unix_seconds for finding in told.values()}) == 1
    assert host.events == ["latency"]


@given(st.lists(st.tuples(st.sampled_from(HysteresisLevel), st.integers(1, 40)), max_size=40))
def test_a_state_changes_only_after_as_long_of_the_contrary(periods: list[tuple[HysteresisLevel, int]]) -> None:
    hysteresis: Hysteresis[str] = Hysteresis()
    levels = [level for level, count in periods for _ in range(count)]
    before = None
    for now, level in enumerate(levels):
        since = hysteresis.holds_since("it", level, now, begins_after_seconds=10, ends_after_seconds=20)
        begun_by, ended_by = levels[max(0, now - 10) : now + 1], levels[max(0, now - 20) : now + 1]
        if before is None:
            assert (since is not None) == (len(begun_by) == 11 and set(begun_by) == {HysteresisLevel.OVER})
        else:
            assert (since is None) == (len(ended_by) == 21 and set(ended_by) == {HysteresisLevel.BETTER})
            assert since in (None, before), "the time at which it began stays"
        before = since
        assert hysteresis.is_known("it") or since is None
    hysteresis.forget_others(())
    assert not hysteresis.is_known("it")
