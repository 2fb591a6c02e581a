"""Workers of a host: who they are, which cores they hold by their own word, and what they did."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from neurontools.model import Snapshot


class Worker:
    """A process that holds cores; `cores` is what it was given, empty when it was refused."""

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
        """Has it do something and waits until it did; False when it is gone."""
        assert self.process.stdin
        assert self.process.stdout
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        return self.process.stdout.readline() == "done\n"

    def execute(self, count: int) -> bool:
        """Has it execute so often."""
        self.executions += count
        return self.obey(str(count))

    def end(self, number: signal.Signals | None = None) -> int:
        """Ends it, by a signal or by the end of its input; its exit code."""
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
    """Whether the daemon says of every core what the workers say: whose it is, or that it is free."""
    told = {core.index: core.owner_pid for core in snapshot.cores if core.owner_pid is not None}
    return told == {core: worker.process.pid for worker in workers for core in worker.cores}


def executions_are(workers: list[Worker], snapshot: Snapshot) -> bool:
    """Whether the daemon has counted what the workers did, neither more nor less."""
    told = {
        process.pid: process.executions.completed_total
        for process in snapshot.processes
        if process.executions is not None
    }
    return all(told.get(worker.process.pid) == worker.executions for worker in workers)
