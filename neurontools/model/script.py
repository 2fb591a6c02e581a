"""What a training runtime tells of its script: where the time of its executions goes, and what could be better."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.model.brief import showing


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """The operators of one kind that a process has executed."""

    name: str  # "aten::mm"; "" for all that are not listed, or not told apart yet
    seconds_total: float  # in the count of the process, by samples of its executions
    executions_total: int
    ratio: float | None = None  # of the last seconds

    __repr__ = showing("name", "seconds_total")


@dataclass(frozen=True, slots=True)
class ScriptAdvice:
    """One thing that a training script could do better, as its runtime judges it; texts come from the process."""

    rule: str  # "host-read"
    measured: str
    place: str | None  # "train.py:12"
    fix: str
    effect: str

    __repr__ = showing("rule", "place")
