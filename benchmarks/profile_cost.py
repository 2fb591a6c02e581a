"""Measures --profile on a training step beside stock torch.profiler, in vCPU time.

Four processes take turns, so other load hits all: one without a profile, one with `--profile`, one under stock
torch.profiler, and one under torch.profiler with our tracks. The ratio of a round is that of vCPU times to the
first process. It prints the median, lowest and highest ratio.

    python benchmarks/profile_cost.py [mlp bert …] [--rounds N]
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from device_models import CASES

ROOT = Path(__file__).parents[1]
KINDS = ("plain", "profile", "torch.profiler", "torch.profiler with tracks")


def worker(name: str, kind: str) -> None:
    """One process: makes its first steps, then one round for each line of its input."""
    import torch

    torch.set_num_threads(1)
    from neurontools.runtime.launch.install import install_runtime
    from neurontools.runtime.torch_device import profiler

    if kind == "torch.profiler":
        profiler.patch_torch_profiler = lambda: None
    install_runtime()
    from neurontools.runtime.tensors.device import device

    case = CASES[name]
    torch.manual_seed(0)
    step = case.step_on("xla", functools.partial(device.flush_all, "MarkStep"))
    for _ in range(8):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() != "go":
            break
        print(json.dumps(seconds_a_step(step, case.steps, kind)), flush=True)


def seconds_a_step(step: Any, count: int, kind: str) -> float:
    """Returns the vCPU seconds of a step, without the start and end of torch.profiler."""
    if not kind.startswith("torch"):
        began = time.process_time()
        for _ in range(count):
            step()
        return (time.process_time() - began) / count
    from torch.profiler import profile

    with profile():
        for _ in range(3):
            step()
        began = time.process_time()
        for _ in range(count):
            step()
        return (time.process_time() - began) / count


def measure(name: str, rounds: int, directory: str) -> None:
    """Measures one case and prints its lines."""
    processes = {}
    for kind in KINDS:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}",
            "NEURON_COMPILE_CACHE_URL": f"{directory}/{name}",
            "NEURONTOOLS_DEVICE": "xla",
            "NEURON_RT_NUM_CORES": "1",
            "NEURON_RT_INSPECT_ENABLE": "1" if kind == "profile" else "0",
            "NEURON_RT_INSPECT_OUTPUT_DIR": f"{directory}/{name}-made",
        }
        processes[kind] = subprocess.Popen(
            [sys.executable, __file__, "--worker", name, kind],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert processes[kind].stdout is not None
        processes[kind].stdout.readline()  # type: ignore[union-attr]
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind, process in processes.items():
            assert process.stdin is not None and process.stdout is not None  # noqa: PT018
            process.stdin.write("go\n")
            process.stdin.flush()
            seconds[kind].append(json.loads(process.stdout.readline()))
    for process in processes.values():
        process.communicate("end\n")
    plain = seconds["plain"]
    print(f"{name:6} {statistics.median(plain) * 1e3:8.3f} ms a step without a profile")
    for kind in KINDS[1:]:
        ratios = sorted(each / base for each, base in zip(seconds[kind], plain, strict=True))
        print(f"       {kind:28} {statistics.median(ratios):5.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})", flush=True)
    made = sum(path.stat().st_size for path in Path(directory, f"{name}-made").rglob("*") if path.is_file())
    print(f"       {made / 1e6:.1f} MB left by {rounds * CASES[name].steps + 8} steps", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=["mlp", "bert"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--worker", nargs=2, metavar=("CASE", "KIND"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(*given.worker)
        return
    with tempfile.TemporaryDirectory() as directory:
        for name in given.cases:
            measure(name, given.rounds, directory)


if __name__ == "__main__":
    main()
