"""Hosts that were named twice: by two names or addresses, and are one."""

from __future__ import annotations

from collections.abc import Sequence

from neurontools.fleet.states import HostState, Link
from neurontools.fleet.summary import HostSummary
from neurontools.model import SourceKind

_BOOT_SECONDS = 0.1  # two readings of when a host was booted differ by what its clock is set right meanwhile
_MOST_TOLD = 3


def once_each(states: Sequence[HostState]) -> tuple[tuple[HostState, ...], tuple[str, ...]]:
    """Each live host once, under the name that comes first, and lines that say which are the same."""
    by_key: dict[tuple[str, ...], list[tuple[float, HostState]]] = {}
    kept: list[HostState] = []
    same: list[str] = []
    for state in states:
        found = state.summary
        key = _key(found) if found is not None and state.link is Link.LIVE else None
        if key is None or found is None:
            kept.append(state)
            continue
        booted = found.taken_at_unix_seconds - found.taken_at_seconds if found.taken_at_seconds is not None else 0.0
        others = by_key.setdefault(key, [])
        first = next((other for at, other in others if abs(at - booted) < _BOOT_SECONDS), None)
        if first is None:
            others.append((booted, state))
            kept.append(state)
        else:
            same.append(f"{state.place.name} is the same host as {first.place.name}: one row")
    more = (f"and {len(same) - _MOST_TOLD} more hosts are named twice",) if len(same) > _MOST_TOLD else ()
    return tuple(kept), (*same[:_MOST_TOLD], *more)


def _key(found: HostSummary) -> tuple[str, ...] | None:
    """What two names of one host have in common beside when it was booted; None: not to be told.

    A daemon tells both its host's name and clocks; by a Prometheus the instance is known. Simulated hosts are many on
    one host, which was booted once.
    """
    if found.source is SourceKind.SIMULATED:
        return None
    if found.taken_at_seconds is not None:
        return found.host_name, found.instance_type, found.instance_id or ""
    return ("", "", found.instance_id) if found.instance_id else None
