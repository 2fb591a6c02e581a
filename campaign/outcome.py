"""What a trial of the campaign found, and how it is told."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """How one trial went. `figure` is what it measured, in words; `skipped` says why it could not be made."""

    name: str
    rounds: int = 0
    failures: list[str] = field(default_factory=list)
    figure: str = ""
    skipped: str = ""

    def check(self, holds: bool, otherwise: str) -> None:
        """Notes a failure unless something holds."""
        if not holds:
            self.failures.append(otherwise)


def table(outcomes: list[Outcome]) -> str:
    """The outcomes as a Markdown table."""
    rows = [
        f"| {outcome.name} | {outcome.rounds} | {len(outcome.failures)} | {outcome.skipped or outcome.figure} |"
        for outcome in outcomes
    ]
    return "\n".join(["| test | rounds | failures | figure |", "|---|---:|---:|---|", *rows])
