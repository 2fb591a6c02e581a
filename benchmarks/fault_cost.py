"""Measures the check for injected faults in a training step: an MLP with the check and without.

Short blocks with and without the check take turns in one process, so a slow moment hits both. It prints
the median ratio of neighbouring blocks, with a 95 % interval by order statistics. The time of the check alone, divided
by that of a step, is more precise than this ratio of two nearly equal times.
"""

from __future__ import annotations

import gc
import inspect
import math
import os
import re
import textwrap
import time
from statistics import median
from timeit import repeat

from measuring import Figure, compile_sources, daemon, report

STEPS = 10  # of a block
PAIRS = 1000
WARMING_BLOCKS = 50
CALLS = 100_000
_QUESTION = re.compile(r"\brun = \(\s*apply_fault\(.*?if self\.faults\.by_core else None\s*\)", re.DOTALL)


def main() -> None:
    compile_sources()
    with daemon("--simulate", "trn1.32xlarge") as running:
        os.environ |= {"NEURONTOOLS_SOCKET": running.socket, "NEURON_RT_NUM_CORES": "1"}
        import torch

        torch.set_num_threads(1)
        from neurontools.runtime.launch.install import install_runtime

        install_runtime()
        import torch_xla.core.xla_model as xm

        from neurontools.runtime.execution import executor
        from neurontools.runtime.reporting.control_channel import ArmedFaults

        asks = executor.Executor._run  # noqa: SLF001
        text, found = _QUESTION.subn("run = None", textwrap.dedent(inspect.getsource(asks)))
        assert found == 1
        names = dict(vars(executor))
        exec(text, names)
        ways = {"asks": asks, "does not": names["_run"]}

        device = xm.xla_device()
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batch = torch.ones(32, 64).to(device)

        def seconds_a_step() -> float:
            began = time.thread_time()
            for _ in range(STEPS):
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
                xm.mark_step()
            return (time.thread_time() - began) / STEPS

        for _ in range(WARMING_BLOCKS):
            seconds_a_step()
        gc.collect()
        gc.disable()  # a garbage collection would hit one of the two blocks
        ratios, steps = [], []
        for number in range(PAIRS):
            measured = {}
            for name in ways if number % 2 else reversed(ways):
                executor.Executor._run = ways[name]  # type: ignore[method-assign]  # noqa: SLF001
                measured[name] = seconds_a_step()
            ratios.append(measured["asks"] / measured["does not"])
            steps.append(measured["does not"])
        faults = ArmedFaults()
        empty = min(repeat(lambda: None, number=CALLS, repeat=7))
        question = (min(repeat(lambda: faults.by_core or None, number=CALLS, repeat=7)) - empty) / CALLS
    low, high = interval(ratios)
    report(
        f"A training step of an MLP while nothing is injected, {PAIRS} pairs of blocks of {STEPS} steps",
        [
            Figure("vCPU time of a step, asking for faults / not", median(ratios), "ratio", "at most 1.01"),
            Figure("  of 95 %, from", low, "ratio"),
            Figure("  to", high, "ratio"),
            Figure("the question / a step", question / median(steps), "ratio", "at most 0.001"),
            Figure("vCPU time of a step, not asking", median(steps) * 1e6, "us"),
        ],
    )


def interval(ratios: list[float]) -> tuple[float, float]:
    """Returns the 95 % interval of the median, for any distribution."""
    ordered, half = sorted(ratios), 0.98 * math.sqrt(len(ratios))
    return ordered[int(len(ordered) / 2 - half)], ordered[math.ceil(len(ordered) / 2 + half)]


if __name__ == "__main__":
    main()
