"""Keeps track of who has devices open, without looking at every process every time.

Known owners and young processes are looked at in each round; of all the others so many as fit into a few milliseconds,
in turn. A process that opens a device late in its life is found when its turn comes.
"""

from __future__ import annotations

import time

from neurond.sources.sysfs.pacing import Pacing
from neurontools.driver.processes import OpenDevices, OwnerScan, hidden_processes_warning

_ROUND_SECONDS = 0.003
_NEW_ROUNDS = 8
_YOUNG_ROUNDS = 120


class OwnerTracker:
    """Call `refresh` once a round. `hidden` is how many processes are not for us to look into."""

    def __init__(self, scan: OwnerScan, pacing: Pacing) -> None:
        self._scan = scan
        self._pacing = pacing
        self._owners: dict[int, tuple[int, ...]] = {}
        self._ages: dict[int, int] = {}
        self._hidden: set[int] = set()
        self._turn = 0

    def use(self, scan: OwnerScan) -> None:
        """Goes on with another scan, after devices came or went."""
        self._scan = scan

    @property
    def owners(self) -> list[OpenDevices]:
        """The owners as of the latest round, by PID."""
        return [OpenDevices(pid, devices) for pid, devices in sorted(self._owners.items())]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to tell when processes could not be looked into."""
        return (hidden_processes_warning(len(self._hidden)),) if self._hidden else ()

    @property
    def sees_all(self) -> bool:
        """Whether no process is hidden from us."""
        return not self._hidden

    def refresh(self, *, whole: bool = False) -> None:
        """Looks again; with `whole` at every process."""
        present = self._scan.pids()
        alive = set(present)
        for pid in self._ages.keys() - alive:
            del self._ages[pid]
            self._owners.pop(pid, None)
            self._hidden.discard(pid)
        for pid in alive:
            age = self._ages[pid] = self._ages.get(pid, -1) + 1
            if not whole and (pid in self._owners or _is_due(age)):
                self._look(pid)
        self._look_in_turn(present, whole)

    def _look_in_turn(self, present: list[int], whole: bool) -> None:
        ending = time.monotonic() + _ROUND_SECONDS
        for count in range(len(present)):
            self._turn = (self._turn + 1) % len(present)
            self._look(present[self._turn])
            if not whole and count % 8 == 7 and time.monotonic() > ending:
                return

    def _look(self, pid: int) -> None:
        self._pacing.step()
        devices = self._scan.devices_of(pid)
        if devices is None:
            self._hidden.add(pid)
            self._owners.pop(pid, None)
            return
        self._hidden.discard(pid)
        if devices:
            self._owners[pid] = devices
        else:
            self._owners.pop(pid, None)


def _is_due(age: int) -> bool:
    """Whether a process of this age in rounds is looked at out of turn: each round at first, then every fourth."""
    return age < _NEW_ROUNDS or (age < _YOUNG_ROUNDS and age % 4 == 0)
