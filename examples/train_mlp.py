"""Trains a small network on every NeuronCore of this process and reports to the daemon.

Each core has a replica with its part of the batch. Gradients are averaged, and one optimizer steps for all.
All reported values are measured: bytes of tensors, FLOPs counted by torch, and times of executions.

    NEURON_RT_NUM_CORES=2 python examples/train_mlp.py --seconds 10
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import time
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from neurontools.driver.environment import InvalidCoreRequest
from neurontools.model import DeviceMemory
from neurontools.runtime import CoresUnavailable, Reporter
from neurontools.util.errors import UserError

FEATURES, HIDDEN, CLASSES = 64, 1024, 10


def size_bytes(tensors: Iterable[Tensor]) -> int:
    """Returns the memory of these tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def gradients(replica: nn.Module) -> list[Tensor]:
    """Returns the gradients of a replica after its backward pass."""
    return [parameter.grad for parameter in replica.parameters() if parameter.grad is not None]


def forward_and_backward(replica: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """Runs one replica. Returns its loss and leaves the gradients in its parameters."""
    replica.zero_grad()
    loss: Tensor = nn.functional.cross_entropy(replica(inputs), labels)
    loss.backward()
    return loss.item()


def train(reporter: Reporter, steps: int, seconds: float, batch_size: int, *, quiet: bool) -> None:
    """Trains until `steps` or `seconds` are over. `batch_size` is for one core."""
    torch.set_num_threads(1)  # more threads do not speed up matrices this small
    torch.manual_seed(0)
    master = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))
    replicas = [master, *(copy.deepcopy(master) for _ in reporter.cores[1:])]
    optimizer = torch.optim.AdamW(master.parameters(), lr=2e-3)
    # The task: an input belongs to the class whose hidden direction is closest to it.
    directions = torch.randn(FEATURES, CLASSES)

    # The parameters of a replica lie in the memory of its core.
    models = [
        reporter.load_model("train_mlp", memory={core: DeviceMemory(constants_bytes=size_bytes(replica.parameters()))})
        for core, replica in enumerate(replicas)
    ]
    sample, classes = torch.randn(batch_size, FEATURES), torch.zeros(batch_size, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:  # counted once: all steps are alike
        forward_and_backward(master, sample, classes)
    flop = counter.get_total_flops()

    begun = told = time.monotonic()
    for step in range(1, steps + 1):
        losses = []
        for core, (replica, model) in enumerate(zip(replicas, models, strict=True)):
            inputs = torch.randn(batch_size, FEATURES)
            labels = (inputs @ directions).argmax(1)
            with model.execution(core=core, flop=flop):
                losses.append(forward_and_backward(replica, inputs, labels))
            tensors = [inputs, labels, *gradients(replica)]
            if replica is master:  # the optimizer runs on the core of the first replica
                tensors += [value for state in optimizer.state.values() for value in state.values()]
            reporter.set_memory(core, "tensors_bytes", size_bytes(tensors))

        for mean, *others in zip(*map(gradients, replicas), strict=True):
            mean.add_(sum(others)).div_(len(replicas))  # in place: this is the gradient of the first replica
        optimizer.step()
        for replica in replicas[1:]:
            replica.load_state_dict(master.state_dict())

        now = time.monotonic()
        if not quiet and now - told >= 1:
            print(
                f"step {step:6d}  loss {sum(losses) / len(losses):.4f}  {step / (now - begun):.0f} steps/s", flush=True
            )
            told = now
        if now - begun >= seconds:
            break
    print(f"trained {step} steps, loss {sum(losses) / len(losses):.4f}", flush=True)
    reporter.flush()  # so that the daemon sees the last second too


def main() -> int:
    """Parses the command line, attaches, and trains."""
    parser = argparse.ArgumentParser(description="Train a small network, a replica on each NeuronCore.")
    parser.add_argument("--steps", type=int, default=1_000_000, help="end after so many steps")
    parser.add_argument("--seconds", type=float, default=30.0, help="end after this time (default: 30)")
    parser.add_argument("--batch-size", type=int, default=256, help="samples a step on each core (default: 256)")
    parser.add_argument("--quiet", action="store_true", help="print the last line only")
    options = parser.parse_args()
    if options.steps < 1 or options.batch_size < 1:
        parser.error("--steps and --batch-size must be at least 1")
    # without either variable the process takes all cores of the host, as with the original runtime
    if "NEURON_RT_VISIBLE_CORES" not in os.environ:
        os.environ.setdefault("NEURON_RT_NUM_CORES", "2")
    try:
        with Reporter.attach() as reporter:
            train(reporter, options.steps, options.seconds, options.batch_size, quiet=options.quiet)
    except (CoresUnavailable, InvalidCoreRequest, UserError) as error:
        print(f"train_mlp: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
