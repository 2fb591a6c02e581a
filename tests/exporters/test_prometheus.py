"""The families of snapshots: names, types, labels and units as AWS's exporter has them, and our own."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neurontools.exporters.exposition import MetricFamily, encode_text
from neurontools.exporters.snapshot_metrics import SnapshotMetrics
from neurontools.model import EndedProcess, Process, Snapshot, TrainingCounters, logical_cores
from tests.harness.faulty_host import faulty_host
from tests.harness.full_host import full_host
from tests.harness.original_families import FORMAT
from tests.harness.pictures import is_as_stored
from tests.harness.scenario_host import ScenarioHost
from tests.harness.waiting import run_to_end

GOLDEN = Path(__file__).parent / "golden/metrics.txt"
BASE = {"availability_zone", "instance_id", "instance_name", "instance_type", "region", "subnet_id"}
PEAK = 95e12
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
Samples = dict[str, dict[frozenset[tuple[str, str]], float]]


def exposed(now: Snapshot, before: Snapshot | None = None) -> str:
    return encode_text(SnapshotMetrics(1_767_323_000.0).families(now, before, PEAK)).decode()


def parsed(text: str) -> tuple[dict[str, str], Samples]:
    """Types, and samples by name and labels; every series once."""
    types: dict[str, str] = {}
    samples: Samples = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in types, f"{name} is split"
            types[name] = kind
        elif not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name, _, labels = series.partition("{")
            key = frozenset(LABEL.findall(labels))
            assert key not in samples.setdefault(name, {}), f"{series} twice"
            samples[name][key] = float(value)
    assert types.keys() == samples.keys()
    return types, samples


def one(samples: Samples, name: str, **labels: str) -> float:
    wanted = set(labels.items())
    (found,) = [value for key, value in samples[name].items() if wanted <= key]
    return found


@pytest.mark.parametrize(
    ("instance_type", "lnc", "cores_per_device"),
    [("inf2.xlarge", None, 2), ("trn1.32xlarge", None, 2), ("trn2.3xlarge", 2, 4), ("trn2.3xlarge", 1, 8)],
)
def test_families_of_the_format(instance_type: str, lnc: int | None, cores_per_device: int) -> None:
    host = ScenarioHost(instance_type, lnc=lnc)
    before, now = host.at(10), host.at(11)
    types, samples = parsed(exposed(now, before))
    theirs = {name: kind for name, kind in types.items() if not name.startswith("neurontools_")}
    assert theirs == {name: kind for name, (kind, _) in FORMAT.items()}
    for name, (_, further) in FORMAT.items():
        for key in samples[name]:
            assert {label for label, _ in key} == BASE | further, name
    assert all(name.startswith("neurontools_") for name in types.keys() - FORMAT.keys())
    hardware = {
        "neuron_device_count": str(len(now.devices)),
        "neuroncore_per_device_count": str(cores_per_device),
        "neuron_device_memory_size": str(now.devices[0].memory_bytes),
    }
    assert one(samples, "neuron_hardware_info", **hardware) == 1
    assert len(samples["neuroncore_utilization_ratio"]) == cores_per_device * len(now.devices)


def listed(family: MetricFamily, most: int) -> str:
    """What a family is, and its first samples, with nine digits and the time since when they count."""
    definition = family.definition
    since = {labels: f" since {value!r}" for labels, value in family.created}
    assert not family.created or list(since) == list(dict(family.samples))
    samples = [f"{labels} {value:.9g}{since.get(labels, '')}" for labels, value in family.samples[:most]]
    count = f"{len(family.samples)} samples" if len(family.samples) > most else ""
    return " | ".join([f"{definition.name}, {definition.kind}: {definition.help}", *samples, *filter(None, [count])])


def test_golden() -> None:
    """All of a host of which everything is known, and some of one with several jobs, models, devices and findings."""
    before, now = full_host()
    families = list(SnapshotMetrics(1_767_323_000.0).families(now, before, PEAK))
    assert [family.definition.name for family in families if not family.samples] == []
    lines = [listed(family, 400) for family in families]
    lines += [listed(family, 8) for family in SnapshotMetrics(1_767_323_000.0).families(faulty_host(), None, PEAK)]
    assert is_as_stored("\n".join(lines) + "\n", GOLDEN), "metrics.txt differs; UPDATE_GOLDEN=1 writes it anew"


@pytest.mark.parametrize("instance_type", ["trn1.32xlarge", "trn2.3xlarge"])
def test_values_and_units(instance_type: str) -> None:
    host = ScenarioHost(instance_type, neuroncores=2)
    before, now = host.at(10), host.at(11)
    real = (replace(each, synthetic=False, vcpu_user_ratio=0.5, vcpu_system_ratio=0.125) for each in now.processes)
    now = replace(now, processes=tuple(real))
    _, samples = parsed(exposed(now, before))
    process, core = now.processes[1], logical_cores(now)[1]
    assert len(core.cores) == (2 if instance_type == "trn2.3xlarge" else 1)
    tag = {"runtime_tag": "synthetic-1"}
    assert one(samples, "neuroncore_utilization_ratio", neuroncore="1", **tag) == core.utilization_ratio
    tensors = one(samples, "neuroncore_memory_usage_tensors", neuroncore="1", memory_location="None", **tag)
    assert tensors == core.memory.tensors_bytes
    assert one(samples, "neuron_runtime_vcpu_usage_ratio", usage_type="user", **tag) == 0.5 / 4, "of all vCPUs"
    completed = one(samples, "execution_status_total", status_type="completed", **tag)
    assert process.executions is not None
    assert completed == process.executions.completed_total, "since the process attached"
    assert one(samples, "execution_status_created", status_type="completed", **tag) == process.attached_at_unix_seconds
    assert process.total_latency is not None
    assert one(samples, "execution_latency_seconds", percentile="p50", **tag) == process.total_latency.p50_seconds
    assert one(samples, "system_vcpu_usage_ratio", usage_type="system") == 0.125 + 0.03125 + 0.03125
    used = one(samples, "neuron_runtime_memory_used_bytes", memory_location="neuron_device", **tag)
    assert used == core.memory.total_bytes
    assert one(samples, "neurontools_neuroncore_flops", neuroncore="1") == core.flops_per_second
    mfu = one(samples, "neurontools_neuroncore_mfu_ratio", neuroncore="1", dtype="bf16")
    assert mfu == pytest.approx((core.flops_per_second or 0) / (PEAK * len(core.cores)))


def test_idle_host_is_visible() -> None:
    _, samples = parsed(exposed(ScenarioHost("trn1.32xlarge", "idle").at(1)))
    assert "neuroncore_utilization_ratio" not in samples, "the original shows cores that are held"
    assert len(samples["neurontools_neuroncore_held"]) == 32
    assert set(samples["neurontools_neuroncore_held"].values()) == {0.0}
    assert len(samples["neurontools_neuroncore_utilization_ratio"]) == 32
    assert len(samples["neurontools_neuroncore_memory_bytes"]) == 32 * 11
    assert len(samples["neurontools_device_health"]) == 16
    assert "execution_latency_seconds" not in samples


def test_series_of_an_ended_process_vanish() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=2)
    metrics = SnapshotMetrics(0.0)
    now = host.at(10)
    assert b"synthetic-1" in encode_text(metrics.families(now, None, PEAK))
    left = replace(now, processes=now.processes[:1])
    assert b"synthetic-1" not in encode_text(metrics.families(left, now, PEAK))


def test_processes_that_share_a_tag_add_up() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=3)
    before, now = (
        replace(snapshot, processes=tuple(replace(process, tag="job") for process in snapshot.processes))
        for snapshot in (host.at(10), host.at(12))
    )
    _, samples = parsed(exposed(now, before))
    completed = one(samples, "execution_status_total", status_type="completed", runtime_tag="job")
    assert completed == sum(p.executions.completed_total for p in now.processes if p.executions)
    p50 = one(samples, "execution_latency_seconds", percentile="p50", runtime_tag="job")
    medians = [process.total_latency.p50_seconds for process in now.processes if process.total_latency]
    assert min(medians) <= p50 <= max(medians)
    p100 = one(samples, "execution_latency_seconds", percentile="p100", runtime_tag="job")
    assert p100 == max(process.total_latency.p100_seconds for process in now.processes if process.total_latency)


def test_counters_of_a_tag_do_not_fall_when_one_of_its_processes_ends() -> None:
    host = ScenarioHost("trn1.2xlarge")
    both = host.at(20.0)
    shared = tuple(replace(process, tag="job") for process in both.processes)
    metrics = SnapshotMetrics(0.0)

    def completed(*processes: Process, record: EndedProcess | None = None) -> float | None:
        """Of the tag; asked twice, as by readers of two formats."""
        now = replace(both, processes=processes, ended=() if record is None else (record,))
        first, second = (encode_text(metrics.families(now, None, PEAK)).decode() for _ in range(2))
        assert first == second
        _, samples = parsed(first)
        of_tag = {"runtime_tag": "job", "status_type": "completed"}
        return one(samples, "execution_status_total", **of_tag) if processes else None

    def after(process: Process, more: int) -> Process:
        assert process.executions is not None
        done = replace(process.executions, completed_total=process.executions.completed_total + more)
        return replace(process, executions=done)

    first, second = shared
    all_of_them = completed(first, second)
    assert all_of_them is not None
    assert all_of_them > 0
    assert completed(second) == all_of_them
    final = EndedProcess(
        first.pid, 0, "", "", "job", None, False, 0.0, 9.0, 1, 1, executions=after(first, 3).executions
    )
    assert completed(second, record=final) == all_of_them + 3, "the work after its last report"
    assert completed(after(second, 5)) == all_of_them + 3 + 5
    third = replace(after(first, 0), pid=first.pid + 100, counted_since_seconds=None, attached_at_unix_seconds=5.0)
    of_third = third.executions.completed_total if third.executions is not None else 0
    assert completed(after(second, 5), third) == all_of_them + 8 + of_third
    completed()
    assert completed(third) == of_third, "nobody had the tag in between: it counts anew"


def test_processes_without_a_tag_can_have_one_together() -> None:
    now = ScenarioHost("trn1.32xlarge", neuroncores=4).at(20.0)
    tagged, *untagged = now.processes
    processes = (replace(tagged, tag="job"), *(replace(process, tag=str(process.pid)) for process in untagged))
    now = replace(now, processes=processes)

    def tags(*, together: bool) -> set[str]:
        metrics = SnapshotMetrics(0.0, untagged_together=together)
        _, samples = parsed(encode_text(metrics.families(now, None, PEAK)).decode())
        of_the_original = [series for name, series in samples.items() if not name.startswith("neurontools_")]
        return {value for series in of_the_original for key in series for name, value in key if name == "runtime_tag"}

    assert tags(together=False) == {"job", *(str(process.pid) for process in untagged)}
    assert tags(together=True) == {"job", "untagged"}


def test_unknown_is_left_out_and_never_zero() -> None:
    host = ScenarioHost("inf2.xlarge")
    first = host.at(1)
    _, samples = parsed(exposed(first))
    assert "neuroncore_utilization_ratio" not in samples
    assert "neurontools_neuroncore_flops" not in samples
    assert "execution_latency_seconds" not in samples
    no_host = replace(first, host=replace(first.host, memory_used_bytes=None, vcpu_average=None))
    _, samples = parsed(exposed(no_host))
    assert "system_memory_used_bytes" not in samples
    assert "system_vcpu_usage_ratio" not in samples


def test_health_verdicts() -> None:
    host = ScenarioHost("trn1.32xlarge", "stuck-core", neuroncores=4)
    host.at(5)
    _, samples = parsed(exposed(host.at(400)))
    assert one(samples, "neurontools_device_health", neuron_device_index="0") == 3
    assert one(samples, "neurontools_device_health", neuron_device_index="1") == 0
    assert one(samples, "neurontools_device_findings", kind="stuck", severity="critical", neuron_device_index="0") == 1
    assert one(samples, "neurontools_health", finding="stuck") == 3
    (told,) = [dict(labels) for labels in samples["neurontools_finding_seconds"]]
    assert (told["neuron_devices"], told["job_name"], told["pid"]) == ("0", "synthetic load stuck-core", "4194305")
    assert one(samples, "neurontools_neuroncore_execution_in_flight_seconds", neuroncore="0") == 390


def test_a_logical_core_executes_since_the_first_of_its_physical_cores() -> None:
    now = ScenarioHost("trn2.3xlarge").at(11)
    started = {0: 1000.0, 1: 1300.0}
    cores = tuple(replace(c, execution_started_at_unix_seconds=started.get(c.index)) for c in now.cores)
    _, samples = parsed(exposed(replace(now, cores=cores)))
    in_flight = one(samples, "neurontools_neuroncore_execution_in_flight_seconds", neuroncore="0")
    assert in_flight == now.taken_at_unix_seconds - 1000


def test_what_a_training_does_not_tell_has_no_sample() -> None:
    now = ScenarioHost("inf2.xlarge").at(1)
    first, *others = now.processes

    def told(**counters: Any) -> dict[str, list[float]]:
        process = replace(first, training=TrainingCounters(**counters))
        _, samples = parsed(exposed(replace(now, processes=(process, *others))))
        prefix = "neurontools_process_"
        names = ("steps", "samples", "collectives", "step_time_seconds", "compiling_seconds", "seconds_since_last_step")
        found = {name.removeprefix(prefix): list(values.values()) for name, values in samples.items()}
        return {name: values for name, values in found.items() if name.removesuffix("_total") in names}

    assert told(steps_total=7, collectives_total=0) == {"steps_total": [7], "collectives_total": [0]}
    idle = told(host_seconds_total=1.0, compute_seconds_total=2.5)
    assert idle == {"steps_total": [0], "step_time_seconds_total": [2.5, 1.0], "compiling_seconds": [0.0]}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool() -> None:
    before, now = full_host()
    now = replace(now, processes=tuple(replace(p, tag=f'a "quoted"\\ tag\n{p.pid}') for p in now.processes))
    done = run_to_end(["promtool", "check", "metrics"], input=exposed(now, before))
    complaints = (done.stdout + done.stderr).splitlines()
    assert all(line.startswith("system_vcpu_count ") for line in complaints), complaints
