"""Measures the permanent counters (step clock, timed executions) on a training step, in vCPU time.

Short rounds with and without them take turns in one process, so other load hits both. Without them the clock's methods
do nothing and no execution is timed. `--before COMMIT` compares with another commit, in two processes that take turns.
The MLP has the shortest steps and is the worst case.

    python benchmarks/step_counters.py [mlp lstm vit bert …] [--before COMMIT] [--rounds N]
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
from timeit import repeat
from typing import Any

from device_models import CASES

from neurontools.runtime.counting.steps import COMPUTE, StepClock

ROOT = Path(__file__).parents[1]
NEVER = 1 << 60  # executions


def tree_of(commit: str, directory: Path) -> Path:
    """Returns the directory with the files of a commit. Unpacks them if it does not exist."""
    if directory.exists():
        return directory
    directory.mkdir()
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(directory)], input=archive, check=True)
    return directory


def started(tree: Path, name: str, cache: str) -> subprocess.Popen[str]:
    """Starts a worker of device_step.py that imports from this tree."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tree}:{ROOT / 'benchmarks'}",
        "NEURON_COMPILE_CACHE_URL": cache,
        "NEURONTOOLS_DEVICE": "xla",
    }
    return subprocess.Popen(
        [sys.executable, str(ROOT / "benchmarks" / "device_step.py"), "--worker", name, "xla", "--threads", "1"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def measure(name: str, rounds: int, before: Path, directory: str) -> None:
    """Compares two trees in one case and prints its line."""
    workers = [started(tree, name, f"{directory}/{name}-{tree.name}") for tree in (before, ROOT)]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for index in (0, 1) if number % 2 else (1, 0):
            worker = workers[index]
            assert worker.stdin is not None and worker.stdout is not None  # noqa: PT018
            worker.stdin.write("go\n")
            worker.stdin.flush()
            seconds[index].append(json.loads(worker.stdout.readline())[0])
    for worker in workers:
        worker.communicate("end\n")
    ratios = sorted(now / then for then, now in zip(*seconds, strict=True))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    step_seconds = min(seconds[1])  # the fastest round: other load disturbs it least
    print(
        f"{name:6} before {min(seconds[0]) * 1e3:8.3f} ms  now {step_seconds * 1e3:8.3f} ms  ratio "
        f"{step_seconds / min(seconds[0]):.4f} (of all rounds {statistics.median(ratios):.4f}, quartiles "
        f"{low:.4f}-{high:.4f})  a part of the clock by itself {part_seconds() / step_seconds:.5f} of a step",
        flush=True,
    )


def part_seconds() -> float:
    """Returns the seconds in which the step clock opens and closes one part, such as an execution or a copy."""
    clock = StepClock()

    def part() -> None:
        clock.close(clock.open(COMPUTE, 1.0), 1.0)

    return min(repeat(part, number=20_000, repeat=9)) / 20_000


def in_turns(name: str, rounds: int, cache: str) -> None:
    """Measures one case in this process, with the counters and without, and prints its line."""
    os.environ |= {"NEURON_COMPILE_CACHE_URL": cache, "NEURONTOOLS_DEVICE": "xla"}
    import torch

    from neurontools.runtime.counting.steps import step_clock
    from neurontools.runtime.launch.device_registration import executor
    from neurontools.runtime.launch.install import install_runtime

    install_runtime()
    from neurontools.runtime.tensors.device import device

    torch.set_num_threads(1)
    case = CASES[name]
    step = case.step_on("xla", functools.partial(device.flush_all, "MarkStep"))
    for _ in range(20):
        step()
    clock: Any = step_clock
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * rounds):
        is_on = number % 2 == (number // 2) % 2
        samples = [loaded.samples for programs in executor().loaded.values() for loaded in programs.values()]
        due = [each.next_at for each in samples]
        if not is_on:
            for each in samples:
                each.next_at = NEVER
            clock.open, clock.close, clock.charge = (lambda *_: None,) * 3
        began = time.thread_time()
        for _ in range(case.steps):
            step()
        seconds[is_on].append((time.thread_time() - began) / case.steps)
        if not is_on:
            for each, next_at in zip(samples, due, strict=True):
                each.next_at = next_at
            del clock.open, clock.close, clock.charge
    ratios = sorted(on / off for on, off in zip(seconds[True], seconds[False], strict=True))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    step_seconds = statistics.median(seconds[False])
    print(
        f"{name:6} without {step_seconds * 1e3:8.3f} ms  with / without {statistics.median(ratios):.4f} (quartiles "
        f"{low:.4f}-{high:.4f})  a part of the clock by itself {part_seconds() / step_seconds:.5f} of a step",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=["mlp", "bert"])
    parser.add_argument("--before", metavar="COMMIT")
    parser.add_argument("--rounds", type=int, default=41)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for name in given.cases:
            if given.before is None:
                in_turns(name, given.rounds, f"{directory}/{name}")
            else:
                measure(name, given.rounds, tree_of(given.before, Path(directory) / "before"), directory)


if __name__ == "__main__":
    main()
