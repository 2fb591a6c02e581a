"""Time of a training step on the simulated device against plain CPU eager, in one pair of processes.

The two processes take turns, so that what else the machine does hits both. Prints the medians, their ratio, and the
first step, which traces and compiles.

    python benchmarks/device_step.py [mlp bert vit] [--rounds N] [--threads N]
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

ROOT = Path(__file__).parents[1]


def worker(name: str, where: str, threads: int) -> None:
    import torch
    from device_models import MODELS

    torch.set_num_threads(threads)
    mark: Any = int  # does nothing
    if where != "cpu":
        from neurontools.runtime.launch.install import install

        install()
        from neurontools.runtime.tensors.device import device

        mark = functools.partial(device.flush_all, "MarkStep")
    make, batch, steps = MODELS[name]
    torch.manual_seed(0)
    model = make().to(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    value, target = (part.to(where) for part in batch())

    cross_entropy: Any = torch.nn.functional.cross_entropy

    def step() -> float:
        began = time.perf_counter()
        optimizer.zero_grad()
        loss: Any = cross_entropy(model(value), target)
        loss.backward()
        optimizer.step()
        mark()
        return time.perf_counter() - began

    first = step()
    for _ in range(2):
        step()
    print(json.dumps(first), flush=True)
    for line in sys.stdin:
        if line.strip() != "go":
            break
        times = [step() for _ in range(steps)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps([statistics.median(times), peak]), flush=True)


def measure(name: str, rounds: int, threads: int, directory: str) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}",
        "NEURON_COMPILE_CACHE_URL": directory,
        "NEURONTOOLS_DEVICE": "xla",
    }
    processes = {}
    firsts = {}
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
        firsts[where] = json.loads(output.readline())
    medians: dict[str, list[float]] = {"cpu": [], "xla": []}
    peaks = {}
    for _ in range(rounds):
        for where, process in processes.items():
            assert process.stdin is not None and process.stdout is not None  # noqa: PT018
            process.stdin.write("go\n")
            process.stdin.flush()
            median, peaks[where] = json.loads(process.stdout.readline())
            medians[where].append(median)
    for process in processes.values():
        process.communicate("end\n")
    cpu, xla = (statistics.median(medians[where]) for where in ("cpu", "xla"))
    ratios = sorted(x / c for c, x in zip(medians["cpu"], medians["xla"], strict=True))
    print(
        f"{name:5} cpu {cpu * 1e3:8.2f} ms  xla {xla * 1e3:8.2f} ms  ratio {xla / cpu:5.2f} "
        f"(rounds {ratios[0]:.2f}-{ratios[-1]:.2f})  first step {firsts['xla'] / cpu:5.2f} CPU steps "
        f"(cpu's own {firsts['cpu'] / cpu:.2f})  memory {peaks['xla'] / peaks['cpu']:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["mlp", "bert", "vit"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--worker", action="store_true")
    given = parser.parse_args()
    if given.worker:
        worker(given.models[0], given.models[1], given.threads)
        return
    with tempfile.TemporaryDirectory() as directory:
        for name in given.models:
            measure(name, given.rounds, given.threads, directory)


if __name__ == "__main__":
    main()
