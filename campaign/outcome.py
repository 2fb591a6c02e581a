"""The result of one trial, and the table of all results."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """The result of one trial. `figure` is its measurement in words, `skipped` the reason for not running it."""

    name: str
    rounds: int = 0
    failures: list[str] = field(default_factory=list)
    figure: str = ""
    skipped: str = ""

    def check(self, holds: bool, otherwise: str) -> None:
        """Adds a failure unless the condition holds."""
        if not holds:
            self.failures.append(otherwise)


def table(outcomes: list[Outcome]) -> str:
    """Returns the results as a Markdown table."""
    rows = [
        f"| {outcome.name} | {outcome.rounds} | {len(outcome.failures)} | {outcome.skipped or outcome.figure} |"
        for outcome in outcomes
    ]
    return "\n".join(["| test | rounds | failures | figure |", "|---|---:|---:|---|", *rows])
