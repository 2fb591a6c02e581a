from __future__ import annotations

from dataclasses import fields
from typing import get_args

from neurontools import model
from neurontools.runtime.reporting import kinds


def names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


def test_words_are_those_of_the_model() -> None:
    assert [f"{outcome}_total" for outcome in kinds.Outcome] == names(model.ExecutionCounters)
    assert [f"{kind}_total" for kind in kinds.ErrorKind] == names(model.ErrorCounters)
    assert list(get_args(kinds.DeviceMemoryCategory)) == names(model.DeviceMemory)
    assert list(get_args(kinds.HostMemoryCategory)) == names(model.HostMemory)
