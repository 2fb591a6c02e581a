"""Measures the CPU time of a tiny training under neuron-run beside `import torch`, with all processes of each."""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from measuring import Figure, compile_sources, daemon, installed, report

TRAINING = """
import torch
weight = torch.ones(4, 4, device="{device}", requires_grad=True)
(weight * 2).sum().backward()
print(weight.grad.sum().item())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_known_args()[0].rounds
    compile_sources()
    with daemon("--simulate", "trn1.2xlarge") as running, tempfile.TemporaryDirectory() as directory:
        scripts = {}
        for device in ("cpu", "neuron"):
            scripts[device] = str(Path(directory, f"{device}.py"))
            Path(scripts[device]).write_text(TRAINING.format(device=device))
        environment = {
            **os.environ,
            "NEURONTOOLS_SOCKET": running.socket,
            "NEURON_COMPILE_CACHE_URL": f"{directory}/cache",
        }
        run = installed("neuron-run")
        commands = {
            "python -c 'import torch'": [sys.executable, "-c", "import torch"],
            "the training on the CPU": [sys.executable, scripts["cpu"]],
            "neuron-run": [run, scripts["neuron"]],
            "neuron-run --simulate": [run, "--simulate", "trn1.2xlarge", scripts["neuron"]],
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(rounds + 1):
            for name, command in commands.items():
                before = _children_cpu_seconds()
                subprocess.run(command, env=environment, capture_output=True, check=True)
                if number:  # the first round warms up
                    seconds[name].append(_children_cpu_seconds() - before)
    medians = {name: median(each) for name, each in seconds.items()}
    bare = medians["python -c 'import torch'"]
    report(
        f"CPU time of the start, medians of {rounds} rounds",
        [
            *(Figure(name, value, "s") for name, value in medians.items()),
            Figure("neuron-run / import torch", medians["neuron-run"] / bare, "times", "at most 1.3"),
            Figure("neuron-run --simulate / import torch", medians["neuron-run --simulate"] / bare, "times"),
        ],
    )


def _children_cpu_seconds() -> float:
    """Returns the CPU time of ended children, and of their children for which they waited."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
