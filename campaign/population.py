"""Worker processes, and comparisons of their cores and executions with snapshots of the daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from neurontools.model import Snapshot


class Worker:
    """A process that holds cores. `cores` is empty if the daemon refused the process."""

    def __init__(self, socket: str, count: int, errors: Path) -> None:
        environment = {**os.environ, "NEURONTOOLS_SOCKET": socket, "NEURON_RT_NUM_CORES": str(count)}
        with errors.open("ab") as told:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "campaign.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=told,
                env=environment,
                text=True,
            )
        assert self.process.stdout
        said = self.process.stdout.readline().split()
        self.cores = tuple(map(int, said)) if said != ["refused"] else ()
        self.executions = 0

    def obey(self, line: str) -> bool:
        """Sends a command and waits until it was obeyed. Returns False when the process has ended."""
        assert self.process.stdin
        assert self.process.stdout
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        return self.process.stdout.readline() == "done\n"

    def execute(self, count: int) -> bool:
        """Lets the worker execute `count` times. Returns False if the process has ended."""
        self.executions += count
        return self.obey(str(count))

    def end(self, number: signal.Signals | None = None) -> int:
        """Ends the worker by a signal or the end of its input. Returns its exit code."""
        if number is not None:
            self.process.send_signal(number)
        try:
            if self.process.stdin:
                self.process.stdin.close()
        except BrokenPipeError:
            pass
        code = self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        return code


def owners_are(workers: list[Worker], snapshot: Snapshot) -> bool:
    """Returns whether daemon and workers agree on the owner of every core."""
    told = {core.index: core.owner_pid for core in snapshot.cores if core.owner_pid is not None}
    return told == {core: worker.process.pid for worker in workers for core in worker.cores}


def executions_are(workers: list[Worker], snapshot: Snapshot) -> bool:
    """Returns whether the daemon has counted exactly the executions of the workers."""
    told = {
        process.pid: process.executions.completed_total
        for process in snapshot.processes
        if process.executions is not None
    }
    return all(told.get(worker.process.pid) == worker.executions for worker in workers)
