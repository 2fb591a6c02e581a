from __future__ import annotations

import json
from typing import Any

import pytest

from neurontools.monitor.baseline import Baseline
from neurontools.monitor.configuration import MonitorConfiguration, configuration_from
from neurontools.monitor.json_schema import record_schema
from neurontools.monitor.record import record
from tests.harness.record_models import InstanceInfo, Record
from tests.harness.scenario_host import ScenarioHost


def meets(value: Any, schema: Any, root: Any) -> bool:
    """The few keywords that our schema uses."""
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


@pytest.mark.parametrize("instance_type", ["inf2.xlarge", "trn1.32xlarge", "trn2.48xlarge"])
def test_records_meet_the_schema(instance_type: str) -> None:
    host = ScenarioHost(instance_type)
    before = host.at(10)
    schema = json.loads(json.dumps(record_schema()))
    everything = MonitorConfiguration.everything()
    document = json.loads(json.dumps(record(host.at(15), everything, lambda _: Baseline.first(before))))
    assert meets(document, schema, schema)
    document["neuron_runtime_data"][0]["report"]["execution_stats"]["execution_summary"]["completed"] = 1.0
    assert not meets(document, schema, schema), "a count is an integer"
    k8s = json.loads(json.dumps(record(host.at(15), configuration_from({"k8s_info": True}), lambda _: None)))
    assert meets(k8s, schema, schema)


def test_schema_has_the_fields_of_the_format() -> None:
    schema = record_schema()
    assert set(schema["$defs"]["Record"]["required"]) == set(Record.model_fields) - {"neuron_k8s_info"}
    assert set(schema["$defs"]["InstanceInfo"]["properties"]) == set(InstanceInfo.model_fields)
    assert all(definition["description"] for definition in schema["$defs"].values())
