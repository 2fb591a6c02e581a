"""`neuron-run --wait`: waits for free NeuronCores.

Commands that wait for cores of the same daemon queue up. The first command in the queue waits for free cores and starts
its script. The next command's turn begins when that script has its cores. So two commands never take the same core, and
two commands with several workers never block each other with half of their cores.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Mapping
from time import monotonic, sleep

from neurontools.client.daemon_client import connect
from neurontools.driver.neuron_runtime import CoreRequest
from neurontools.free_cores import CoreRange, free_indices, select, wait_until
from neurontools.model import Snapshot, logical_cores
from neurontools.rpc import socket_path
from neurontools.util.command_lifecycle import write_stderr
from neurontools.util.errors import EXIT_TIMED_OUT, UserError

_POLL_SECONDS = 0.2
_LONGEST_START_SECONDS = 120.0  # a turn ends after this time even if the script takes no cores


class CoreQueueTurn:
    """Context manager of a turn in the queue for free cores.

    The turn ends when processes have taken the cores, or when the context exits.
    """

    def __init__(self, longest_seconds: float, workers: int, environment: Mapping[str, str]) -> None:
        """Connects to the daemon. Raises NoDaemon if no daemon runs.

        `longest_seconds` limits the wait for cores; 0 waits forever. Each of the `workers` needs one core.
        """
        self._request = CoreRequest.from_environment(environment)
        self._workers = workers
        self._daemon = connect(socket_path.configured_socket(None, environment))
        self._longest_seconds = longest_seconds
        self._deadline = monotonic() + longest_seconds if longest_seconds else None
        self._descriptor = -1
        self._began_seconds = 0.0
        self._free: frozenset[int] = frozenset()
        self._has_reported = False

    def __enter__(self) -> CoreQueueTurn:
        """Waits for the turn, then for free cores. Raises UserError on timeout or if the daemon fails."""
        try:
            self._acquire_turn()
            if wait_until(self._select_cores, self._daemon, self._remaining_seconds()) is None:
                raise self._time_over()
        except BaseException:
            self.end()
            raise
        self._began_seconds = monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends the turn. Does nothing if the turn has already ended."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def end_when_owned(self) -> None:
        """Ends the turn once processes own the cores, or the script took too long to start. Call this repeatedly."""
        if self._descriptor < 0:
            return
        try:
            free = free_indices(self._daemon.snapshot(), self._request.logical_neuroncore_config)
        except UserError:
            return
        taken_count = len(self._free - free)
        if taken_count >= max(self._workers, 1) or monotonic() - self._began_seconds > _LONGEST_START_SECONDS:
            self.end()

    def _acquire_turn(self) -> None:
        """Waits for the command's turn: for the lock on the socket's directory, which needs no write permission."""
        directory = os.path.dirname(self._daemon.socket_path) or "."  # noqa: PTH120
        try:
            self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return  # starts without a turn
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            self._pause()

    def _pause(self) -> None:
        remaining_seconds = self._remaining_seconds()
        if remaining_seconds is not None and remaining_seconds < 0:
            raise self._time_over()
        self._report_waiting()
        sleep(_POLL_SECONDS)

    def _remaining_seconds(self) -> float | None:
        return None if self._deadline is None else self._deadline - monotonic()

    def _time_over(self) -> UserError:
        return UserError(
            f"--wait {self._longest_seconds:g}: the NeuronCores did not become free; see neuron-ls for who has them, "
            "or wait longer",
            EXIT_TIMED_OUT,
        )

    def _report_waiting(self) -> None:
        if not self._has_reported:
            write_stderr("neuron-run: waiting for free NeuronCores")
            self._has_reported = True

    def _select_cores(self, snapshot: Snapshot) -> bool | None:
        """Returns True to stop waiting, because the cores are free or the host has too few. Else returns None."""
        lnc = self._request.logical_neuroncore_config
        self._free = free_indices(snapshot, lnc)
        total = len(logical_cores(snapshot, lnc))
        request = self._request
        first, count = request.first, request.count or total
        if self._workers > 1:  # they take a core each, whatever NEURON_RT_NUM_CORES says
            count = self._workers
        if first is None:
            ends = count > total or select(snapshot, count, logical_neuroncore_config=lnc) is not None
        else:
            cores = CoreRange(first, count)
            ends = cores.last >= total or self._free.issuperset(cores.indices)
        if not ends:
            self._report_waiting()
        return ends or None
