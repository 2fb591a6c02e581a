"""Measures the counters for advice beside a training step of the shortest model.

Both are vCPU time of one process, so other load changes the ratio little. A step records its mark_step, the HBM in use
and the executions since the previous step. Rare events (a new graph, a fallback, a save) are not measured.

    python benchmarks/advice_cost.py [mlp lstm vit bert gpt resnet] [--rounds N]
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import tempfile
import time
from timeit import Timer

from device_models import CASES

_CALLS = 2000


def measure(name: str, rounds: int) -> None:
    """Measures one model and prints its line."""
    import torch

    from neurontools.runtime.counting.metrics import call_sites
    from neurontools.runtime.execution.work import ExecutionWork, SteadyState, current_counts
    from neurontools.runtime.launch.training_statistics import hbm_growth
    from neurontools.runtime.tensors.device import device

    torch.set_num_threads(1)
    case = CASES[name]
    step = case.step_on("xla", functools.partial(device.flush_all, "MarkStep"))
    for _ in range(10):
        step()
    usual, work = SteadyState(), ExecutionWork()

    def count() -> None:
        usual.executed(work)
        usual.step_done(current_counts())

    step_seconds, note_seconds, record_seconds, count_seconds = [], [], [], []
    for _ in range(rounds):
        step_seconds.append(Timer(step, timer=time.process_time).timeit(case.steps) / case.steps)
        note = Timer(functools.partial(call_sites.count_call, "mark_step"), timer=time.process_time)
        note_seconds.append(note.timeit(_CALLS) / _CALLS)
        record_seconds.append(Timer(hbm_growth.record_step, timer=time.process_time).timeit(_CALLS) / _CALLS)
        count_seconds.append(Timer(count, timer=time.process_time).timeit(_CALLS) / _CALLS)
    whole, note_one, look_one, count_one = map(min, (step_seconds, note_seconds, record_seconds, count_seconds))
    print(
        f"{name:6} step {whole * 1e6:8.0f} us  a place {note_one * 1e6:5.2f} us  HBM {look_one * 1e6:5.2f} us  "
        f"work {count_one * 1e6:5.2f} us  "
        f"together {(note_one + look_one + count_one) / whole:.4%} of a step (asked for: 1%)",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=["mlp", "lstm", "bert"])
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["NEURON_COMPILE_CACHE_URL"] = directory
        os.environ["NEURONTOOLS_DEVICE"] = "xla"
        from neurontools.runtime.launch.install import install_runtime

        install_runtime()
        for name in arguments.cases:
            measure(name, arguments.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
