"""The table of kinds: it names only what there is, and every kind shows somewhere."""

from __future__ import annotations

import pytest

from neurontools.faults.kind import Effect, FaultKind, Lasting
from neurontools.faults.kinds import KINDS
from neurontools.health import Kind
from neurontools.kernel_log import hardware_error
from neurontools.model import EccCounters, StatusCounters

FACTS = {"device": 3, "core": 1, "engine": 0, "timeout_ms": 30000, "model": "model.neff", "collectives": 3}
EACH = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))


@EACH
def test_what_a_kind_names_is_there(kind: FaultKind) -> None:
    assert set(kind.ecc) <= set(EccCounters.__slots__)
    assert kind.counter is None or f"{kind.counter}_total" in StatusCounters.__slots__
    assert kind.kernel_error is None or kind.kernel_error in hardware_error.NAMES
    assert set(kind.findings) <= set(Kind)
    for line in kind.log:
        assert line.function.startswith("TDRV:")
        assert "{" not in line.text.format_map(FACTS)


@EACH
def test_an_execution_that_fails_says_why(kind: FaultKind) -> None:
    fails = kind.effect in (Effect.FAILS, Effect.HANGS, Effect.HANGS_IN_COLLECTIVE)
    assert not fails or (kind.status and kind.log)


@EACH
def test_what_only_executions_meet_does_not_move_the_hardware(kind: FaultKind) -> None:
    passing = kind.lasts in (Lasting.ONE_EXECUTION, Lasting.PROCESS)
    assert not (passing and (kind.ecc or kind.component or kind.loses_device))
