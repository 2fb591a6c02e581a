"""Measures a training step on the simulated device beside plain CPU eager, in vCPU time.

In each case, one process trains on the device and one on the CPU, in turns, so other load hits both. A round gives the
ratio of their vCPU times. It prints the median, lowest and highest ratio, and the time of the first step, which traces
and compiles, divided by that of a CPU step. For the chain of additions the times are per operator. The table of
docs/performance.md comes last. With --machine-code a third process trains with --optlevel 3.

    python benchmarks/device_step.py [mlp lstm vit bert gpt resnet chain] [--rounds N] [--threads N ...]
                                     [--machine-code]
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from device_models import CASES, CHAIN_OPERATORS

ROOT = Path(__file__).parents[1]
LEVEL_3 = "level3"
PLACES = {"cpu": "cpu", "xla": "device", LEVEL_3: "device, machine code"}
LONGEST_WAIT_SECONDS = 1800


@dataclass(frozen=True)
class Row:
    """The ratios of one case to the CPU. `machine_code` is the ratio with --optlevel 3, if measured."""

    name: str
    threads: int
    ratio: float
    first_step: float
    machine_code: float | None


def worker(name: str, where: str, threads: int) -> None:
    """One process of a pair: makes its first steps, then one round for each line of its input."""
    import torch

    torch.set_num_threads(threads)
    mark: Any = int  # does nothing
    if where != "cpu":
        from neurontools.runtime.launch.install import install_runtime

        install_runtime()
        from neurontools.runtime.tensors.device import device

        mark = functools.partial(device.flush_all, "MarkStep")
    case = CASES[name]
    torch.manual_seed(0)
    step = case.step_on("cpu" if where == "cpu" else "xla", mark)
    began = time.process_time()
    step()
    first_seconds = time.process_time() - began
    for _ in range(5):
        step()
    if where == LEVEL_3:
        wait_for_machine_code(step)
    print(json.dumps(first_seconds), flush=True)
    for line in sys.stdin:
        if line.strip() != "go":
            break
        began = time.process_time()
        for _ in range(case.steps):
            step()
        seconds = (time.process_time() - began) / case.steps
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps([seconds, peak_bytes]), flush=True)


def wait_for_machine_code(step: Any) -> None:
    """Trains until all compilations have ended, but at most LONGEST_WAIT_SECONDS."""
    from neurontools.runtime.launch.device_registration import executor

    ends = time.monotonic() + LONGEST_WAIT_SECONDS
    code = executor().machine_code
    while not code.is_settled and time.monotonic() < ends:
        step()
        time.sleep(0.01)  # leaves the CPU to the compiler


def measure(name: str, rounds: int, threads: int, directory: str, places: list[str]) -> Row:
    """Measures one case, prints its line and returns its row."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}",
        "NEURON_COMPILE_CACHE_URL": f"{directory}/{name}-{threads}",
        "NEURONTOOLS_DEVICE": "xla",
    }
    processes = {}
    first_seconds = {}
    for where in places:
        command = [sys.executable, __file__, "--worker", name, where, "--threads", str(threads)]
        processes[where] = subprocess.Popen(
            command,
            env={**environment, "NEURON_CC_FLAGS": "-O3"} if where == LEVEL_3 else environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        output = processes[where].stdout
        assert output is not None
        first_seconds[where] = json.loads(output.readline())
    seconds: dict[str, list[float]] = {where: [] for where in places}
    peak_bytes = {}
    for _ in range(rounds):
        for where, process in processes.items():
            assert process.stdin is not None and process.stdout is not None  # noqa: PT018
            process.stdin.write("go\n")
            process.stdin.flush()
            each, peak_bytes[where] = json.loads(process.stdout.readline())
            seconds[where].append(each)
    for process in processes.values():
        process.communicate("end\n")
    medians = {where: statistics.median(seconds[where]) for where in places}
    cpu = medians["cpu"]
    unit, scale = ("µs", 1e6 / CHAIN_OPERATORS) if name == "chain" else ("ms", 1e3)
    ratios = {where: sorted(x / c for c, x in zip(seconds["cpu"], seconds[where], strict=True)) for where in places[1:]}
    parts = [f"{name:6} {CASES[name].batch_text:25} threads {threads}  cpu {cpu * scale:8.3f} {unit}"]
    for where, each in ratios.items():
        parts.append(
            f"{PLACES[where]} {medians[where] * scale:8.3f} {unit}  "
            f"ratio {statistics.median(each):5.2f} ({each[0]:.2f}-{each[-1]:.2f})"
        )
    first_step = first_seconds["xla"] / cpu
    parts.append(f"first step {first_step:6.2f} (cpu's own {first_seconds['cpu'] / cpu:.2f})")
    parts.append(f"memory {peak_bytes['xla'] / peak_bytes['cpu']:.2f}")
    print("  ".join(parts), flush=True)
    machine_code = statistics.median(ratios[LEVEL_3]) if LEVEL_3 in ratios else None
    return Row(name, threads, statistics.median(ratios["xla"]), first_step, machine_code)


def table(rows: list[Row]) -> str:
    """Returns the rows as a Markdown table."""
    threads = sorted({row.threads for row in rows})
    has_code = any(row.machine_code is not None for row in rows)
    heads = ["model", "batch"]
    for count in threads:
        heads.append(f"{count} thread" + ("s" if count > 1 else ""))
        heads += ["with `--optlevel 3`"] if has_code else []
    lines = [f"| {' | '.join([*heads, 'first step'])} |", "|---|---|" + "---:|" * (len(heads) - 1)]
    for name in dict.fromkeys(row.name for row in rows):
        cells = [name, CASES[name].batch_text]
        own = {row.threads: row for row in rows if row.name == name}
        for count in threads:
            cells.append(f"{own[count].ratio:.2f}")
            code = own[count].machine_code
            cells += [] if not has_code else ["" if code is None else f"{code:.2f}"]
        lines.append(f"| {' | '.join([*cells, f'{own[threads[0]].first_step:.1f}'])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--machine-code", action="store_true", help="with --optlevel 3 too")
    parser.add_argument("--worker", nargs=2, metavar=("CASE", "WHERE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        name, where = given.worker
        worker(name, where, given.threads[0])
        return
    places = ["cpu", "xla", *([LEVEL_3] if given.machine_code else [])]
    with tempfile.TemporaryDirectory() as directory:
        rows = [
            measure(name, given.rounds, threads, directory, places) for threads in given.threads for name in given.cases
        ]
    print(f"\nvCPU time of a step, in steps of plain CPU eager:\n\n{table(rows)}")


if __name__ == "__main__":
    main()
