"""Tells what is new in the log: each warning, and each finding that is worse than a notice, once."""

from __future__ import annotations

import logging

from neurontools.model import Finding, Severity, Snapshot
from neurontools.model.health import marked_reason
from neurontools.util.units import ranges_text, strip_durations

_log = logging.getLogger(__name__)
_FORGOTTEN_SECONDS = 600.0  # what was away for so long is new when it comes again; what flaps is told once
_MOST_LINES = 16  # of one snapshot; a host that fails as a whole doesn't fill the log


class Announcer:
    """Remembers what was told. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._seen_at_seconds: dict[object, float] = {}

    def tell(self, snapshot: Snapshot) -> None:
        """Logs what is in this snapshot and was in none of the last minutes."""
        now_seconds = snapshot.taken_at_seconds
        seen = self._seen_at_seconds
        new = []
        for warning in snapshot.warnings:
            key = strip_durations(warning)
            if key not in seen:
                new.append(warning)
            seen[key] = now_seconds
        for finding in snapshot.health.findings if snapshot.health is not None else ():
            if finding.severity > Severity.NOTICE:
                if finding.identity not in seen:
                    new.append(_line(finding))
                seen[finding.identity] = now_seconds
        for line in new[:_MOST_LINES]:
            _log.warning("%s", line)
        if len(new) > _MOST_LINES:
            _log.warning("and %d more; neuron-ls --health tells all", len(new) - _MOST_LINES)
        old = now_seconds - _FORGOTTEN_SECONDS
        self._seen_at_seconds = {key: at for key, at in seen.items() if at > old}


def _line(finding: Finding) -> str:
    indices = finding.device_indices
    place = f"device{'s' if len(indices) > 1 else ''} {ranges_text(indices)}"
    return f"{place}: {finding.severity.name.lower()}: {marked_reason(finding)}; {finding.action}"
