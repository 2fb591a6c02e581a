"""What may be asked for: rubbish is told in one line, and nothing else gets through."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.faults.kinds import KINDS
from neurontools.faults.request import FaultRequest, ImpossibleFault

NUMBERS = st.none() | st.floats() | st.integers(-5, 2**70)
ANYTHING = st.fixed_dictionaries(
    {"kind": st.sampled_from([*KINDS, "", "x" * 500, "dma-abort\x1b[2J\n"])},
    optional={
        "device_index": st.none() | st.integers(-3, 2**40),
        "neuroncore_index": st.none() | st.integers(-3, 2**40),
        "pid": st.none() | st.integers(-3, 2**40),
        "after_executions": st.none() | st.integers(-3, 2**70),
        "after_seconds": NUMBERS,
        "for_seconds": NUMBERS,
        "probability": NUMBERS,
        "amount": NUMBERS,
        "part": st.none() | st.text(max_size=5),
        "seed": st.integers(-3, 2**70),
    },
)


@given(ANYTHING)
def test_rubbish_is_told_in_one_harmless_line(asked: dict[str, Any]) -> None:
    try:
        request = FaultRequest(**asked)
    except ImpossibleFault as error:
        assert str(error).isprintable()
        assert len(str(error)) < 300
    else:
        targets = (request.device_index, request.neuroncore_index, request.pid)
        assert sum(target is not None for target in targets) == int(not KINDS[request.kind].loses_host)
        for value in (request.after_seconds, request.for_seconds, request.probability, request.amount):
            assert value is None or math.isfinite(value)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"kind": "dma-abrt", "device_index": 0}, "did you mean dma-abort?"),
        ({"kind": "dma-abort"}, "give one of a device, a NeuronCore and a process"),
        ({"kind": "host-lost", "device_index": 0}, "it is of the whole host"),
        ({"kind": "dma-abort", "device_index": 0, "pid": 3}, "give one of a device, a NeuronCore and a process"),
        ({"kind": "dma-abort", "device_index": 0, "probability": 1.5}, "1.5 is no probability"),
        ({"kind": "dma-abort", "device_index": 0, "for_seconds": 0}, "0 s is no duration"),
        ({"kind": "dma-abort", "device_index": 0, "amount": 2}, "there is no more or less of it"),
        ({"kind": "ecc-corrected", "device_index": 0, "amount": 1.5}, "a whole number from 1"),
        ({"kind": "ecc-corrected", "device_index": 0, "after_executions": 3}, "no execution meets it"),
    ],
)
def test_it_says_what_is_wrong(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ImpossibleFault, match=said.replace("?", r"\?")):
        FaultRequest(**asked)
