"""The examination, and what it found as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from neurontools.cli.doctor import daemons, driver, installation, surroundings
from neurontools.cli.doctor.check import Check, Level, Place
from neurontools.util.formats import json_text
from neurontools.util.terminal import escape_controls
from neurontools.util.version import __version__

_EXAMINATIONS = (installation.examine, driver.examine, daemons.examine, surroundings.examine)
_WIDEST_AREA, _WIDEST_LEVEL = 10, 8


def examination(place: Place) -> list[Check]:
    """All that was found. A part that fails is a problem like any other, and ends no other part."""
    found: list[Check] = []
    for examine in _EXAMINATIONS:
        try:
            found += examine(place)
        except Exception as error:
            area = examine.__module__.rpartition(".")[2]
            told = f"it could not be looked at: {type(error).__name__}: {error}"
            found.append(Check(area, Level.PROBLEM, told, "please report this"))
    return found


def report_text(checks: Sequence[Check]) -> str:
    """A line for each thing, what to do under it, and a sum."""
    lines = [f"neuron-doctor {__version__}"]
    for check in checks:
        lines.append(f"{check.area:<{_WIDEST_AREA}}{check.level:<{_WIDEST_LEVEL}}{escape_controls(check.found)}")
        if check.action:
            lines.append(f"{'':<{_WIDEST_AREA + _WIDEST_LEVEL}}do: {escape_controls(check.action)}")
    return "\n".join((*lines, summary(checks), ""))


def report_json(checks: Sequence[Check]) -> str:
    """The same as an object."""
    told = [
        {"area": check.area, "level": str(check.level), "found": check.found, "action": check.action or None}
        for check in checks
    ]
    return json_text({"version": __version__, "summary": summary(checks), "checks": told}, indent=2) + "\n"


def summary(checks: Sequence[Check]) -> str:
    """How much is wrong, in words."""
    problems = sum(check.level is Level.PROBLEM for check in checks)
    notes = sum(check.level is Level.NOTE for check in checks)
    if not problems and not notes:
        return "nothing is wrong"
    parts = [f"{problems} problem{'s' if problems > 1 else ''}"] if problems else []
    parts += [f"{notes} note{'s' if notes > 1 else ''}"] if notes else []
    return ", ".join(parts)
