"""Measures neuron-profile on 10,000 steps of 100 operators, with 400,000 allocations.

The limit of `show` is 2 s. The references are a bare interpreter and reading the profile alone. Wall times depend on
other load, vCPU times do not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from measuring import Figure, compile_sources, installed, interleaved_medians_ms, report

from neurontools.profile import Allocation, ColumnTable, Profile
from neurontools.profile.definitions import ALLOCATED, FREED
from neurontools.profile.profile import OperatorTotal
from tests.harness.profiles import write
from tests.harness.trained_profiles import trained

STEPS = 10_000
LAYERS = 20  # of 5 operators each
STORAGES = 20  # allocated and freed in each step
ROUNDS = 5


def long_profile() -> Profile:
    """Returns the profile of the tests with more operators, and with the allocations of a training."""
    (profile,) = trained(STEPS)
    totals = list(profile.operator_totals)
    times = [total.longest_ns for total in totals] * LAYERS
    operators = tuple(
        replace(operator, position=number, scope=f"Net/{number // 5}/{operator.scope}", flops=operator.flops // LAYERS)
        for number, operator in enumerate(profile.operators * LAYERS)
    )
    moves: list[Allocation] = []
    for step in profile.steps:
        for number in range(STORAGES):
            address = 0x10_000 + number * 0x1000
            moves.append(Allocation(step.start_ns + number, ALLOCATED, 0, address, 4096, 4, number % 3))
            moves.append(Allocation(step.end_ns - number, FREED, 0, address, 4096, 4, -1))
    moves.sort(key=lambda move: move.time_ns)
    executions = profile.executions
    counts = array("q", [len(operators)]) * len(executions)
    columns = [counts if name == "operator_count" else executions.column(name) for name in executions.kind._fields]
    return replace(
        profile,
        graphs=tuple(replace(graph, operator_count=len(operators)) for graph in profile.graphs),
        operators=operators,
        executions=ColumnTable(executions.kind, columns),
        operator_ns=array("q", times) * len(executions),
        operator_totals=ColumnTable.from_rows(
            OperatorTotal, [OperatorTotal(number, STEPS * time, time) for number, time in enumerate(times)]
        ),
        allocations=ColumnTable.from_rows(Allocation, moves),
    )


def cpu_seconds(command: Sequence[str]) -> float:
    """Returns the vCPU time of a command."""
    before = os.times()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    compile_sources()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "host-rank0-1.neuronprofile"
        write(path, long_profile(), parts=20)
        size = path.stat().st_size
        command = installed("neuron-profile")
        reading = "import sys; from neurontools.profile import read_profile; read_profile(sys.argv[1])"
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "reading the profile alone": [sys.executable, "-c", reading, str(path)],
            "neuron-profile show": [command, "show", directory],
            "neuron-profile show --json": [command, "show", directory, "--json"],
            "neuron-profile report": [command, "report", directory, "-o", f"{directory}/page.html"],
        }
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        medians = interleaved_medians_ms(
            {name: partial(subprocess.run, each, check=True, **quiet) for name, each in commands.items()}, ROUNDS
        )
        spent = {name: min(cpu_seconds(each) for _ in range(3)) for name, each in commands.items()}
        page_bytes = (Path(directory) / "page.html").stat().st_size
    limits = {"neuron-profile show": "at most 2"}
    report(
        f"neuron-profile on {STEPS} steps of {5 * LAYERS} operators",
        [
            Figure("the profile", size / 1e6, "MB"),
            Figure("the page of report", page_bytes / 1e3, "kB"),
            *(Figure(name, value / 1e3, "s", limits.get(name, "")) for name, value in medians.items()),
            *(Figure(f"{name}, vCPU", value, "s") for name, value in spent.items()),
            Figure(
                "show / reading alone, vCPU",
                spent["neuron-profile show"] / spent["reading the profile alone"],
                "times",
            ),
        ],
    )


if __name__ == "__main__":
    main()
