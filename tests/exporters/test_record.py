"""Records against golden documents, against the original's format, and against what is known to have happened."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from neurond.system.clocks import by_wall_clock

from neurontools.exporters.monitor.configuration import MonitorConfiguration, parse_configuration
from neurontools.exporters.monitor.period import RecordBaseline
from neurontools.exporters.monitor.record_types import record_schema
from neurontools.exporters.monitor.recorder import K8S, GroupKey, MonitorRecorder, group_periods, make_record
from neurontools.model import Attribution, ErrorCounters, PodAllocation, Process, Snapshot
from neurontools.util.formats import json_text
from tests.harness.faulty_host import faulty_host
from tests.harness.full_host import full_host
from tests.harness.pictures import rounded
from tests.harness.record_models import InstanceInfo, Record
from tests.harness.scenario_host import STARTED_AT_SECONDS, ScenarioHost

GOLDEN = Path(__file__).with_name("records.jsonl")
EVERYTHING = MonitorConfiguration.default()


def made(now: Snapshot, before: Snapshot | None, configuration: MonitorConfiguration = EVERYTHING) -> Any:
    baseline = RecordBaseline.initial(before) if before is not None else None
    return json.loads(json.dumps(make_record(now, configuration, lambda _: baseline), allow_nan=False))


def runtime(document: Any, index: int = 0) -> Any:
    return document["neuron_runtime_data"][index]["report"]


# Each generation, both LNCs, an error of the hardware, and a host that nobody uses; then one with everything.
RECORDED: list[tuple[str, str, int | None, int | None]] = [
    ("inf2.xlarge", "steady", None, None),
    ("trn1.2xlarge", "ecc-burst", None, None),
    ("trn2.3xlarge", "steady", None, 2),
    ("trn2.3xlarge", "steady", 1, 2),
    ("trn1.2xlarge", "idle", None, None),
]


def of_any_group(baseline: RecordBaseline, _: object) -> RecordBaseline:
    return baseline


def test_golden() -> None:
    lines = []
    for instance_type, scenario, lnc, neuroncores in RECORDED:
        host = ScenarioHost(instance_type, scenario, lnc=lnc, neuroncores=neuroncores)
        baseline = RecordBaseline.initial(host.at(10))
        host.at(14.75)  # the last tick is not the period
        lines.append(json_text(make_record(host.at(15), EVERYTHING, partial(of_any_group, baseline))) + "\n")
    before, now = full_host()
    lines.append(json_text(make_record(now, EVERYTHING, lambda _: RecordBaseline.initial(before))) + "\n")
    lines.append(rounded(make_record(faulty_host(), EVERYTHING, lambda _: RecordBaseline.initial(before))) + "\n")
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text("".join(lines), "utf-8")
    for line, expected in zip(lines, GOLDEN.read_text("utf-8").splitlines(keepends=True), strict=True):
        Record.model_validate_json(line)
        assert json.loads(line) == json.loads(expected)
        assert line == expected, "the same values, written otherwise"


@pytest.mark.parametrize("instance_type", ["inf2.xlarge", "trn1.32xlarge", "trn2.48xlarge"])
def test_records_meet_the_schema_and_the_format(instance_type: str) -> None:
    host = ScenarioHost(instance_type)
    before, now = host.at(10), host.at(15)
    schema = json.loads(json.dumps(record_schema()))
    document = made(now, before)
    Record.model_validate(document)
    assert meets(document, schema, schema)
    document["neuron_runtime_data"][0]["report"]["execution_stats"]["execution_summary"]["completed"] = 1.0
    assert not meets(document, schema, schema), "a count is an integer"
    assert meets(made(now, None, parse_configuration({"k8s_info": True})), schema, schema)


def meets(value: Any, schema: Any, root: Any) -> bool:
    """Whether a value is of a schema that has the few keywords of ours."""
    if "$ref" in schema:
        return meets(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "anyOf" in schema:
        return any(meets(value, option, root) for option in schema["anyOf"])
    kinds: dict[str, Any] = {"string": str, "boolean": bool, "null": type(None), "array": list, "object": dict}
    kind = schema["type"]
    if kind in ("integer", "number"):
        return isinstance(value, int if kind == "integer" else (int, float)) and not isinstance(value, bool)
    if not isinstance(value, kinds[kind]):
        return False
    if kind == "array":
        return all(meets(item, schema["items"], root) for item in value)
    if kind == "object":
        known = schema.get("properties", {})
        extra = schema.get("additionalProperties")
        return set(schema.get("required", ())) <= set(value) and all(
            meets(item, known.get(name, extra), root) for name, item in value.items()
        )
    return True


def test_schema_has_the_fields_of_the_format() -> None:
    schema = record_schema()
    assert set(schema["$defs"]["Record"]["required"]) == set(Record.model_fields) - {"neuron_k8s_info"}
    assert set(schema["$defs"]["InstanceInfo"]["properties"]) == set(InstanceInfo.model_fields)
    assert all(definition["description"] for definition in schema["$defs"].values())


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
    unknown = replace(now, host=replace(now.host, vcpu_average=None, vcpu_times=()))
    group = made(unknown, before)["system_data"]["vcpu_usage"]
    assert (group["period"], group["average_usage"]["user"]) == (0.0, 0.0)
    assert (group["usage_data"], group["error"]) == ({}, "the host's vCPU times can't be read")


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


def test_cores_are_in_the_order_of_their_names_as_the_original_has_them() -> None:
    host = ScenarioHost("trn1.32xlarge")
    only = replace(host.at(5).processes[0], core_indices=tuple(range(12)), neuroncore_indices=tuple(range(12)))
    used = runtime(made(replace(host.at(6), processes=(only,)), None))["memory_used"]["neuron_runtime_used_bytes"]
    cores = list(used["usage_breakdown"]["neuroncore_memory_usage"])
    assert cores == ["0", "1", "10", "11", "2", "3", "4", "5", "6", "7", "8", "9"]


@pytest.mark.parametrize(("lnc", "physical"), [(1, []), (2, ["nc_v3.4", "nc_v3.5"])])
def test_a_process_lists_the_cores_of_its_devices_and_those_that_it_does_not_drive_are_at_0(
    lnc: int, physical: list[str]
) -> None:
    host = ScenarioHost("trn2.3xlarge", lnc=lnc, neuroncores=2)
    before, now = host.at(10), host.at(15)
    cores = runtime(made(now, before), 1)["neuroncore_counters"]["neuroncores_in_use"]
    assert list(cores) == [str(index) for index in range(8 // lnc)]

    def memory(configuration: MonitorConfiguration = EVERYTHING) -> dict[str, dict[str, int]]:
        used = runtime(made(now, before, configuration), 1)["memory_used"]["neuron_runtime_used_bytes"]
        found: dict[str, dict[str, int]] = used["usage_breakdown"]["neuroncore_memory_usage"]
        assert used["neuron_device"] == sum(found["1"].values()) > 0
        return found

    assert list(memory()) == list(cores)
    assert set(memory()["2"].values()) == {0}
    assert list(cores["1"].get("v3d", ())) == (["nc_v3.2", "nc_v3.3"] if lnc == 2 else [])
    breakdown = cores["2"].pop("v3d", {})
    assert cores["2"] == {"neuroncore_utilization": 0.0, "flops": 0, "effective_flops": 0}
    assert breakdown == {name: {"neuroncore_utilization": 0.0} for name in physical}
    assert cores["1"]["neuroncore_utilization"] > 0
    held = parse_configuration(
        {"neuroncores_in_use": "held", "neuron_runtimes": [{"metrics": [{"type": "neuroncore_counters"}]}]}
    )
    assert list(runtime(made(now, before, held), 1)["neuroncore_counters"]["neuroncores_in_use"]) == ["1"]
    assert list(memory(replace(EVERYTHING, lists_held_cores_only=True))) == ["1"]


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
    periods = [made(second, before)["system_data"]["neuron_hw_counters"]["period"] for before in (None, first)]
    assert periods == [second.taken_at_seconds, 2.0], "at most since the host was started"
    assert second.health is not None
    unread = tuple(replace(device, ecc=replace(device.ecc, mem_corrected_total=None)) for device in second.devices)
    why = "neuron3/stats/hardware/mem_ecc_corrected can't be read: is empty"
    unread_snapshot = replace(second, devices=unread, health=second.health.with_unknown({3: why}))
    assert corrected(unread_snapshot, first) == corrected(second, unread_snapshot) == 0
    counters = made(unread_snapshot, first)["system_data"]["neuron_hw_counters"]
    assert counters["error"] == f"device 3: {why}"


def test_a_period_in_which_the_clock_was_set_has_only_its_own_executions() -> None:
    host = ScenarioHost("trn1.2xlarge")
    before, now = host.at(100), host.at(105)
    done = [
        runtime(made(each, before))["execution_stats"]["execution_summary"]
        for each in (now, by_wall_clock(now, 3600.0))
    ]
    assert done[0] == done[1]
    total = now.processes[0].executions
    assert total is not None
    assert 0 < done[1]["completed"] < total.completed_total / 10


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
    configuration = parse_configuration(
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
    info = made(now, None, parse_configuration({"k8s_info": True}))["neuron_k8s_info"]
    p0 = {"pod_name": "p0", "namespace": "n0", "container_name": ["c0"]}
    late = {"pod_name": "late", "namespace": "ml", "container_name": ["c"]}
    both = {"pod_name": "p1", "namespace": "n1", "container_name": ["c1", "c2"]}
    assert info["neuroncores_k8s_info"] == {"0": p0, "1": p0, "2": both, "4": late}
    assert info["neurondevices_k8s_info"] == {"0": p0, "2": late}
    Record.model_validate_json(json.dumps(made(now, None, parse_configuration({"k8s_info": True}))))


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
def mixed() -> tuple[ScenarioHost, MonitorRecorder]:
    configuration = parse_configuration(
        {
            "period": "1s",
            "neuron_runtimes": [{"metrics": [{"type": "execution_stats"}]}],
            "system_metrics": [{"type": "memory_info"}, {"type": "neuron_hw_counters", "period": "3s"}],
            "k8s_info": {"period": "2s"},
        }
    )
    return ScenarioHost("inf2.xlarge"), MonitorRecorder(configuration, STARTED_AT_SECONDS + 10)


def test_group_periods(mixed: tuple[ScenarioHost, MonitorRecorder]) -> None:
    host, recorder = mixed
    for second in range(10, 17):
        document = recorder.next_record(host.at(second))
        assert ("neuron_hw_counters" in document["system_data"]) == (second in (10, 13, 16))
        assert ("neuron_k8s_info" in document) == (second in (10, 12, 14, 16))
        period = document["neuron_runtime_data"][0]["report"]["execution_stats"]["period"]
        assert period == (0.0 if second == 10 else 1.0)
        assert recorder.next_seconds == STARTED_AT_SECONDS + second + 1


def test_missed_periods_are_not_made_up_for(mixed: tuple[ScenarioHost, MonitorRecorder]) -> None:
    host, recorder = mixed
    recorder.next_record(host.at(10))
    document = recorder.next_record(host.at(14.5))
    assert document["system_data"]["memory_info"]["period"] == 4.5
    assert recorder.next_seconds == STARTED_AT_SECONDS + 15


def test_a_period_shorter_than_the_interval_is_the_interval_and_puts_off_nobody_else() -> None:
    host = ScenarioHost("inf2.xlarge")
    metrics = [{"type": "memory_info"}, {"type": "neuron_hw_counters", "period": "4s"}]
    configuration = parse_configuration({"period": "250ms", "system_metrics": metrics})
    recorder = MonitorRecorder(configuration, STARTED_AT_SECONDS + 10)
    due = []
    for second in range(10, 20):
        now = host.at(second)
        assert recorder.accepts(now)
        groups = recorder.next_record(now)["system_data"]
        due.append((groups["memory_info"]["period"], "neuron_hw_counters" in groups))
        assert not recorder.accepts(now), "what is known already is no news"
    assert due == [(0.0 if second == 10 else 1.0, second % 4 == 2) for second in range(10, 20)]


def test_outage(mixed: tuple[ScenarioHost, MonitorRecorder]) -> None:
    host, recorder = mixed
    assert recorder.make_outage("no daemon", STARTED_AT_SECONDS + 9) is None
    recorder.next_record(host.at(10))
    document = recorder.make_outage("no daemon", STARTED_AT_SECONDS + 11)
    assert document is not None
    Record.model_validate_json(json.dumps(document))
    assert document["neuron_runtime_data"] == []
    assert document["system_data"]["memory_info"]["error"] == "no daemon"
    assert document["instance_info"]["instance_type"] == "inf2.xlarge"
    after = recorder.next_record(host.at(12))
    assert after["system_data"]["memory_info"]["period"] == 2.0, "nothing that happened meanwhile is lost"


def test_every_group_is_planned() -> None:
    keys = [key for key, _ in group_periods(parse_configuration({"k8s_info": True}))]
    assert keys == [K8S]
    assert len(list(group_periods(EVERYTHING))) == 7
    assert GroupKey(0, "memory_used") in dict(group_periods(EVERYTHING))
