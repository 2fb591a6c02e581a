"""Waiting for free NeuronCores: `neuron-run --wait`.

Several commands that wait for the same daemon take turns: whoever's turn it is looks for free cores, starts its script,
and gives the turn on when the script has them. So two of them never start on the same core, and two with several
workers never end up with half of the cores each.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Mapping
from time import monotonic, sleep
from typing import Any

from neurontools.cli.daemon.ask import NoDaemon, ask
from neurontools.cli.line.output import tell
from neurontools.errors import EXIT_TIMED_OUT, UserError
from neurontools.nrt.core_request import CoreRequest
from neurontools.rpc import socket_path

_POLL_SECONDS = 0.2
_LONGEST_START_SECONDS = 120.0  # a script that takes no cores keeps the turn no longer
_ASK_SECONDS = 5.0


class Turn:
    """The right to take free cores. It is given on when the cores have owners, at the latest when the context ends."""

    def __init__(self, longest_seconds: float, workers: int, environment: Mapping[str, str]) -> None:
        """Waits no longer than `longest_seconds`, for ever where that is 0, for the cores that the variables ask for.

        `workers` of torchrun take a core each.
        """
        self._request = CoreRequest.from_environment(environment)
        self._workers = workers
        self._path = socket_path.named(None, environment) or socket_path.default(environment)
        self._longest_seconds = longest_seconds
        self._deadline = monotonic() + longest_seconds if longest_seconds else None
        self._descriptor = -1
        self._began_seconds = 0.0
        self._free: set[int] = set()
        self._has_told = False

    def __enter__(self) -> Turn:
        """Waits; UserError when the time is over or no daemon is there."""
        _snapshot(self._path)
        try:
            self._take_turn()
            while not self._are_free():
                self._pause()
        except BaseException:
            self.end()
            raise
        self._began_seconds = monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Gives the turn on; may be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def end_when_taken(self) -> None:
        """Gives the turn on if the cores have owners by now; to be called from time to time."""
        if self._descriptor < 0:
            return
        try:
            owned, _ = _cores(_snapshot(self._path), self._request)
        except UserError:
            return
        taken = len(owned & self._free)
        if taken >= max(self._workers, 1) or monotonic() - self._began_seconds > _LONGEST_START_SECONDS:
            self.end()

    def _take_turn(self) -> None:
        """The turn is a lock of the directory of the socket, which all that wait can open and none has to write to."""
        try:
            self._descriptor = os.open(os.path.dirname(self._path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # noqa: PTH120
        except OSError:
            return  # without turns then
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            self._pause()

    def _pause(self) -> None:
        if self._deadline is not None and monotonic() > self._deadline:
            raise UserError(
                f"--wait {self._longest_seconds:g}: the NeuronCores did not become free; see neuron-ls for who has "
                "them, or wait longer",
                EXIT_TIMED_OUT,
            )
        if not self._has_told:
            tell("neuron-run: waiting for free NeuronCores")
            self._has_told = True
        sleep(_POLL_SECONDS)

    def _are_free(self) -> bool:
        try:
            snapshot = _snapshot(self._path)
        except NoDaemon:
            return False  # it was there when the waiting began: somebody restarts it
        owned, total = _cores(snapshot, self._request)
        wanted = self._wanted(owned, total)
        self._free = set(range(total)) - owned
        return wanted is None or not owned & wanted

    def _wanted(self, owned: set[int], total: int) -> set[int] | None:
        """The cores that have to be free; None when waiting is no use, because the host has not so many."""
        request = self._request
        if request.first is not None and request.count is not None:
            wanted = set(range(request.first, request.first + request.count))
        elif self._workers > 1:
            wanted = set(range(self._workers))
        else:
            count = request.count or total
            free = (set(range(first, first + count)) for first in range(total - count + 1))
            wanted = next((cores for cores in free if not owned & cores), set(range(count)))
        return wanted if wanted <= set(range(total)) else None


def _snapshot(path: str) -> Any:
    from neurontools.rpc import neuron_pb2

    reply = ask(path, "/neurontools.v1.MonitorService/GetSnapshot", b"", _ASK_SECONDS)
    return neuron_pb2.GetSnapshotResponse.FromString(reply).snapshot


def _cores(snapshot: Any, request: CoreRequest) -> tuple[set[int], int]:
    """The logical cores that have an owner, and how many there are."""
    lnc = request.logical_neuroncore_config or snapshot.instance.logical_neuroncore_config or 1
    owned = {core.index // lnc for core in snapshot.cores if core.HasField("owner_pid")}
    return owned, len(snapshot.cores) // lnc
