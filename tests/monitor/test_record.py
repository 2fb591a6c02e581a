"""Records against golden documents, against the original's format, and against what is known to have happened."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neurontools.model import Attribution, ErrorCounters, PodAllocation, Process, Snapshot
from neurontools.monitor.baseline import Baseline
from neurontools.monitor.configuration import MonitorConfiguration, configuration_from
from neurontools.monitor.groups import RUNTIME_GROUPS, SYSTEM_GROUPS
from neurontools.monitor.record import K8S, GroupKey, group_periods, record
from neurontools.monitor.recorder import Recorder
from tests.harness.record_models import Record
from tests.harness.scenario_host import STARTED_AT_SECONDS, ScenarioHost

GOLDEN = Path(__file__).parent / "golden"
EVERYTHING = MonitorConfiguration.everything()


def made(now: Snapshot, before: Snapshot | None, configuration: MonitorConfiguration = EVERYTHING) -> Any:
    """The record as a reader has it."""
    baseline = Baseline.first(before) if before is not None else None
    return json.loads(json.dumps(record(now, configuration, lambda _: baseline), allow_nan=False))


def runtime(document: Any, index: int = 0) -> Any:
    return document["neuron_runtime_data"][index]["report"]


SCENARIOS = [
    ("inf2.xlarge", "steady", None),
    ("trn1.32xlarge", "ecc-burst", 2),
    ("trn2.48xlarge", "steady", 2),
    ("trn2.48xlarge_lnc1", "steady", 2),
    ("trn1.32xlarge", "idle", None),
]


@pytest.mark.parametrize(("name", "scenario", "neuroncores"), SCENARIOS)
def test_golden(name: str, scenario: str, neuroncores: int | None) -> None:
    instance_type, _, lnc = name.partition("_lnc")
    host = ScenarioHost(instance_type, scenario, lnc=int(lnc) if lnc else None, neuroncores=neuroncores)
    before, now = host.at(10), host.at(15)
    document = json.dumps(record(now, EVERYTHING, lambda _: Baseline.first(before)), indent=1) + "\n"
    Record.model_validate_json(document)
    file = GOLDEN / f"{name}_{scenario}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(document, "utf-8")
    assert document == file.read_text("utf-8")


def test_counts_are_of_the_period_and_whole_numbers() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=1)
    first, second, third = host.at(10), host.at(15), host.at(17.5)
    counts = [
        runtime(made(now, before))["execution_stats"]["execution_summary"]["completed"]
        for now, before in ((second, first), (third, second), (third, first))
    ]
    assert all(type(count) is int for count in counts)
    assert counts[0] + counts[1] == counts[2]
    started, ended = first.processes[0].executions, third.processes[0].executions
    assert started is not None
    assert ended is not None
    assert counts[2] == ended.completed_total - started.completed_total


def test_period_is_the_time_between_the_snapshots() -> None:
    host = ScenarioHost("inf2.xlarge")
    assert made(host.at(15), None)["system_data"]["memory_info"]["period"] == 0.0
    before = host.at(20)
    document = made(host.at(22.5), before)
    groups = [*runtime(document).values(), document["system_data"]["memory_info"]]
    assert {group["period"] for group in groups} == {2.5}


def test_utilization_is_over_the_period_and_not_over_the_last_tick() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=1)
    before = host.at(10)
    host.at(14.75)
    now = host.at(15)
    spent = (now.cores[0].busy_seconds_total or 0) - (before.cores[0].busy_seconds_total or 0)
    told = runtime(made(now, before))["neuroncore_counters"]["neuroncores_in_use"]["0"]
    assert told["neuroncore_utilization"] == pytest.approx(100 * spent / 5)
    assert told["neuroncore_utilization"] != pytest.approx(100 * (now.cores[0].utilization_ratio or 0))
    assert told["flops"] == told["effective_flops"] > 1e12


def test_vcpu_usage_is_over_the_period_and_not_over_the_last_tick() -> None:
    host = ScenarioHost("inf2.xlarge")
    before, now = host.at(10), host.at(15)
    busy = [replace(vcpu, user_seconds_total=vcpu.user_seconds_total + 4) for vcpu in before.host.vcpu_times]
    spent = [replace(vcpu, idle_seconds_total=vcpu.idle_seconds_total + 1) for vcpu in busy[:3]]
    now = replace(now, host=replace(now.host, vcpu_times=(*spent, busy[3])))
    group = made(now, before)["system_data"]["vcpu_usage"]
    assert group["period"] == 5.0
    assert [usage["user"] for usage in group["usage_data"].values()] == [80.0, 80.0, 80.0, 100.0]
    assert group["average_usage"]["user"] == pytest.approx(100 * 16 / 19, abs=0.005)
    assert group["context_switch_count"] == 2500


@pytest.mark.parametrize("missing", ["no past", "an older daemon's recording", "a vCPU came"])
def test_vcpu_usage_is_that_of_the_last_interval_where_times_are_missing(missing: str) -> None:
    host = ScenarioHost("inf2.xlarge")
    before, now = host.at(10), host.at(15)
    average = now.host.vcpu_average
    assert average is not None
    of_each = {}
    if missing == "an older daemon's recording":
        before, now = (
            replace(each, host=replace(each.host, vcpu_times=(), vcpus=(average,) * 4)) for each in (before, now)
        )
        of_each = {str(index): 25.0 for index in range(4)}
    elif missing == "a vCPU came":
        before = replace(before, host=replace(before.host, vcpu_times=before.host.vcpu_times[1:]))
    group = made(now, None if missing == "no past" else before)["system_data"]["vcpu_usage"]
    assert (group["period"], group["error"]) == (1.0, "")
    assert group["average_usage"]["user"] == 25.0
    assert {index: usage["user"] for index, usage in group["usage_data"].items()} == of_each


def test_latency_is_null_when_nothing_ran() -> None:
    host = ScenarioHost("trn1.32xlarge", "stuck-core", neuroncores=2)
    host.at(5)
    before, now = host.at(20), host.at(25)
    stats = runtime(made(now, before))["execution_stats"]
    assert stats["latency_stats"] == {"total_latency": None, "device_latency": None}
    assert set(stats["execution_summary"].values()) == {0}
    in_use = runtime(made(now, before))["neuroncore_counters"]["neuroncores_in_use"]
    assert in_use["0"]["neuroncore_utilization"] == 100.0, "stuck is busy"


def test_keys_are_sorted_as_the_original_has_them() -> None:
    host = ScenarioHost("trn2.48xlarge")
    before = host.at(10)
    document = made(host.at(15), before)
    report = runtime(document)
    assert list(document) == ["neuron_runtime_data", "system_data", "instance_info", "neuron_hardware_info"]
    assert list(report) == sorted(RUNTIME_GROUPS)
    assert list(document["system_data"]) == sorted(SYSTEM_GROUPS)
    latency = report["execution_stats"]["latency_stats"]["total_latency"]
    assert list(latency) == ["p0", "p1", "p100", "p25", "p50", "p75", "p99"]
    big = ScenarioHost("trn1.32xlarge")
    only = replace(big.at(5).processes[0], core_indices=tuple(range(12)), neuroncore_indices=tuple(range(12)))
    snapshot = replace(big.at(6), processes=(only,))
    cores = list(
        runtime(made(snapshot, None))["memory_used"]["neuron_runtime_used_bytes"]["usage_breakdown"][
            "neuroncore_memory_usage"
        ]
    )
    assert cores == ["0", "1", "10", "11", "2", "3", "4", "5", "6", "7", "8", "9"]


def test_physical_cores_of_a_logical_one() -> None:
    host = ScenarioHost("trn2.48xlarge", neuroncores=2)
    before = host.at(10)
    core = runtime(made(host.at(15), before), 1)["neuroncore_counters"]["neuroncores_in_use"]["1"]
    assert list(core["v3d"]) == ["nc_v3.2", "nc_v3.3"]
    lnc1 = ScenarioHost("trn2.48xlarge", lnc=1, neuroncores=2)
    before = lnc1.at(10)
    assert "v3d" not in runtime(made(lnc1.at(15), before), 1)["neuroncore_counters"]["neuroncores_in_use"]["1"]


@pytest.mark.parametrize(("lnc", "physical"), [(1, []), (2, ["nc_v3.4", "nc_v3.5"])])
def test_a_process_lists_the_cores_of_its_devices_and_those_that_it_does_not_drive_are_at_0(
    lnc: int, physical: list[str]
) -> None:
    host = ScenarioHost("trn2.48xlarge", lnc=lnc, neuroncores=2)
    before, now = host.at(10), host.at(15)
    cores = runtime(made(now, before), 1)["neuroncore_counters"]["neuroncores_in_use"]
    assert list(cores) == [str(index) for index in range(8 // lnc)]
    breakdown = cores["2"].pop("v3d", {})
    assert cores["2"] == {"neuroncore_utilization": 0.0, "flops": 0, "effective_flops": 0}
    assert breakdown == {name: {"neuroncore_utilization": 0.0} for name in physical}
    assert cores["1"]["neuroncore_utilization"] > 0
    held = configuration_from(
        {"neuroncores_in_use": "held", "neuron_runtimes": [{"metrics": [{"type": "neuroncore_counters"}]}]}
    )
    assert list(runtime(made(now, before, held), 1)["neuroncore_counters"]["neuroncores_in_use"]) == ["1"]


def test_ecc_events_are_of_the_period_and_at_first_since_the_driver_was_loaded() -> None:
    host = ScenarioHost("trn1.32xlarge", "ecc-burst")
    first, second = host.at(12), host.at(14)

    def corrected(now: Snapshot, before: Snapshot | None) -> int:
        devices = made(now, before)["system_data"]["neuron_hw_counters"]["neuron_devices"]
        return sum(device["mem_ecc_corrected"] for device in devices)

    total = sum(device.ecc.mem_corrected_total or 0 for device in second.devices)
    assert total > corrected(first, None) > 0
    assert corrected(first, None) + corrected(second, first) == total == corrected(second, None)
    assert corrected(second, second) == 0


def test_an_ended_process_vanishes_and_a_new_one_counts_from_its_start() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=2)
    before, now = host.at(10), host.at(15)
    _gone, new = now.processes
    new = replace(new, attached_at_unix_seconds=now.taken_at_unix_seconds - 1)
    document = made(replace(now, processes=(new,)), before)
    assert [entry["pid"] for entry in document["neuron_runtime_data"]] == [new.pid]
    assert new.executions is not None
    assert runtime(document)["execution_stats"]["execution_summary"]["completed"] == new.executions.completed_total


def test_silence_is_an_error_and_not_a_zero() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=1)
    before = host.at(10)
    report = runtime(made(host.at(20, frozen=True), before))
    assert report["neuroncore_counters"]["error"] == "PID 4194305 last reported 10 s ago"
    assert report["neuroncore_counters"]["neuroncores_in_use"] == {}
    assert report["execution_stats"]["error"]
    assert report["memory_used"]["error"] == "", "what it holds it still holds"


def test_errors_of_the_period() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=1)
    before, now = host.at(10), host.at(15)
    process = replace(now.processes[0], errors=ErrorCounters(numerical_total=3, hardware_total=2))
    before = replace(before, processes=(replace(before.processes[0], errors=ErrorCounters(numerical_total=1)),))
    errors = runtime(made(replace(now, processes=(process,)), before))["execution_stats"]["error_summary"]
    assert errors == {"generic": 0, "numerical": 2, "transient": 0, "model": 0, "runtime": 0, "hardware": 2}


def test_observers_have_no_entry() -> None:
    now = ScenarioHost("inf2.xlarge", "idle").at(1)
    observer = Process(7, 0, "root", "neuron-top", "7", None, None, 1.0, False, 1, device_indices=(0,))
    assert made(replace(now, processes=(observer,)), None)["neuron_runtime_data"] == []


def test_tag_filters_and_the_first_of_two_entries() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=12)
    before, now = host.at(10), host.at(15)
    configuration = configuration_from(
        {
            "neuron_runtimes": [
                {"tag_filter": "c-1", "metrics": [{"type": "memory_used"}]},
                {"tag_filter": "1$", "metrics": [{"type": "memory_used"}, {"type": "execution_stats"}]},
            ]
        }
    )
    document = made(now, before, configuration)
    groups = {entry["neuron_runtime_tag"]: sorted(entry["report"]) for entry in document["neuron_runtime_data"]}
    assert groups == {
        "synthetic-1": ["execution_stats", "memory_used"],
        "synthetic-10": ["memory_used"],
        "synthetic-11": ["execution_stats", "memory_used"],
    }
    assert document["system_data"] == {}
    assert set(document) == {"neuron_runtime_data", "system_data", "instance_info", "neuron_hardware_info"}


def test_k8s_info() -> None:
    host = ScenarioHost("trn1.32xlarge", neuroncores=5)
    now = host.at(10)
    in_pod = replace(now.processes[4], attribution=Attribution(pod_name="late", pod_namespace="ml", container_name="c"))
    now = replace(
        now,
        processes=(*now.processes[:4], in_pod),
        pod_allocations=(
            PodAllocation("p0", "n0", "c0", device_indices=(0,)),
            PodAllocation("p1", "n1", "c1", neuroncore_indices=(2,)),
            PodAllocation("p1", "n1", "c2", neuroncore_indices=(2,)),
        ),
    )
    assert "neuron_k8s_info" not in made(now, None)
    info = made(now, None, configuration_from({"k8s_info": True}))["neuron_k8s_info"]
    p0 = {"pod_name": "p0", "namespace": "n0", "container_name": ["c0"]}
    late = {"pod_name": "late", "namespace": "ml", "container_name": ["c"]}
    both = {"pod_name": "p1", "namespace": "n1", "container_name": ["c1", "c2"]}
    assert info["neuroncores_k8s_info"] == {"0": p0, "1": p0, "2": both, "4": late}
    assert info["neurondevices_k8s_info"] == {"0": p0, "2": late}
    Record.model_validate_json(json.dumps(made(now, None, configuration_from({"k8s_info": True}))))


@pytest.mark.parametrize(("name", "lnc", "per_device"), [("trn1.32xlarge", None, 2), ("trn2.48xlarge", 2, 4)])
def test_a_subgraph_tells_its_core_on_its_device(name: str, lnc: int | None, per_device: int) -> None:
    now = ScenarioHost(name, "steady", lnc=lnc).at(10)
    places = set()
    for process, told in zip(now.processes, made(now, None)["neuron_runtime_data"], strict=True):
        for model in told["report"]["memory_used"]["loaded_models"]:
            for subgraph in model["subgraphs"].values():
                place = subgraph["neuron_device_index"], subgraph["neuroncore_index"]
                assert place[0] * per_device + place[1] in process.neuroncore_indices
                places.add(place)
    assert {index for _, index in places} == set(range(per_device))


@pytest.fixture
def mixed() -> tuple[ScenarioHost, Recorder]:
    configuration = configuration_from(
        {
            "period": "1s",
            "neuron_runtimes": [{"metrics": [{"type": "execution_stats"}]}],
            "system_metrics": [{"type": "memory_info"}, {"type": "neuron_hw_counters", "period": "3s"}],
            "k8s_info": {"period": "2s"},
        }
    )
    return ScenarioHost("inf2.xlarge"), Recorder(configuration, STARTED_AT_SECONDS + 10)


def test_group_periods(mixed: tuple[ScenarioHost, Recorder]) -> None:
    host, recorder = mixed
    due = []
    for second in range(10, 17):
        document = recorder.make(host.at(second))
        names = sorted([*document["system_data"], *(["k8s"] if "neuron_k8s_info" in document else [])])
        due.append((second, names, document["neuron_runtime_data"][0]["report"]["execution_stats"]["period"]))
        assert recorder.next_seconds == STARTED_AT_SECONDS + second + 1
    assert [(second, "neuron_hw_counters" in names, "k8s" in names) for second, names, _ in due] == [
        (10, True, True),
        (11, False, False),
        (12, False, True),
        (13, True, False),
        (14, False, True),
        (15, False, False),
        (16, True, True),
    ]
    assert [period for *_, period in due] == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_missed_periods_are_not_made_up_for(mixed: tuple[ScenarioHost, Recorder]) -> None:
    host, recorder = mixed
    recorder.make(host.at(10))
    document = recorder.make(host.at(14.5))
    assert document["system_data"]["memory_info"]["period"] == 4.5
    assert recorder.next_seconds == STARTED_AT_SECONDS + 15


def test_a_period_shorter_than_the_interval_is_the_interval_and_puts_off_nobody_else() -> None:
    host = ScenarioHost("inf2.xlarge")
    metrics = [{"type": "memory_info"}, {"type": "neuron_hw_counters", "period": "4s"}]
    configuration = configuration_from({"period": "250ms", "system_metrics": metrics})
    recorder = Recorder(configuration, STARTED_AT_SECONDS + 10)
    due = []
    for second in range(10, 20):
        now = host.at(second)
        assert recorder.fits(now)
        groups = recorder.make(now)["system_data"]
        due.append((groups["memory_info"]["period"], "neuron_hw_counters" in groups))
        assert not recorder.fits(now), "what is known already is no news"
    assert due == [(0.0 if second == 10 else 1.0, second % 4 == 2) for second in range(10, 20)]


def test_outage(mixed: tuple[ScenarioHost, Recorder]) -> None:
    host, recorder = mixed
    assert recorder.make_outage("no daemon", STARTED_AT_SECONDS + 9) is None
    recorder.make(host.at(10))
    document = recorder.make_outage("no daemon", STARTED_AT_SECONDS + 11)
    assert document is not None
    Record.model_validate_json(json.dumps(document))
    assert document["neuron_runtime_data"] == []
    assert document["system_data"]["memory_info"]["error"] == "no daemon"
    assert document["instance_info"]["instance_type"] == "inf2.xlarge"
    after = recorder.make(host.at(12))
    assert after["system_data"]["memory_info"]["period"] == 2.0, "nothing that happened meanwhile is lost"


def test_every_group_is_planned() -> None:
    keys = [key for key, _ in group_periods(configuration_from({"k8s_info": True}))]
    assert keys == [K8S]
    assert len(list(group_periods(EVERYTHING))) == 7
    assert GroupKey(0, "memory_used") in dict(group_periods(EVERYTHING))
