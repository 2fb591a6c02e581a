"""Which findings have begun and which have ended from one tick to the next."""

from __future__ import annotations

from neurontools.model import Finding, Health


class Changes:
    """Remembers the findings of the tick before; those of the first tick have all begun."""

    def __init__(self) -> None:
        self._health: Health | None = None
        self._known: dict[tuple[object, ...], Finding] = {}

    def look(self, health: Health | None) -> tuple[list[Finding], list[Finding]]:
        """Those that have begun, and those that have ended, as they were last."""
        if health is self._health:
            return [], []
        now = {finding.identity: finding for finding in health.findings} if health is not None else {}
        began = [finding for identity, finding in now.items() if identity not in self._known]
        ended = [finding for identity, finding in self._known.items() if identity not in now]
        self._health, self._known = health, now
        return began, ended
