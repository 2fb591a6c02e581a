"""Privacy filter: removes command lines and user names from the data that viewers see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from neurontools.client.timeline import HostTimeline
from neurontools.fleet.jobs import FleetJob
from neurontools.fleet.states import HostState
from neurontools.model import EndedProcess, Snapshot
from neurontools.net.http_site import is_loopback


def shows_by_default(listen_host: str | None, further_hosts: Sequence[str] | None) -> bool:
    """Returns whether viewers may see commands and users if no setting says so.

    They may if only this host reaches the address: a loopback address, and no further host names, which a proxy needs.
    On this host, every user sees commands and users with ps(1), too.
    """
    return is_loopback(listen_host) and not further_hosts


@dataclass(frozen=True, slots=True)
class PrivacyFilter:
    """Removes command lines and user names unless configured to show them."""

    shows_commands: bool = False
    shows_users: bool = False

    @property
    def _changes(self) -> dict[str, object]:
        changes: dict[str, object] = {} if self.shows_commands else {"command": ""}
        return changes if self.shows_users else {**changes, "user": None}

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        """Returns the snapshot without the hidden fields of its processes."""
        changes = self._changes
        if not changes:
            return snapshot
        if not self.shows_users:
            changes = {**changes, "uid": None}
        processes = tuple(replace(process, **changes) for process in snapshot.processes)  # type: ignore[arg-type]
        return replace(snapshot, processes=processes, ended=self.ended(snapshot.ended))

    def ended(self, ended: Iterable[EndedProcess]) -> tuple[EndedProcess, ...]:
        """Returns the ended processes without their hidden fields."""
        return tuple(replace(process, **self._changes) for process in ended)  # type: ignore[arg-type]

    def hosts(self, states: Iterable[HostState]) -> tuple[HostState, ...]:
        """Returns the hosts, without users if those are hidden. Summaries of hosts never contain commands."""
        return tuple(states) if self.shows_users else tuple([_without_users(state) for state in states])

    def jobs(self, jobs: Iterable[FleetJob]) -> tuple[FleetJob, ...]:
        """Returns the jobs, without users if those are hidden."""
        return tuple(jobs) if self.shows_users else tuple([job.without_users for job in jobs])

    def notes(self, where: str) -> tuple[str, ...]:
        """Returns a note that names the hidden fields and where to configure them; empty if nothing is hidden."""
        shown = {"commands": self.shows_commands, "users": self.shows_users}
        hidden = " and ".join(name for name, is_shown in shown.items() if not is_shown).capitalize()
        return (f"{hidden} are hidden here; to show them, change {where}.",) if hidden else ()


def _without_users(state: HostState) -> HostState:
    return state if state.summary is None else replace(state, summary=state.summary.without_users)


class FilteredTimeline(HostTimeline):
    """Timeline that passes its snapshots through a privacy filter."""

    def __init__(self, limit_bytes: int, hiding: PrivacyFilter) -> None:
        super().__init__(limit_bytes)
        self._hiding = hiding
        self._shown: tuple[Snapshot, Snapshot] | None = None

    def snapshot(self, index: int) -> Snapshot:
        whole = super().snapshot(index)
        if self._shown is None or self._shown[0] is not whole:
            self._shown = whole, self._hiding.snapshot(whole)
        return self._shown[1]
