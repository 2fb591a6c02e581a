"""Errors of a host's executions: they add up over processes that come and go, and never fall."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neurontools.exporters.exposition import MetricFamily
from neurontools.exporters.snapshot_metrics import ERROR_TYPES, HostErrorTotals
from neurontools.model import ErrorCounters, Process, Snapshot
from neurontools.model.process import EndedProcess
from tests.harness.scenario_host import ScenarioHost


@pytest.fixture
def empty() -> Snapshot:
    return ScenarioHost("trn1.2xlarge", "idle").at(1)


def process(pid: int, **errors: int) -> Process:
    (one, *_) = ScenarioHost("trn1.2xlarge", "steady").at(1).processes
    return replace(one, pid=pid, errors=ErrorCounters(**errors))


def ended(pid: int, **errors: int) -> EndedProcess:
    return EndedProcess(pid, 0, "root", "train", str(pid), None, False, 0.0, 9.0, 1, 1, errors=ErrorCounters(**errors))


def told(family: MetricFamily) -> dict[str, float]:
    counts = dict(zip(ERROR_TYPES, (value for _, value in family.samples), strict=True))
    return {kind: count for kind, count in counts.items() if count}


def test_a_count_is_there_from_the_start_so_that_the_first_error_is_an_increase(empty: Snapshot) -> None:
    errors = HostErrorTotals(7.0)
    errors.add_snapshot(empty)
    assert [value for _, value in errors.family().samples] == [0] * len(ERROR_TYPES)


def test_what_a_process_told_last_counts_when_it_is_known_from_its_end_alone(empty: Snapshot) -> None:
    errors = HostErrorTotals(7.0)
    errors.add_snapshot(replace(empty, processes=(process(5),)))
    errors.add_snapshot(replace(empty, ended=(ended(5, model_total=1),)))
    assert told(errors.family()) == {"model": 1}
    errors.add_snapshot(replace(empty, ended=(ended(5, model_total=1),)))
    errors.add_snapshot(empty)
    assert told(errors.family()) == {"model": 1}, "counted once, and kept"


def test_counts_of_several_add_up_and_the_next_with_a_pid_is_another(empty: Snapshot) -> None:
    errors = HostErrorTotals(7.0)
    errors.add_snapshot(replace(empty, processes=(process(5, runtime_total=2), process(6, runtime_total=1))))
    errors.add_snapshot(replace(empty, processes=(process(6, runtime_total=4),)))
    assert told(errors.family()) == {"runtime": 6}
    errors.add_snapshot(replace(empty, processes=(process(5, runtime_total=1), process(6, runtime_total=4))))
    assert told(errors.family()) == {"runtime": 7}


def test_a_process_that_counts_anew_takes_nothing_away(empty: Snapshot) -> None:
    errors = HostErrorTotals(7.0)
    errors.add_snapshot(replace(empty, processes=(process(5, generic_total=3),)))
    errors.add_snapshot(replace(empty, processes=(process(5),)))
    assert told(errors.family()) == {"generic": 3}
