"""Shares of the last seconds: of operators and of loaded models, whose executions may be longer than a tick."""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from dataclasses import dataclass, replace

from neurontools.model import Process
from neurontools.model.counting import continues

_WINDOW_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Moment:
    process: Process
    measured_at_seconds: float
    operators: dict[str, float]
    models: dict[int, float]


class RecentShares:
    """What each process told in the last seconds. Feed it every report of a process, in order."""

    def __init__(self) -> None:
        self._past: dict[int, deque[_Moment]] = {}

    def derive(self, now: Process) -> dict[str, object]:
        """The operators and models of a process with their shares; nothing for one that tells none of them."""
        measured_at = now.measured_at_seconds
        if measured_at is None or not (now.operators or any(m.busy_seconds_total is not None for m in now.models)):
            return {}
        past = self._past.setdefault(now.pid, deque())
        if past and not continues(past[-1].process, now):
            past.clear()
        if not past or past[-1].measured_at_seconds < measured_at:
            operators = {operator.name: operator.seconds_total for operator in now.operators}
            models = {m.model_id: m.busy_seconds_total for m in now.models if m.busy_seconds_total is not None}
            past.append(_Moment(now, measured_at, operators, models))
        while len(past) > 2 and past[1].measured_at_seconds <= measured_at - _WINDOW_SECONDS:
            past.popleft()
        first = past[0]
        seconds = measured_at - first.measured_at_seconds
        if seconds <= 0 or not now.reporting:
            return {}

        def share(before: float | None, total: float) -> float | None:
            return None if before is None or total < before else min(1.0, (total - before) / seconds)

        # One that is new may have been among the rest; before any had been told apart, it was not counted by itself.
        unnamed = None if first.operators.keys() - {""} else 0.0
        return {
            "operators": tuple(
                replace(operator, ratio=share(first.operators.get(operator.name, unnamed), operator.seconds_total))
                for operator in now.operators
            ),
            "models": tuple(
                model
                if model.busy_seconds_total is None
                else replace(model, busy_ratio=share(first.models.get(model.model_id), model.busy_seconds_total))
                for model in now.models
            ),
        }

    def keep(self, pids: Set[int]) -> None:
        """Forgets all others."""
        for pid in self._past.keys() - pids:
            del self._past[pid]
