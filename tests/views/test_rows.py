"""Rows say what `neuron-ls --query --format json` says."""

from __future__ import annotations

import json

import pytest

from neurontools import catalog, rows
from neurontools.views.query_fields import FIELDS, parse_format, query_rows, query_text
from neurontools.views.top_document import top_document, top_json
from tests.harness.scenario_host import ScenarioHost


def test_rows_are_those_of_the_query() -> None:
    host = ScenarioHost("trn2.48xlarge", "steady", neuroncores=5)
    host.at(10)
    snapshot = host.at(11)
    peak = catalog.load("trn2.48xlarge").family.peak_flops_per_physical_core("bf16")
    assert catalog.peak_flops_per_core("trn2.48xlarge") == peak
    assert catalog.peak_flops_per_core("trn9.48xlarge") is None
    for made, of_cores, lnc in (
        (rows.devices(snapshot), False, None),
        (rows.cores(snapshot), True, None),
        (rows.cores(snapshot, logical_neuroncore_config=1), True, 1),
        (rows.cores(snapshot, logical_neuroncore_config=7), True, None),
    ):
        fields = [field for field in FIELDS.values() if of_cores or not field.is_of_core]
        found = query_rows(snapshot, peak, lnc, (), of_cores=of_cores)
        asked = query_text(fields, found, parse_format("json"))
        assert json.loads(asked) == made


def test_scalars_are_the_known_numbers_of_one_process() -> None:
    host = ScenarioHost("trn1.32xlarge", "steady", neuroncores=3)
    host.at(10)
    snapshot = host.at(11)
    process = json.loads(top_json(top_document(snapshot)))["processes"][0]
    found = rows.scalars(snapshot, process["pid"])
    numbers = {name: value for name, value in process.items() if type(value) in (int, float)}
    del numbers["pid"]
    assert numbers
    assert found == pytest.approx({f"neuron/{name}": value for name, value in numbers.items()})
    assert rows.scalars(snapshot) == {}, "this process holds no core"


def test_a_core_has_its_process_and_its_device() -> None:
    host = ScenarioHost("trn1.32xlarge", "steady", neuroncores=3)
    host.at(10)
    found = rows.cores(host.at(11))
    assert len(found) == 32
    assert [row["process_pid"] is not None for row in found[:4]] == [True, True, True, False]
    assert [row["index"] for row in found[:4]] == [0, 0, 1, 1]
    assert found[0]["health"] == "ok"
    assert found[0]["memory_total_bytes"] == 32 * 2**30
