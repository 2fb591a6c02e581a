"""Trials of core ownership and of the log of ended processes while processes and the daemon are killed."""

from __future__ import annotations

import os
import signal
import socket
import time
from multiprocessing import get_context
from pathlib import Path
from random import Random

from campaign.host import PATIENCE_SECONDS, host
from campaign.outcome import Outcome
from campaign.population import Worker, executions_are, owners_are
from neurontools.client import Client
from neurontools.model import EndedProcess
from neurontools.rpc import neuron_pb2
from neurontools.rpc.call import RpcError, Unreachable, call

_MOST_WORKERS = 6
_ENDING_PROCESSES = 6
_MOST_COMPARED = 500  # half of the processes that a daemon lists
_ENDS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, None)


def kills(seconds: float, random: Random, directory: Path) -> Outcome:
    """Starts, forks, stops and ends processes at random. After each action the daemon must report the right owners."""
    outcome = Outcome("kills, stops and forks")
    errors = directory / "workers.log"
    workers: list[Worker] = []
    children: set[int] = set()
    slowest_seconds = 0.0
    with host(directory) as daemon:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            outcome.rounds += 1
            action = random.choice(("start", "start", "end", "fork", "stop", "execute"))
            if action == "start" and len(workers) < _MOST_WORKERS:
                worker = Worker(daemon.socket, random.choice((1, 2, 4, 8)), errors)
                if worker.cores:
                    workers.append(worker)
                else:
                    worker.end()
            elif workers and action == "end":
                worker = workers.pop(random.randrange(len(workers)))
                worker.end(random.choice(_ENDS))
            elif workers and action == "fork":
                worker = random.choice(workers)
                outcome.check(worker.obey("fork"), "a worker that forked is gone")
                children |= _children(worker.process.pid)
            elif workers and action == "stop":
                worker = random.choice(workers)
                worker.process.send_signal(signal.SIGSTOP)
                worker.process.send_signal(signal.SIGCONT)
            elif workers:
                outcome.check(random.choice(workers).execute(random.randrange(200)), "a worker that executed is gone")
            began = time.monotonic()
            outcome.check(
                daemon.settles(lambda snapshot: owners_are(workers, snapshot)), f"wrong owners after {action!r}"
            )
            slowest_seconds = max(slowest_seconds, time.monotonic() - began)
        for worker in workers:
            outcome.check(worker.end() == 0, "a worker ended with an error")
        outcome.check(daemon.settles(lambda snapshot: owners_are([], snapshot)), "cores stay held when all have ended")
        outcome.check("Traceback" not in daemon.log, "the daemon's log has a traceback")
    for child in children:
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            continue
    outcome.check("Traceback (most" not in _without_interrupts(errors), "a worker's output has a traceback")
    outcome.figure = f"owners right after each; at the slowest {1000 * slowest_seconds:.0f} ms later"
    return outcome


def restarts(seconds: float, random: Random, directory: Path) -> Outcome:
    """Restarts the daemon while processes hold cores. They must keep them, and all executions must be counted."""
    outcome = Outcome("restarts of the daemon")
    errors = directory / "workers.log"
    with host(directory) as daemon:
        workers = [Worker(daemon.socket, count, errors) for count in (1, 2, 8)]
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            outcome.rounds += 1
            for worker in workers:
                outcome.check(worker.execute(random.randrange(300)), "a worker is gone")
            daemon.restart(random.choice((signal.SIGKILL, signal.SIGTERM)))
            for worker in workers:
                outcome.check(worker.execute(random.randrange(300)), "a worker is gone")
            outcome.check(
                daemon.settles(lambda snapshot: owners_are(workers, snapshot)), "wrong owners after a restart"
            )
            outcome.check(
                daemon.settles(lambda snapshot: executions_are(workers, snapshot)), "executions are miscounted"
            )
        for worker in workers:
            outcome.check(worker.end() == 0, "a worker ended with an error")
        outcome.check("Traceback" not in daemon.log, "the daemon's log has a traceback")
    outcome.check("Traceback" not in errors.read_text(), "a worker's output has a traceback")
    outcome.figure = f"{sum(worker.executions for worker in workers)} executions, each counted once"
    return outcome


def ends(seconds: float, random: Random, directory: Path) -> Outcome:
    """Kills the daemon while processes end. The log must have all ended processes that a client has seen."""
    outcome = Outcome("kills while processes end")
    flags = ("--simulate", "trn1.32xlarge", "--interval", "0.05", "--state-directory", str(directory / "state"))
    most_a_second = 0.0
    # Processes, because a process holds cores once: threads of one process would be refused most of the time.
    with host(directory, *flags) as daemon, get_context("forkserver").Pool(_ENDING_PROCESSES) as pool:
        deadline = time.monotonic() + seconds
        while not outcome.rounds or time.monotonic() < deadline:
            outcome.rounds += 1
            with Client(daemon.socket) as client:
                began_unix_seconds = time.time()
                endings = [pool.apply_async(_attach_until_gone, (daemon.socket,)) for _ in range(_ENDING_PROCESSES)]
                wait_seconds = random.uniform(1.5, 3.0)
                shown: tuple[EndedProcess, ...] = ()
                while not shown or time.time() < began_unix_seconds + wait_seconds:
                    shown = client.ended(began_unix_seconds).processes[-_MOST_COMPARED:]
                daemon.process.kill()
                most_a_second = max(most_a_second, sum(each.get(PATIENCE_SECONDS) for each in endings))
            daemon.process.wait()
            daemon.restart()
            with Client(daemon.socket) as client:
                missing = set(shown) - set(client.ended().processes)
            outcome.check(not missing, f"{len(missing)} of {len(shown)} ended processes are missing")
    outcome.figure = f"up to {most_a_second:.0f} ends a second"
    return outcome


def _attach_until_gone(path: str) -> float:
    """Gets cores and releases them, again and again, until the daemon is gone. Returns how often in a second."""
    count = 0
    began = time.monotonic()
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(PATIENCE_SECONDS)
                connection.connect(f"{path}.attach")
                token = connection.recv(100).decode().strip()
                request = neuron_pb2.AttachRequest(token=token, core_count=1, tag=str(count))
                call(path, "/neurontools.v1.RuntimeService/Attach", request.SerializeToString(), timeout_seconds=30)
                count += 1
        except RpcError:  # the daemon still closes the connection before this one
            continue
        except (Unreachable, OSError):
            return count / (time.monotonic() - began)


def _children(pid: int) -> set[int]:
    try:
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return set()


def _without_interrupts(errors: Path) -> str:
    """Returns the error output of workers without the tracebacks that Python prints for SIGINT."""
    if not errors.exists():
        return ""
    text = errors.read_text("utf-8", "replace")
    parts = text.split("Traceback (most")
    kept = [parts[0], *(f"Traceback (most{part}" for part in parts[1:] if "KeyboardInterrupt" not in part)]
    return "".join(kept)
