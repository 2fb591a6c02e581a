"""Measures neuron-diag: which level finds each kind of fault and when, healthy runs, and the cost of level 1.

`diag_faults.py faults [KIND …]` prints the rows of the table in neuron-diag(1): for each kind of fault and each level,
the verdict and the CPU time of the tests that claim to find it; of level 1, of all tests. `diag_faults.py healthy LEVEL
RUNS` counts false alarms. `diag_faults.py cost` measures the CPU time and the memory of level 1. One command runs at a
time.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from measuring import Figure, compile_sources, daemon, installed, report

from neurontools.diagnose.table import LEVELS, TESTS
from neurontools.faults.kinds import KINDS
from neurontools.faults.requests import FaultRequest
from neurontools.rpc import fault_calls

COST_RUNS = 10
DURATION_SECONDS = 2.0  # of the sustained load
_EXECUTION_TIMEOUT_SECONDS = "2"
_TYPES = {1: "trn2.48xlarge", 2: "trn1.32xlarge", 3: "trn1.32xlarge"}  # trn2 has parts whose health the driver reports
_DEVICES = {1: "0-15", 2: "0-1", 3: "0-2"}  # level 3 compares two links


@dataclass(frozen=True)
class Run:
    """One run of the command: its report, its time, and the CPU time of its processes."""

    document: dict[str, Any]
    seconds: float
    cpu_seconds: float


def main() -> None:
    compile_sources()
    action, *words = sys.argv[1:] or ["faults"]
    print(f"load of the host: {os.getloadavg()[0]:.1f}", file=sys.stderr)
    if action == "faults":
        for name in words or [name for name, kind in KINDS.items() if not kind.loses_host]:
            cells = [fault_cell(name, level) for level in LEVELS]
            print(f".It {name} Ta {' Ta '.join(cells)}", flush=True)
    elif action == "healthy":
        report("neuron-diag on healthy simulated hosts", healthy_figures(int(words[0]), int(words[1])))
    else:
        report("neuron-diag on simulated hosts", cost_figures())


def healthy_figures(level: int, runs: int) -> list[Figure]:
    """Runs a level on a host without faults. Prints each result that did not pass, and returns the figures."""
    done = []
    with daemon("--simulate", _TYPES[level]) as running:
        for _ in range(runs):
            done.append(diag(running.socket, "--level", str(level), "--device", _DEVICES[level]))
            for each in done[-1].document["results"]:
                if each["outcome"] not in ("pass", "skip"):
                    print(each, file=sys.stderr, flush=True)
    outcomes = [{each["outcome"] for each in run.document["results"]} for run in done]
    return [
        Figure(
            f"runs of level {level} with a false alarm, of {runs}", sum("fail" in each for each in outcomes), "", "0"
        ),
        Figure("runs in which a test could not run", sum("could not run" in each for each in outcomes), ""),
        Figure("time of a run", median(run.seconds for run in done), "s"),
        Figure("longest run", max(run.seconds for run in done), "s"),
        Figure("CPU time of a run", median(run.cpu_seconds for run in done), "s"),
    ]


def cost_figures() -> list[Figure]:
    with daemon("--simulate", "trn1.32xlarge", "--load", "steady") as running:
        costs = {name: [cost(running.socket, name) for _ in range(COST_RUNS)] for name in _COMPARED}
    figures = []
    for name, measured in costs.items():
        figures += [
            Figure(f"{name}: CPU time", median(seconds for seconds, _ in measured) * 1e3, "ms"),
            Figure(f"{name}: memory", median(kib for _, kib in measured) / 1024, "MiB"),
        ]
    return figures


_COMPARED = ("neuron-diag", "neuron-healthcheck")
_STARTER = """
import posix, sys
child = posix.fork()
if not child:
    posix.execv(sys.argv[1], sys.argv[1:])
used = posix.wait4(child, 0)[2]
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


def fault_cell(name: str, level: int) -> str:
    """Runs tests of a level on a host with a fault: all of level 1, and of others those that claim to find it.

    Returns the verdict and the CPU time, as "fail, 9 s"."""
    tests = ",".join(test.name for test in TESTS if test.level == level and (level == 1 or name in test.finds))
    if not tests:
        return "-"
    if tests == "reports":  # counts the executions of another test
        tests = "matmul,reports"
    with daemon("--simulate", _TYPES[level], "--interval", "0.2") as running:
        fault_calls.inject(running.socket, [FaultRequest(name, device_index=0)])
        time.sleep(1)  # the daemon needs a few ticks for its findings
        run = diag(running.socket, "--test", tests, "--device", _DEVICES[level])
    outcomes = {each["outcome"]: each["test"] for each in reversed(run.document["results"])}
    worst = next(outcome for outcome in ("fail", "warn", "could not run", "pass") if outcome in outcomes)
    seconds = f"{run.seconds:.1f} s, {run.cpu_seconds:.1f} s of CPU"
    print(f"{name} {level}: {run.document['summary']} ({seconds})", file=sys.stderr, flush=True)
    return f"{worst}, {run.cpu_seconds:.2g} s"


def diag(socket: str, *options: str) -> Run:
    """Runs neuron-diag against this daemon."""
    environment = {**os.environ, "NEURONTOOLS_SOCKET": socket, "NEURON_RT_EXEC_TIMEOUT": _EXECUTION_TIMEOUT_SECONDS}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [installed("neuron-diag"), "--json", "--duration", str(DURATION_SECONDS), *options]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return Run(json.loads(done.stdout), time.monotonic() - began, cpu_seconds)


def cost(socket: str, command: str) -> tuple[float, int]:
    """Returns the CPU seconds and the largest resident memory of a command, in KiB.

    A small interpreter starts the command, because ru_maxrss also contains the memory of the parent.
    """
    environment = {**os.environ, "NEURONTOOLS_SOCKET": socket}
    starter = [sys.executable, "-I", "-S", "-c", _STARTER, installed(command)]
    output = subprocess.run(starter, env=environment, capture_output=True, text=True, check=True).stdout
    seconds, kib = output.splitlines()[-1].split()
    return float(seconds), int(kib)


if __name__ == "__main__":
    main()
