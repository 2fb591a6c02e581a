"""A training step on the simulated device beside plain CPU eager: vCPU time, in one pair of processes for each case.

The two processes take turns, so that what else the machine does hits both. A round's ratio is that of their vCPU
times. Printed are the medians, the lowest and the highest ratio, and the first step, which traces and compiles, in
steps of the CPU. For the chain of additions the times are those of one operator.

    python benchmarks/device_step.py [mlp lstm vit bert gpt resnet chain] [--rounds N] [--threads N ...]
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
from pathlib import Path
from typing import Any

from device_models import CASES, CHAIN_OPERATORS

ROOT = Path(__file__).parents[1]


def worker(name: str, where: str, threads: int) -> None:
    """One process of a pair: makes its first steps, then a round for each line it gets."""
    import torch

    torch.set_num_threads(threads)
    mark: Any = int  # does nothing
    if where != "cpu":
        from neurontools.runtime.launch.install import install

        install()
        from neurontools.runtime.tensors.device import device

        mark = functools.partial(device.flush_all, "MarkStep")
    case = CASES[name]
    torch.manual_seed(0)
    step = case.step_on(where, mark)
    began = time.process_time()
    step()
    first_seconds = time.process_time() - began
    for _ in range(5):
        step()
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


def measure(name: str, rounds: int, threads: int, directory: str) -> None:
    """Prints the line of one case."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}",
        "NEURON_COMPILE_CACHE_URL": f"{directory}/{name}-{threads}",
        "NEURONTOOLS_DEVICE": "xla",
    }
    processes = {}
    first_seconds = {}
    for where in ("cpu", "xla"):
        command = [sys.executable, __file__, "--worker", name, where, "--threads", str(threads)]
        processes[where] = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        output = processes[where].stdout
        assert output is not None
        first_seconds[where] = json.loads(output.readline())
    seconds: dict[str, list[float]] = {"cpu": [], "xla": []}
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
    ratios = sorted(x / c for c, x in zip(seconds["cpu"], seconds["xla"], strict=True))
    cpu, xla = (statistics.median(seconds[where]) for where in ("cpu", "xla"))
    shown = [f"{each * 1e3:8.3f} ms" for each in (cpu, xla)]
    if name == "chain":
        shown = [f"{each / CHAIN_OPERATORS * 1e6:8.2f} µs" for each in (cpu, xla)]
    print(
        f"{name:6} {CASES[name].batch_text:25} threads {threads}  cpu {shown[0]}  device {shown[1]}  "
        f"ratio {statistics.median(ratios):5.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})  "
        f"first step {first_seconds['xla'] / cpu:6.2f} (cpu's own {first_seconds['cpu'] / cpu:.2f})  "
        f"memory {peak_bytes['xla'] / peak_bytes['cpu']:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--worker", nargs=2, metavar=("CASE", "WHERE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        name, where = given.worker
        worker(name, where, given.threads[0])
        return
    with tempfile.TemporaryDirectory() as directory:
        for threads in given.threads:
            for name in given.cases:
                measure(name, given.rounds, threads, directory)


if __name__ == "__main__":
    main()
