"""Measures neuron-diag: which level finds each kind of fault and when, healthy runs, and the cost of level 1.

With names of kinds as arguments, it tries only these. A level is tried only if no lower level finds the fault. Level 1
runs on a trn2.48xlarge, because only later devices report the health of parts. Level 2 runs on a trn1.2xlarge, and the
links of level 3 on four devices of a trn1.32xlarge.
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

from neurontools.faults.kinds import KINDS
from neurontools.faults.requests import FaultRequest
from neurontools.rpc import fault_calls

HEALTHY_RUNS = {1: 50, 2: 3}
COST_RUNS = 10
DURATION_SECONDS = 2.0  # of the sustained load
_EXECUTION_TIMEOUT_SECONDS = "2"
_OPTIONS = {1: (), 2: ("--level", "2"), 3: ("--test", "links", "--device", "0,1,4,5")}
_TYPES = {1: "trn2.48xlarge", 2: "trn1.2xlarge", 3: "trn1.32xlarge"}


@dataclass(frozen=True)
class Run:
    """One run of the command: its report, its time, and the CPU time of its processes."""

    document: dict[str, Any]
    seconds: float
    cpu_seconds: float


def main() -> None:
    compile_sources()
    names = sys.argv[1:] or [name for name, kind in KINDS.items() if not kind.loses_host]
    print(f"load of the host: {os.getloadavg()[0]:.1f}")
    for name in names:
        print(fault_row(name), flush=True)
    if sys.argv[1:]:
        return
    figures = []
    for level, runs in HEALTHY_RUNS.items():
        with daemon("--simulate", _TYPES[level]) as running:
            done = [diag(running.socket, *_OPTIONS[level]) for _ in range(runs)]
        alarms = sum(run.document["exit_code"] != 0 for run in done)
        figures += [
            Figure(f"false alarms in {runs} healthy runs of level {level}", alarms, "", "0"),
            Figure(f"level {level}: time", median(run.seconds for run in done), "s"),
            Figure(f"level {level}: CPU time", median(run.cpu_seconds for run in done), "s"),
        ]
    with daemon("--simulate", "trn1.32xlarge", "--load", "steady") as running:
        costs = {name: [cost(running.socket, name) for _ in range(COST_RUNS)] for name in _COMPARED}
    for name, measured in costs.items():
        figures += [
            Figure(f"{name}: CPU time", median(seconds for seconds, _ in measured) * 1e3, "ms"),
            Figure(f"{name}: memory", median(kib for _, kib in measured) / 1024, "MiB"),
        ]
    report("neuron-diag on simulated hosts", figures)


_COMPARED = ("neuron-diag", "neuron-healthcheck")
_STARTER = """
import posix, sys
child = posix.fork()
if not child:
    posix.execv(sys.argv[1], sys.argv[1:])
used = posix.wait4(child, 0)[2]
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


def fault_row(name: str) -> str:
    """Returns the lowest level that finds a fault, the tests that fail or warn there, and the time of the run."""
    for level, options in _OPTIONS.items():
        with daemon("--simulate", _TYPES[level], "--interval", "0.2") as running:
            fault_calls.inject(running.socket, [FaultRequest(name, device_index=0)])
            time.sleep(1)  # the daemon needs a few ticks for its findings
            run = diag(running.socket, *options)
        found = dict.fromkeys(each["test"] for each in run.document["results"] if each["outcome"] in ("fail", "warn"))
        if found:
            return (
                f"{name:<20} level {level}  exit {run.document['exit_code']}  {run.seconds:5.1f} s  {', '.join(found)}"
            )
    return f"{name:<20} NOT FOUND"


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
