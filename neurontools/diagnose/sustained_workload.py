"""The sustained load of neuron-diag on the cores of one process. It uses torch only through the device.

Usage: `sustained_workload.py PLAN`. PLAN is JSON: the local indices of the cores, the names of the repeated tests, the
sizes and the seconds. The script writes a line of JSON when it begins a round on a core, and one for each core at the
end.

Each round repeats tests of level 2 on each core, and multiplies a Hadamard matrix by its scaled copy. Two such
multiplications give the first matrix again. The result is exact in every data type and for any order of the sums.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch_xla.core.xla_model as xm

from neurontools.diagnose.workload import TESTS, WrongResult, failure_reason, write_line

_PRODUCTS = 16  # of a core, one after the other; an even number
_MEASUREMENTS = 3  # in a round
_LEAST_RATES = 10  # of each core: a busy host can delay all measurements of a short load
_CONFIRMATIONS = 20  # further measurements of a slow core


@dataclass(slots=True)
class _CoreLoad:
    """The load of one core, and the rates of its rounds in FLOP/s."""

    local_index: int
    device: Any
    matrix: torch.Tensor
    scaled: torch.Tensor
    rates: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def late_rate(self) -> float:
        """The highest rate in the second half of the load; 0 before the first measurement."""
        return max(self.rates[len(self.rates) // 2 :], default=0.0)


def main(plan: dict[str, Any]) -> None:
    """Runs rounds on all cores for the seconds of the plan, and at least one round."""
    matrix = _hadamard_matrix(plan["speed_size"]).to(getattr(torch, plan["load_type"]))
    scaled = matrix / plan["speed_size"] ** 0.5
    loads = [_core_load(index, matrix, scaled) for index in plan["cores"]]
    began = time.monotonic()
    rounds = 0
    while True:
        _load_all(loads, began)
        for load in loads:
            left_seconds = max(0.0, began + plan["seconds"] - time.monotonic())
            write_line(begin="sustained", core=load.local_index, left_seconds=left_seconds)
            _run_guarded(load, began, partial(_run_round, load, plan))
        rounds += 1
        if time.monotonic() - began >= plan["seconds"]:
            break
    seconds = time.monotonic() - began
    _measure_again(loads, plan["slow_factor"], began)
    for load in loads:
        _write_result(load, rounds, seconds)


def _measure_again(loads: list[_CoreLoad], slow_factor: float, began: float) -> None:
    """Measures slow cores again, because a busy host sometimes delays a healthy core.

    After a short load, measures all cores again. The cores take turns, so the host delays them alike.
    """
    for _ in range(_CONFIRMATIONS):
        best = max((load.late_rate for load in loads), default=0.0)
        for load in loads:
            if len(load.rates) < _LEAST_RATES or load.late_rate * slow_factor < best:
                _run_guarded(load, began, partial(_measure, load))


def _hadamard_matrix(size: int) -> torch.Tensor:
    """Returns a matrix of 1 and -1 with orthogonal rows. The size is a power of 4, so its square root is exact."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix


def _core_load(index: int, matrix: torch.Tensor, scaled: torch.Tensor) -> _CoreLoad:
    device = xm.xla_device(index)
    return _CoreLoad(index, device, matrix.to(device), scaled.to(device))


def _load_all(loads: list[_CoreLoad], began: float) -> None:
    """Gives work to all cores before it waits for the first, so that all compute at the same time."""
    counts: dict[int, torch.Tensor] = {}

    def launch(load: _CoreLoad) -> None:
        counts[load.local_index] = (_multiplied(load) != load.matrix).sum()
        xm.mark_step()

    def check(load: _CoreLoad) -> None:
        _require_none_wrong(counts.pop(load.local_index))

    for step in (launch, check):
        for load in loads:
            _run_guarded(load, began, partial(step, load))


def _run_guarded(load: _CoreLoad, began: float, run: Any) -> None:
    """Runs a part of the load. A core that has failed rests."""
    if load.failure:
        return
    try:
        run()
    except Exception as error:  # the report names every failure of the device
        load.failure = f"after {time.monotonic() - began:.0f} s: {failure_reason(error)}"


def _run_round(load: _CoreLoad, plan: dict[str, Any]) -> None:
    for name in plan["tests"]:
        TESTS[name](load.device, plan)
    _measure(load)


def _measure(load: _CoreLoad) -> None:
    seconds = []
    for _ in range(_MEASUREMENTS):
        began = time.monotonic()
        (load.matrix @ load.scaled)[0, 0].cpu()
        seconds.append(time.monotonic() - began)
    load.rates.append(2 * len(load.matrix) ** 3 / min(seconds))


def _multiplied(load: _CoreLoad) -> torch.Tensor:
    value = load.matrix
    for _ in range(_PRODUCTS):
        value = value @ load.scaled
    return value


def _require_none_wrong(wrong: torch.Tensor) -> None:
    count = int(wrong.cpu())
    if count:
        raise WrongResult(f"products under load: {count} results are wrong")


def _write_result(load: _CoreLoad, rounds: int, seconds: float) -> None:
    if load.failure:
        write_line(test="sustained", core=load.local_index, outcome="fail", reason=load.failure)
        return
    write_line(
        test="sustained",
        core=load.local_index,
        outcome="pass",
        reason=f"{rounds} round{'s' if rounds > 1 else ''} of tests in {seconds:.0f} s were right",
        measured=load.late_rate,
        early=max(load.rates[: max(1, len(load.rates) // 2)]),
        unit="FLOP/s",
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    sys.stdout.flush()
