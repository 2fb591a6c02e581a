"""A snapshot whose parts are made when they are asked for is the one that is made at once."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings

from neurontools import model
from neurontools.rpc.convert import from_message, snapshot_on_demand, to_message
from tests.harness.examples import examples
from tests.harness.model_parts import parts
from tests.harness.scenario_host import ScenarioHost

HOST = ScenarioHost("trn1.2xlarge", "steady").at(30.0)


@settings(max_examples=examples(25))
@given(parts(model.Snapshot))
def test_both_are_equal_from_either_side(snapshot: model.Snapshot) -> None:
    message = to_message(snapshot)
    assert snapshot_on_demand(message) == from_message(model.Snapshot, message)
    assert from_message(model.Snapshot, message) == snapshot_on_demand(message)
    assert repr(snapshot_on_demand(message)) == repr(snapshot)


def test_a_part_is_made_once_and_only_where_it_is_asked_for() -> None:
    process = snapshot_on_demand(to_message(HOST)).processes[0]
    slot = type(process).__mro__[1].__dict__["models"]
    with pytest.raises(AttributeError):
        slot.__get__(process)
    assert process.models == HOST.processes[0].models
    assert process.models is process.models
    assert slot.__get__(process) is process.models
    with pytest.raises(AttributeError):
        getattr(process, "colour")  # noqa: B009


def test_a_changed_one_is_an_ordinary_one() -> None:
    process = snapshot_on_demand(to_message(HOST)).processes[0]
    changed = replace(process, tag="other")
    assert type(changed) is model.Process
    assert isinstance(process, model.Process)
    same = [name for field in fields(model.Process) if (name := field.name) != "tag"]
    assert [getattr(changed, name) for name in same] == [getattr(HOST.processes[0], name) for name in same]
    assert hash(process) == hash(HOST.processes[0])
