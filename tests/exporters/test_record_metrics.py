"""Records as metrics: what makes no sense in them."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from neurontools.exporters.exposition import encode_text
from neurontools.exporters.monitor.configuration import MonitorConfiguration
from neurontools.exporters.monitor.period import RecordBaseline
from neurontools.exporters.monitor.recorder import make_record
from neurontools.exporters.record_metrics import RecordMetrics
from neurontools.exporters.snapshot_metrics import SnapshotMetrics
from neurontools.model import ErrorCounters, ExecutionCounters
from tests.harness.full_host import full_host
from tests.harness.scenario_host import ScenarioHost

EVERYTHING = MonitorConfiguration.default()
MADE: Any = make_record(ScenarioHost("trn1.2xlarge", "ecc-burst").at(10), EVERYTHING, lambda _: None)
ODD: list[Any] = ["9", [1], {"a": 1}, 10**400, float("nan"), float("-inf"), True, 1e300]


def samples(metrics: RecordMetrics | SnapshotMetrics) -> dict[str, str]:
    families = (
        metrics.families() if isinstance(metrics, RecordMetrics) else metrics.families(full_host()[-1], None, 1.0)
    )
    lines = encode_text(families).decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#") and "_created" not in line)


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place in a document that has a value."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


def put(document: Any, path: tuple[str | int, ...], value: Any) -> Any:
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


def test_a_record_has_the_metrics_of_its_snapshot() -> None:
    before, now = full_host()
    new = replace(before.processes[0], executions=ExecutionCounters(), errors=ErrorCounters())
    baseline = RecordBaseline.initial(replace(before, processes=(new,)))
    metrics = RecordMetrics(lambda: 0.0)
    metrics.add_record(json.loads(json.dumps(make_record(now, EVERYTHING, lambda _: baseline))))
    of_record, of_snapshot = (
        {name: float(value) for name, value in samples(each).items() if not name.startswith("neurontools_")}
        for each in (metrics, SnapshotMetrics(0.0))
    )
    shared = of_record.keys() & of_snapshot.keys()
    assert len(shared) == 40
    assert all('neuroncore="1"' in name for name in of_record.keys() - shared), "it lists all cores of the device"
    assert {name.partition("{")[0] for name in of_snapshot.keys() - shared} == {"neuron_runtime_vcpu_usage_ratio"}
    assert [of_record[name] for name in shared] == pytest.approx([of_snapshot[name] for name in shared], abs=2e-4)


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd)[:12])
def test_an_odd_value_is_left_out_and_counted_and_the_rest_stays(odd: Any) -> None:
    sane, metrics = RecordMetrics(lambda: 0.0), RecordMetrics(lambda: 0.0)
    sane.add_record(MADE)
    document = deepcopy(MADE)
    document["system_data"]["memory_info"]["memory_used_bytes"] = odd
    (problem,) = metrics.add_record(document)
    assert problem.description == "impossible values of memory_used_bytes are left out"
    assert len(problem.detail) < 100
    expected = {name: value for name, value in samples(sane).items() if "system_memory_used_bytes" not in name}
    assert samples(metrics) == expected | {"neurontools_odd_record_values_total": "1"}


def test_whatever_stands_anywhere_the_metrics_can_be_written() -> None:
    everywhere = places(MADE)
    assert len(everywhere) > 200
    for number, path in enumerate(everywhere):
        document = deepcopy(MADE)
        put(document, path, "" if path == ("instance_info",) else ODD[number % len(ODD)])
        metrics = RecordMetrics(lambda: 0.0)
        if path == ("instance_info",):
            with pytest.raises(ValueError, match="it has no instance_info"):
                metrics.add_record(document)
            continue
        for problem in metrics.add_record(document):
            name = problem.description.removeprefix("impossible values of ").removesuffix(" are left out")
            assert name == problem.description or set(name.split(".")) <= set(map(str, path)), path
        assert samples(metrics)["neurontools_odd_record_values_total"] in "012"
