"""[actions] of the configuration, checked and plain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neurontools.model import Severity
from neurontools.model.host_verdict import Asked
from neurontools.model.problems import Owner


@dataclass(frozen=True, slots=True)
class ActionSettings:
    """What is done, when, and how often at most."""

    asked: Asked  # which findings count
    events: frozenset[str]  # "begins", "ends"
    command: tuple[str, ...] | None = None  # program and arguments, run without a shell
    webhook: str | None = None  # URL that the document is posted to
    timeout_seconds: float = 30.0
    retries: int = 2
    most_per_hour: int = 60

    @classmethod
    def made(cls, told: dict[str, Any]) -> ActionSettings:
        """Those that `neurond.startup.configuration` has checked; without a command and a webhook they do nothing."""
        owners = tuple(Owner) if told["problems"] == "all" else (Owner(told["problems"]),)
        return cls(
            Asked(Severity[told["level"].upper()], owners, tuple(told["only"]) or None),
            frozenset(told["on"]),
            tuple(told["command"]) if told["command"] else None,
            told["webhook"],
            told["timeout_seconds"],
            told["retries"],
            told["most_per_hour"],
        )
