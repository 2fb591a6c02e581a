"""The workload of neuron-diag: a script that uses torch only through the device, so it runs with any Neuron stack.

Usage: `workload.py PLAN`. PLAN is JSON: the local indices of the cores, the names of the tests, sizes, and for
collectives between processes the rank. The script writes a line of JSON to standard output when it begins a test on a
core, and when the test has ended.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from statistics import median_high
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend  # noqa: F401 - registers the backend

from neurontools.diagnose.training import LOSSES, train

_SIGMAS = 6.0  # limit of a statistic; a healthy core exceeds it once in 500 million runs
_RANDOM_VALUES = 100_000
_SWEEPS, _CONFIRMING_SWEEPS = 2, 8  # over all links; over slow links
_PATTERNS = (0, 0x55555555, 0x2AAAAAAA, 0x7FFFFFFF)


class WrongResult(Exception):
    """A result of the device differs from the expected one. The message states both."""


class Measurement(NamedTuple):
    """What a test found: a sentence, and optionally a measured quantity with its unit."""

    reason: str
    value: float | None = None
    unit: str = ""


def main(plan: dict[str, Any]) -> None:
    """Runs the tests of the plan on each core, then those that compare cores."""
    if "rank" in plan:
        _run_ranks(plan)
        return
    devices = [xm.xla_device(index) for index in plan["cores"]]
    for index, device in zip(plan["cores"], devices, strict=True):
        for name in plan["tests"]:
            if name in TESTS:
                _report(name, index, lambda name=name, device=device: TESTS[name](device, plan))  # type: ignore[misc]
    if "collective" in plan["tests"]:
        _run_alone(plan, devices)
    if "speed" in plan["tests"]:
        _compare_speed(plan, devices)


def write_line(**fields: object) -> None:
    """Writes a line of JSON to standard output."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _report(name: str, core: int, test: Callable[[], Measurement]) -> None:
    write_line(begin=name, core=core)
    try:
        found = test()
    except Exception as error:  # the report names every failure of the device
        write_line(test=name, core=core, outcome="fail", reason=failure_reason(error))
    else:
        write_line(test=name, core=core, outcome="pass", reason=found.reason, measured=found.value, unit=found.unit)


def failure_reason(error: Exception) -> str:
    """Returns the first line of an error, with the type of an error that is no result of a device."""
    text = (str(error).strip().splitlines() or [""])[0]
    return (text if isinstance(error, WrongResult) or "NRT_" in text else f"{type(error).__name__}: {text}")[:500]


def _require_equal(what: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    wrong = (found != expected) | found.isnan() if found.is_floating_point() else found != expected
    count = int(wrong.sum())
    if count:
        at = int(wrong.flatten().nonzero()[0])
        first, wanted = found.flatten()[at].item(), expected.flatten()[at].item()
        raise WrongResult(f"{what}: {count} of {found.numel()} results are wrong; result {at} is {first}, not {wanted}")


def _signs(size: int, step: int) -> torch.Tensor:
    """Returns a square matrix of -1, 0 and 1. Products of two such matrices are exact in every tested type."""
    return (torch.arange(size * size).reshape(size, size) * step + step) % 3 - 1


def _test_matmul(device: Any, _plan: dict[str, Any]) -> Measurement:
    done = []
    for name, dtype, size in (
        ("fp32", torch.float32, 128),
        ("bf16", torch.bfloat16, 128),
        ("fp8", getattr(torch, "float8_e4m3fn", None), 16),
    ):
        if dtype is None:
            continue
        one, other = _signs(size, 5), _signs(size, 7)
        try:
            product = (one.to(dtype).to(device) @ other.to(dtype).to(device)).cpu()
        except (NotImplementedError, TypeError):
            continue  # neither this stack nor this core has the type
        _require_equal(f"{name} product", product.double(), (one @ other).double())
        done.append(name)
    return Measurement(f"products in {', '.join(done)} are exact")


def _test_convolution(device: Any, _plan: dict[str, Any]) -> Measurement:
    image = _signs(32, 5).reshape(1, 1, 32, 32).repeat(2, 3, 1, 1).float()
    weight = _signs(9, 7).flatten()[:81].reshape(3, 3, 3, 3).float()
    found = torch.nn.functional.conv2d(image.to(device), weight.to(device), padding=1).cpu()
    _require_equal("convolution", found, torch.nn.functional.conv2d(image.double(), weight.double(), padding=1).float())
    return Measurement("a convolution in fp32 is exact")


def _test_random(device: Any, _plan: dict[str, Any]) -> Measurement:
    uniform = torch.rand(_RANDOM_VALUES, device=device).cpu().double()
    _require_near("mean of uniform numbers", uniform.mean().item(), 0.5, (1 / 12) ** 0.5)
    _require_near("variance of uniform numbers", uniform.var().item(), 1 / 12, (1 / 180) ** 0.5)
    normal = torch.randn(_RANDOM_VALUES, device=device).cpu().double()
    _require_near("mean of normal numbers", normal.mean().item(), 0.0, 1.0)
    _require_near("variance of normal numbers", normal.var().item(), 1.0, 2**0.5)
    # A quarter of the way between two bfloat16 numbers: stochastic rounding goes up in a quarter of the cases.
    rounded = torch.full((_RANDOM_VALUES,), 1 + 2**-9).to(device).to(torch.bfloat16).float().cpu().double()
    if rounded.unique().numel() == 1:
        return Measurement("random numbers have the expected statistics; the stack rounds to nearest")
    _require_near("mean after stochastic rounding", rounded.mean().item(), 1 + 2**-9, 2**-7 * (0.25 * 0.75) ** 0.5)
    return Measurement("random numbers and stochastic rounding have the expected statistics")


def _require_near(what: str, found: float, expected: float, deviation: float) -> None:
    limit = _SIGMAS * deviation / _RANDOM_VALUES**0.5
    if not abs(found - expected) <= limit:
        raise WrongResult(f"{what} is {found:.6f}, not {expected:.6f} within {limit:.6f}")


def _test_hbm(device: Any, plan: dict[str, Any]) -> Measurement:
    count = plan["hbm_bytes"] // 4
    seconds = []
    for pattern in _PATTERNS:
        began = time.monotonic()
        written = torch.full((count,), pattern, dtype=torch.int32, device=device)
        copied = written.clone()
        xm.mark_step()
        wrong = int(((copied != pattern) | (written != pattern)).sum().cpu())
        seconds.append(time.monotonic() - began)
        if wrong:
            raise WrongResult(f"pattern {pattern:#010x}: {wrong} of {count} words are wrong")
    addresses = torch.arange(count, dtype=torch.int32, device=device)
    _require_equal("addresses as pattern", addresses.cpu(), torch.arange(count, dtype=torch.int32))
    rate = 3 * 4 * count / min(seconds)  # one write, one copy, which the comparison reads
    return Measurement(f"{len(_PATTERNS) + 1} patterns in {4 * count >> 20} MiB are intact", rate, "bytes/s")


def _test_transfer(device: Any, plan: dict[str, Any]) -> Measurement:
    sent = torch.randint(0, 256, (plan["transfer_bytes"],), dtype=torch.uint8)
    began = time.monotonic()
    received = sent.to(device).cpu()
    seconds = time.monotonic() - began
    _require_equal("transfer", received, sent)
    return Measurement("bytes return from the device as they were sent", 2 * sent.numel() / seconds, "bytes/s")


def _test_training(device: Any, _plan: dict[str, Any]) -> Measurement:
    for step, (loss, expected) in enumerate(zip(train(device), LOSSES, strict=True), 1):
        if loss != expected:
            raise WrongResult(f"training: the loss of step {step} is {loss}, not {expected}")
    return Measurement(f"all {len(LOSSES)} losses of a training equal the recorded ones")


TESTS: dict[str, Callable[[Any, dict[str, Any]], Measurement]] = {
    "matmul": _test_matmul,
    "convolution": _test_convolution,
    "random": _test_random,
    "hbm": _test_hbm,
    "transfer": _test_transfer,
    "training": _test_training,
}
"""The tests of a single core: functions of its device and the plan. They raise an error if the device fails."""


def _run_alone(plan: dict[str, Any], devices: list[Any]) -> None:
    """Runs a collective whose only rank is the core, so a late or hanging core is told from its peers."""
    dist.init_process_group("xla", store=dist.HashStore(), rank=0, world_size=1)

    def collect(device: Any) -> Measurement:
        seconds = []
        for round_number in range(plan["rounds"]):
            value = torch.full((64,), float(round_number), device=device)
            xm.mark_step()
            began = time.monotonic()
            dist.all_reduce(value)
            xm.mark_step()
            found = value.cpu()
            seconds.append(time.monotonic() - began)
            _require_equal("all-reduce of one rank", found, torch.full((64,), float(round_number)))
        return Measurement("a collective ends at once", min(seconds), "s")

    for index, device in zip(plan["cores"], devices, strict=True):
        _report("collective", index, lambda device=device: collect(device))  # type: ignore[misc]


def _compare_speed(plan: dict[str, Any], devices: list[Any]) -> None:
    """Times the same product on all cores. The cores take turns, so a slow moment of the host slows all of them."""
    size = plan["speed_size"]
    best = dict.fromkeys(plan["cores"], float("inf"))
    value = torch.full((size, size), 0.5)
    operands = {index: value.to(device) for index, device in zip(plan["cores"], devices, strict=True)}
    failed: dict[int, str] = {}
    for index, seconds in _turns(plan, operands, failed):
        best[index] = min(best[index], seconds)
    for index, seconds in best.items():
        if index in failed:
            write_line(test="speed", core=index, outcome="fail", reason=failed[index])
        else:
            rate = 2 * size**3 / seconds
            write_line(
                test="speed",
                core=index,
                outcome="pass",
                reason="is about as fast as the other cores",
                measured=rate,
                unit="FLOP/s",
            )


def _turns(
    plan: dict[str, Any], operands: dict[int, torch.Tensor], failed: dict[int, str]
) -> Iterator[tuple[int, float]]:
    for round_number in range(plan["rounds"] * 3):
        for index, operand in operands.items():
            if not round_number:
                write_line(begin="speed", core=index)
            try:
                began = time.monotonic()
                (operand @ operand)[0, 0].cpu()
                seconds = time.monotonic() - began
            except RuntimeError as error:
                failed[index] = str(error).strip().splitlines()[0][:500]
            else:
                if round_number > 1:  # the first rounds compile
                    yield index, seconds


def join_ranks(plan: dict[str, Any]) -> Any:
    """Joins the processes of all ranks of the plan, and returns the device of this rank."""
    device = xm.xla_device()
    timeout = timedelta(seconds=plan["timeout_seconds"])
    store = _store_between_hosts(plan, timeout) if "address" in plan else dist.FileStore(plan["store"], plan["size"])
    dist.init_process_group("xla", store=store, rank=plan["rank"], world_size=plan["size"], timeout=timeout)
    return device


def _store_between_hosts(plan: dict[str, Any], timeout: timedelta) -> dist.Store:
    """Returns the rendezvous store of two hosts. Rank 0 serves it at its address only, and writes its port."""
    host, port = plan["address"], plan["port"]
    if plan["rank"]:
        return dist.TCPStore(host, port, 2, is_master=False, timeout=timeout)
    with socket.create_server((host, 0)) as server:
        port = server.getsockname()[1]
        write_line(listening=port)
        return dist.TCPStore(
            host, port, 2, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=server.detach()
        )


def _run_ranks(plan: dict[str, Any]) -> None:
    """Verifies the contents of collectives between the processes of all ranks, then measures links."""
    rank, size = plan["rank"], plan["size"]
    write_line(begin=plan["tests"][0], core=0)
    device = join_ranks(plan)
    if "between-hosts" in plan["tests"]:
        _report("between-hosts", 0, lambda: _exchange_between_hosts(plan, device))
        return
    own = torch.arange(plan["words"]) % 251 + rank

    def reduce_all() -> Measurement:
        value = own.float().to(device)
        began = time.monotonic()
        dist.all_reduce(value)
        xm.mark_step()
        found = value.cpu()
        seconds = time.monotonic() - began
        expected = size * (torch.arange(plan["words"]) % 251).float() + size * (size - 1) // 2
        _require_equal("all-reduce", found, expected)
        rate = found.numel() * 4 * 2 * (size - 1) / size / seconds  # bus bandwidth, as NCCL's tests define it
        return Measurement(f"sums of {size} ranks are exact", rate, "bytes/s")

    def gather_all() -> Measurement:
        value = own.int().to(device)
        parts = [torch.zeros_like(value) for _ in range(size)]
        dist.all_gather(parts, value)
        xm.mark_step()
        for index, part in enumerate(parts):
            _require_equal(f"all-gather of rank {index}", part.cpu(), (torch.arange(plan["words"]) % 251 + index).int())
        return Measurement(f"parts of {size} ranks are intact")

    for name, test in (("all-reduce", reduce_all), ("all-gather", gather_all)):
        if name in plan["tests"]:
            _report(name, 0, test)
    if "links" in plan["tests"]:
        _measure_links(plan, device)


def _exchange_between_hosts(plan: dict[str, Any], device: Any) -> Measurement:
    sent = (torch.arange(plan["link_bytes"] // 4) % 251).float()
    value = sent.to(device)
    rank = plan["rank"]
    rate = max(_exchange(value, sent, 1 - rank, is_first=rank == 0) for _ in range(plan["rounds"]))
    return Measurement("bytes return intact from the other host", rate, "bytes/s")


def _measure_links(plan: dict[str, Any], device: Any) -> None:
    """Sends data over each link and back, one link after the other. The first rank of a pair reports its best rate.

    Slow links are measured again, because a busy host delays any transfer at times.
    """
    store, limit = dist.FileStore(plan["store"] + "-links", plan["size"]), timedelta(seconds=plan["timeout_seconds"])
    own, pairs = plan["rank"], plan["pairs"]
    sent = (torch.arange(plan["link_bytes"] // 4) % 251).float()
    value = sent.to(device)
    rates = dict.fromkeys(range(len(pairs)), 0.0)
    measured, turn, sweeps_left = list(rates), 0, _SWEEPS + _CONFIRMING_SWEEPS
    while measured and sweeps_left:
        for number in measured:
            pair = pairs[number]
            if own in pair:
                if turn:
                    store.wait([f"turn {turn}"], limit)
                write_line(begin="links", core=0)
                try:
                    rate = max(_exchange(value, sent, pair[own == pair[0]], is_first=own == pair[0]) for _ in range(3))
                except Exception as error:  # the report names every failure of the device
                    write_line(link=number, outcome="fail", reason=failure_reason(error))
                    return
                if own == pair[0]:
                    store.set(f"rate {turn + 1}", str(rate))
                    store.set(f"turn {turn + 1}", "over")
            turn += 1
        store.wait([f"turn {turn}"], limit)
        for position, number in enumerate(measured, turn + 1 - len(measured)):
            rates[number] = max(rates[number], float(store.get(f"rate {position}")))
        sweeps_left -= 1
        slow = [number for number in rates if rates[number] * plan["slow_link_factor"] < median_high(rates.values())]
        measured = measured if sweeps_left > _CONFIRMING_SWEEPS else slow
    for number, pair in enumerate(pairs):
        if own == pair[0]:
            write_line(link=number, outcome="pass", measured=rates[number])


def _exchange(value: torch.Tensor, expected: torch.Tensor, peer: int, *, is_first: bool) -> float:
    """Sends a tensor to a rank and back. Returns the rate in bytes/s."""
    received = torch.empty_like(value)
    xm.mark_step()
    began = time.monotonic()
    for is_sending in (is_first, not is_first):
        if is_sending:
            dist.send(value if is_first else received, peer)
        else:
            dist.recv(received, peer)
    xm.mark_step()
    xm.wait_device_ops()
    seconds = time.monotonic() - began
    _require_equal("transfer over the link", received.cpu(), expected)
    return 2 * value.nbytes / seconds


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    sys.stdout.flush()
