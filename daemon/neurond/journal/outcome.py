"""How a process ended, as far as anybody knows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """`exit_status` as subprocess has it: a code, or the negative number of a signal; None where it is not known."""

    exit_status: int | None = None
    lives_on: bool = False  # it let its cores go and goes on
