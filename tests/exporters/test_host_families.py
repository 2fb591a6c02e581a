"""Families of the host: the numbers of its summary, which a view of many hosts reads from Prometheus."""

from __future__ import annotations

from dataclasses import replace

from neurontools import catalog
from neurontools.exporters.exposition import LabelTexts, encode_text
from neurontools.exporters.host_families import IDLE_FROM_SECONDS, host_families
from neurontools.fleet.device_conditions import decode_conditions
from neurontools.fleet.summary import summarize_host
from neurontools.model import Severity, Snapshot
from neurontools.model.jobs import largest_first, running_jobs
from tests.harness.scenario_host import ScenarioHost
from tests.harness.snapshots import snapshot_of


def numbers(snapshot: Snapshot) -> dict[str, float]:
    peak = catalog.peak_flops_per_core(snapshot.instance.instance_type)
    jobs = largest_first(running_jobs(snapshot))
    text = encode_text(host_families(jobs, snapshot, peak, LabelTexts())).decode()
    lines = [line.removeprefix("neurontools_").rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_they_are_the_numbers_of_the_summary() -> None:
    host = ScenarioHost("trn1.32xlarge", "ecc-burst")
    for seconds in range(0, 200, 10):
        host.at(float(seconds))
    snapshot = host.at(200.0)
    summary, found = summarize_host(snapshot, "a"), numbers(snapshot)
    assert summary.critical_count + summary.warning_count > 0
    assert (found["neuroncores_held"], found["neuroncores_free"]) == (32, 0)
    decoded = decode_conditions(found["device_conditions"], is_judged=summary.is_judged)
    assert [cell.index for cell in decoded] == list(range(16))
    for cell, known in zip(decoded, summary.devices, strict=True):
        severity = Severity(known.severity or 0)
        assert cell.severity == (severity if severity > Severity.NOTICE else Severity.OK)
        if severity <= Severity.NOTICE and cell.utilization_ratio is not None:
            assert known.utilization_ratio is not None
            assert abs(cell.utilization_ratio - known.utilization_ratio) < 0.34


def test_what_is_unknown_has_no_sample_and_no_device_is_well() -> None:
    snapshot = replace(snapshot_of("trn1.2xlarge"), health=None)
    found = numbers(snapshot)
    absent = ("held_utilization_ratio", "held_mfu_ratio", "steps_per_second", "neuroncores_idle", "findings")
    assert not [name for name in found if name.startswith(absent)]
    assert found["neuroncores_free"] == 2
    (device,) = decode_conditions(found["device_conditions"], is_judged=False)
    assert (device.severity, device.held_neuroncore_count) == (None, 0)


def test_a_held_core_is_idle_fifteen_minutes_after_its_latest_execution() -> None:
    snapshot = ScenarioHost("trn1.2xlarge", "steady").at(60.0)
    now, (held, *_) = snapshot.taken_at_unix_seconds, snapshot.cores
    assert held.owner_pid is not None
    for last, count in ((now - IDLE_FROM_SECONDS - 1, 2), (now - IDLE_FROM_SECONDS + 1, 0), (None, 2)):
        cores = tuple(replace(core, last_execution_at_unix_seconds=last, executions_total=7) for core in snapshot.cores)
        assert numbers(replace(snapshot, cores=cores))["neuroncores_idle"] == count
