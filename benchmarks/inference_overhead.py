"""Measures a request to a traced model beside the same module on the CPU. Both take turns in one process, on one vCPU.

The process reports to a daemon, as a server does. The table of docs/inference.md has these figures.

    python benchmarks/inference_overhead.py [--json]
"""

from __future__ import annotations

import os
import tempfile
import warnings

from measuring import Figure, daemon, interleaved_medians_ms, report

ROUNDS = {"tiny": 1000, "BERT-small": 15}


def measure() -> list[Figure]:
    import torch
    import torch_neuronx
    from device_models import Bert

    warnings.filterwarnings("ignore", category=DeprecationWarning)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tiny = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).eval()
    examples = {"tiny": (tiny, torch.rand(2, 16)), "BERT-small": (Bert().eval(), torch.randint(0, 30000, (1, 128)))}
    figures = []
    for name, (model, example) in examples.items():
        traced = torch_neuronx.trace(model, example)
        with torch.no_grad():
            for _ in range(5):  # the compiler checks its result, and times the first executions
                traced(example)
            times = interleaved_medians_ms(
                {"module": lambda: model(example), "traced": lambda: traced(example)},  # noqa: B023  called at once
                ROUNDS[name],
            )
        figures += [
            Figure(f"{name}: the module on the CPU", times["module"], "ms"),
            Figure(f"{name}: the traced model", times["traced"], "ms"),
        ]
        if name == "tiny":
            figures.append(Figure(f"{name}: difference", times["traced"] - times["module"], "ms", "at most 0.2"))
        else:
            figures.append(Figure(f"{name}: ratio", times["traced"] / times["module"], "", "at most 1.1"))
    return figures


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache, daemon("--simulate", "trn1.2xlarge") as running:
        os.environ |= {
            "NEURON_COMPILE_CACHE_URL": cache,
            "NEURONTOOLS_SOCKET": running.socket,
            "NEURON_RT_NUM_CORES": "1",
            "NEURONTOOLS_RUNTIME": "1",
            "NEURONTOOLS_DEVICE": "xla",
        }
        report("Requests to traced models", measure())
