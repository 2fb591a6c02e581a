"""What the counters that are always on cost a training step: this tree beside a commit of before, vCPU time.

A process of each takes turns with the other, so that what else the machine does hits both; a round's ratio is that of
their vCPU times. The MLP has the shortest steps, and is the worst case.

    python benchmarks/step_counters.py [mlp lstm vit bert …] [--before COMMIT] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from timeit import repeat

from device_models import CASES

from neurontools.runtime.counting.step_clock import COMPUTE, StepClock

ROOT = Path(__file__).parents[1]
COMMIT_BEFORE = "1d9afe3"  # had none of them


def checked_out(commit: str, directory: Path) -> Path:
    """The tree of a commit."""
    directory.mkdir()
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(directory)], input=archive, check=True)
    return directory


def started(tree: Path, name: str, cache: str) -> subprocess.Popen[str]:
    """A worker of device_step.py that imports from this tree."""
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
    """Prints the line of one case."""
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
    step_seconds = min(seconds[1])  # of the quickest round, which a busy machine disturbs least
    print(
        f"{name:6} before {min(seconds[0]) * 1e3:8.3f} ms  now {step_seconds * 1e3:8.3f} ms  ratio "
        f"{step_seconds / min(seconds[0]):.4f} (of all rounds {statistics.median(ratios):.4f}, quartiles "
        f"{low:.4f}-{high:.4f})  a part of the clock by itself {part_seconds() / step_seconds:.5f} of a step",
        flush=True,
    )


def part_seconds() -> float:
    """The beginning and end of a part of the clock; a step has one for its execution, a batch and a copy one each."""
    clock = StepClock()

    def part() -> None:
        clock.close(clock.open(COMPUTE, 1.0), 1.0)

    return min(repeat(part, number=20_000, repeat=9)) / 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=["mlp", "bert"])
    parser.add_argument("--before", default=COMMIT_BEFORE, metavar="COMMIT")
    parser.add_argument("--rounds", type=int, default=41)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        before = checked_out(given.before, Path(directory) / "before")
        for name in given.cases:
            measure(name, given.rounds, before, directory)


if __name__ == "__main__":
    main()
