"""Ends trainings in several ways, and compares the records of the ended processes with what the trainings did.

Each training is a neuron-run over a tiny model. It writes the time of each step, so its steps are known even after a
kill. Where neuron-run has an exact summary, the record must have its steps, executions and FLOPs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from measuring import Figure, report

from neurontools.client import Client
from neurontools.model import EndedProcess
from tests.harness import python_process
from tests.harness.neuron_run import COMMAND, environment
from tests.harness.restarted_daemon import RestartedDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

REPORT_SECONDS = 1.0  # longest time between two reports, at the daemon's default interval
TRAINING = """
import os, signal, struct, sys, time, torch, torch_xla.core.xla_model as xm
device = xm.xla_device()
weight = torch.ones(4, 4, device=device, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
file = os.open("steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
open("pid", "w").write(str(os.getpid()))
steps = int(sys.argv[1])
while steps:
    optimizer.zero_grad()
    (weight @ weight).sum().backward()
    xm.optimizer_step(optimizer); xm.mark_step(wait=True)
    os.write(file, struct.pack("d", time.monotonic()))
    steps -= 1
"""
WAIT = "while not os.path.exists('go'): time.sleep(0.005)\n"


@dataclass(frozen=True)
class Way:
    """A way in which trainings end. `status` is the exit status of the training; negative for a signal.

    The training executes `end` after its steps. Without it, the training does not end by itself: `stop` ends it.
    """

    name: str
    status: int
    end: str | None = None
    stop: Callable[[subprocess.Popen[Any], int, RestartedDaemon], None] = lambda _run, _pid, _daemon: None
    is_killed: bool = False
    is_real: bool = False  # whether to start a new interpreter; a fork of a loaded one handles SIGINT otherwise


def _signal_training(number: signal.Signals) -> Callable[[subprocess.Popen[Any], int, RestartedDaemon], None]:
    return lambda _run, pid, _daemon: os.kill(pid, number)


def _interrupt_group(run: subprocess.Popen[Any], _pid: int, _daemon: RestartedDaemon) -> None:
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does at Ctrl-C


def _restart(_run: subprocess.Popen[Any], _pid: int, daemon: RestartedDaemon) -> None:
    daemon.kill()
    daemon.start()


WAYS = (
    Way("the script ends", 0, ""),
    Way("an exception", 1, "raise ValueError"),
    Way("sys.exit(3)", 3, "sys.exit(3)"),
    Way("os._exit(5)", 5, "os._exit(5)"),
    Way("SIGTERM to the training", -signal.SIGTERM, stop=_signal_training(signal.SIGTERM)),
    Way("SIGTERM to neuron-run", -signal.SIGTERM, stop=lambda run, _pid, _daemon: run.terminate()),
    Way("SIGINT to the process group", -signal.SIGINT, stop=_interrupt_group, is_real=True),
    Way("the daemon restarts, then the script ends", 0, WAIT, stop=_restart),
    Way("SIGKILL to the training", -signal.SIGKILL, stop=_signal_training(signal.SIGKILL), is_killed=True),
    Way("SIGKILL to neuron-run", -signal.SIGKILL, stop=lambda run, _pid, _daemon: run.kill(), is_killed=True),
)


@dataclass
class Result:
    """The trainings that ended in one way, and what is wrong with their records."""

    way: Way
    count: int = 0
    right_counts: int = 0
    right_statuses: int = 0
    most_missing_seconds: float = 0.0  # work that the record of a killed training lacks
    problems: list[str] = field(default_factory=list)


def train(way: Way, steps: int, directory: Path, daemon: RestartedDaemon) -> tuple[EndedProcess, float, dict[str, Any]]:
    """Runs one training and returns its record, its end in seconds of CLOCK_MONOTONIC, and neuron-run's summary."""
    ends_itself = way.end is not None
    (directory / "train.py").write_text(TRAINING + (way.end or ""))
    process = python_process.popen(
        [*COMMAND, "-q", "--summary-json", "summary.json", "train.py", str(steps if ends_itself else -1)],
        loaded=() if way.is_real else python_process.TORCH,
        cwd=directory,
        env=environment(directory, daemon.socket, NEURON_PROCESS_TAG=directory.name, NEURON_RT_NUM_CORES="1"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=(directory / "stderr").open("wb"),
        start_new_session=True,
    )
    wait_until(lambda: len(step_times(directory)) >= steps)
    way.stop(process, int((directory / "pid").read_text()), daemon)
    ended_seconds = time.monotonic()
    (directory / "go").touch()
    process.wait(HANG_SECONDS)

    def record() -> EndedProcess | None:
        with Client(daemon.socket) as client:
            records = [each for each in client.ended().processes if each.tag == directory.name]
        return next((each for each in records if each.exit_status is not None), None)

    found = wait_until(record)
    path = directory / "summary.json"
    return found, ended_seconds, json.loads(path.read_text()) if path.exists() else {}


def step_times(directory: Path) -> tuple[float, ...]:
    """Returns when each step of a training ended, in seconds of CLOCK_MONOTONIC."""
    try:
        data = (directory / "steps").read_bytes()
    except FileNotFoundError:
        return ()
    return struct.unpack(f"{len(data) // 8}d", data[: len(data) // 8 * 8])


def compare(
    result: Result, record: EndedProcess, ended_seconds: float, summary: dict[str, Any], times: tuple[float, ...]
) -> None:
    """Adds a training to the result of its way."""
    way = result.way
    result.count += 1
    executions = None if record.executions is None else record.executions.completed_total
    counts = (record.steps_total, executions, record.flop_total)
    if record.exit_status == way.status and not record.lives_on:
        result.right_statuses += 1
    else:
        result.problems.append(f"{way.name}: exit status {record.exit_status}, lives on: {record.lives_on}")
    if way.is_killed:
        known = record.steps_total or 0
        lost = times[known:]
        missing_seconds = ended_seconds - lost[0] if lost else 0.0
        result.most_missing_seconds = max(result.most_missing_seconds, missing_seconds)
        is_right = missing_seconds <= REPORT_SECONDS and known <= len(times) + 1 and record.counts_are_final is False
        expected: object = f"at least {sum(each < ended_seconds - REPORT_SECONDS for each in times)} of {len(times)}"
    else:
        expected = (summary.get("steps_total"), summary.get("executions_total"), summary.get("flop_total"))
        is_exact_by_itself = way.end is None or record.steps_total == len(times)
        is_right = counts == expected and is_exact_by_itself and record.counts_are_final is True
    if is_right:
        result.right_counts += 1
    else:
        final = record.counts_are_final
        result.problems.append(f"{way.name}: steps, executions, FLOPs {counts}, final: {final}; expected {expected}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainings", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the numbers of steps")
    given, _ = parser.parse_known_args()
    random, results = Random(given.seed), [Result(way) for way in WAYS]
    with tempfile.TemporaryDirectory() as place:
        daemon = RestartedDaemon(f"{place}/n.sock", REPORT_SECONDS)
        daemon.start()
        try:
            for number in range(given.trainings):
                directory = Path(place, f"training-{number}")
                directory.mkdir()
                result = results[number % len(WAYS)]
                outcome = train(result.way, random.randrange(5, 400), directory, daemon)
                compare(result, *outcome, step_times(directory))
        finally:
            daemon.kill()
    figures = []
    for result in results:
        limit = f"of {result.count}"
        figures += [
            Figure(f"{result.way.name}: right counts", result.right_counts, "", limit),
            Figure("  right exit status", result.right_statuses, "", limit),
        ]
        if result.way.is_killed:
            figures.append(
                Figure("  most work missing", result.most_missing_seconds, "s", f"at most {REPORT_SECONDS:g}")
            )
    report(f"Records of {given.trainings} ended trainings, seed {given.seed}", figures)
    for result in results:
        for problem in result.problems:
            print(problem)


if __name__ == "__main__":
    main()
