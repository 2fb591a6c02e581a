"""What it costs a training step that faults could be injected: an MLP that asks whether there are any, and one not."""

from __future__ import annotations

import inspect
import os
import textwrap
import time
from statistics import median, quantiles
from timeit import repeat

from measuring import Figure, compile_sources, daemon, report

STEPS = 200
ROUNDS = 40
CALLS = 100_000
_QUESTION = "run = struck(program, core, self.faults, self.policy.timeout_seconds) if self.faults.by_core else None"


def main() -> None:
    compile_sources()
    with daemon("--simulate", "trn1.32xlarge") as running:
        os.environ |= {"NEURONTOOLS_SOCKET": running.socket, "NEURON_RT_NUM_CORES": "1"}
        import torch

        torch.set_num_threads(1)
        from neurontools.runtime.launch.install import install

        install()
        import torch_xla.core.xla_model as xm

        from neurontools.runtime.execution import executor
        from neurontools.runtime.reporting.armed_faults import ArmedFaults

        asks = executor.Executor._run  # noqa: SLF001
        text = textwrap.dedent(inspect.getsource(asks))
        assert _QUESTION in text
        names = dict(vars(executor))
        exec(text.replace(_QUESTION, "run = None"), names)
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

        seconds_a_step()
        ratios, steps = [], []
        for number in range(ROUNDS):
            measured = {}
            for name in ways if number % 2 else reversed(ways):
                executor.Executor._run = ways[name]  # type: ignore[method-assign]  # noqa: SLF001
                measured[name] = seconds_a_step()
            ratios.append(measured["asks"] / measured["does not"])
            steps.append(measured["does not"])
        faults = ArmedFaults()
        empty = min(repeat(lambda: None, number=CALLS, repeat=7))
        question = (min(repeat(lambda: faults.by_core or None, number=CALLS, repeat=7)) - empty) / CALLS
    low, _, high = quantiles(ratios)
    report(
        f"A training step of an MLP while nothing is injected, {ROUNDS} rounds of {STEPS} steps",
        [
            Figure("vCPU time of a step, asking for faults / not", median(ratios), "ratio", "at most 1.01"),
            Figure("  first quartile of the rounds", low, "ratio"),
            Figure("  third quartile of the rounds", high, "ratio"),
            Figure("the question / a step", question / median(steps), "ratio", "at most 0.001"),
            Figure("vCPU time of a step, not asking", median(steps) * 1e6, "us"),
        ],
    )


if __name__ == "__main__":
    main()
