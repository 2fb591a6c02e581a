"""Operations, sizes and output of nccom-test, as AWS's guide of that command describes them.

Source: aws-neuron-sdk, tools/neuron-sys-tools/nccom-test.rst. Bandwidths are in GiB/s, although their heading is GB/s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from neurontools import free_cores
from neurontools.diagnose.workload_process import WorkloadHost, lines_of_all
from neurontools.util.errors import EXIT_USAGE, UserError
from neurontools.util.units import bytes_text, ranges_text

OPERATIONS = {
    "all_reduce": "all_reduce",
    "allr": "all_reduce",
    "all_gather": "all_gather",
    "allg": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "redsct": "reduce_scatter",
    "sendrecv": "sendrecv",
    "alltoall": "alltoall",
}
"""Operations by the names that a user may give."""
TYPE_BYTES = {
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "fp16": 2,
    "bf16": 2,
    "uint32": 4,
    "int32": 4,
    "fp32": 4,
}
CHECKED_TYPE = "fp32"  # the only one that AWS's command checks
_SPLIT_OPERATIONS = ("all_gather", "reduce_scatter", "alltoall")  # their data has an equal part for each rank
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_MOST_BYTES = 1 << 40
MOST_SIZES = 1000
_DEFAULT_STEPS = 10
_SIMULATED_TYPES = ("uint8", "int8", "fp16", "bf16", "int32", "fp32")  # gloo has no others
_EXECUTION_TIMEOUT_SECONDS = 600
_SILENCE_SECONDS = 3600.0
_GIB = float(1 << 30)
_RANK_BYTES = 300 << 20  # host memory of a process with torch
_SIMULATED_COPIES = 4  # of the data, with those on the simulated device; the measured number is 3
_CHECKED_BYTES = 8  # of an element in a check, which computes in doubles
_CHECK_COPIES = 2  # beside one for each rank; with two ranks, 3 were measured together
HEADING = "     size(B)    count(elems)     type    time(us)    algbw(GB/s)    busbw(GB/s)"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark: the operation by its long name, the number of ranks, and the sizes of the data in bytes."""

    operation: str
    ranks: int
    datatype: str
    sizes_bytes: Sequence[int]
    iterations: int = 20
    warmup_iterations: int = 5
    checks: bool = False


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """Result for one size. `median_seconds` is the median duration of the operation on rank 0."""

    size_bytes: int
    count: int
    datatype: str
    median_seconds: float
    bus_factor: float

    @property
    def algorithm_bandwidth_gib_per_second(self) -> float:
        return self.size_bytes / self.median_seconds / _GIB

    @property
    def bus_bandwidth_gib_per_second(self) -> float:
        """The algorithm bandwidth times the factor of NCCL's tests, which makes it independent of the ranks."""
        return self.algorithm_bandwidth_gib_per_second * self.bus_factor


class BenchmarkFailed(Exception):
    """A rank failed. `size_bytes` is the size that was to be measured then."""

    def __init__(self, reason: str, size_bytes: int) -> None:
        super().__init__(reason)
        self.size_bytes = size_bytes


class NotRunnable(UserError):
    """This host cannot run the benchmark now: no software, or too few free cores."""


def parse_size(text: str) -> int:
    """Parses a size such as `1024`, `1kb`, `32M` or `1GB`; a kb has 1024 bytes. Raises ValueError if it is invalid."""
    digits = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = digits[-1:] if digits[-1:] in ("k", "m", "g") else ""
    digits = digits.removesuffix(unit)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 15):
        raise ValueError(text)
    size_bytes = int(digits) * _UNITS[unit]
    if not 1 <= size_bytes <= _MOST_BYTES:
        raise ValueError(text)
    return size_bytes


def sizes_between(minimum: int, maximum: int, step_bytes: int | None, factor: int | None) -> list[int]:
    """Returns the sizes from `minimum` to `maximum`, both in bytes, at most MOST_SIZES + 1 of them.

    Each size is the one before times `factor`, or plus `step_bytes`. Without both, there are ten steps.
    """
    step = step_bytes or max(1, (maximum - minimum) // _DEFAULT_STEPS)
    sizes: list[int] = []
    size = minimum
    while size <= maximum and len(sizes) <= MOST_SIZES:
        sizes.append(size)
        size = size * factor if factor is not None else size + step
    return sizes


def bus_factor(operation: str, ranks: int) -> float:
    """Returns the factor from algorithm to bus bandwidth. Source: PERFORMANCE.md of nccl-tests."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation in _SPLIT_OPERATIONS else 1.0


def element_count(benchmark: Benchmark, size_bytes: int) -> int:
    """Returns the number of elements of a size, rounded so that each rank has an equal part where the data is split."""
    count = max(1, size_bytes // TYPE_BYTES[benchmark.datatype])
    parts = benchmark.ranks if benchmark.operation in _SPLIT_OPERATIONS else 1
    return max(1, count // parts) * parts


def host_memory_bytes(benchmark: Benchmark, *, is_simulated: bool) -> int:
    """Estimates the host memory that the ranks need together for the largest size, in bytes."""
    count = max(element_count(benchmark, size) for size in benchmark.sizes_bytes)
    copies = _SIMULATED_COPIES if is_simulated else 1
    element_bytes = copies * TYPE_BYTES[benchmark.datatype]
    if benchmark.checks:
        element_bytes += _CHECKED_BYTES * (_CHECK_COPIES + benchmark.ranks)
    return benchmark.ranks * (_RANK_BYTES + count * element_bytes)


def row_text(row: BenchmarkRow) -> str:
    return (
        f"{row.size_bytes:>12}{row.count:>16}{row.datatype:>9}{row.median_seconds * 1e6:>12.0f}"
        f"{row.algorithm_bandwidth_gib_per_second:>15.2f}{row.bus_bandwidth_gib_per_second:>15.2f}"
    )


def average_text(rows: Sequence[BenchmarkRow]) -> str:
    average = sum(row.bus_bandwidth_gib_per_second for row in rows) / len(rows)
    return f"Avg bus bandwidth:      {average:.4f}GB/s"


class CollectiveBenchmark:
    """Runs a benchmark on free cores, with a process for each rank. Use it as a context manager.

    `is_simulated` says whether the cores are. `wrong_elements` is the number of elements that a check found wrong.
    Raises NotRunnable without the software, the free cores or the host memory.
    """

    def __init__(self, socket_path: str, benchmark: Benchmark) -> None:
        self._benchmark = benchmark
        self._host = WorkloadHost(socket_path, _EXECUTION_TIMEOUT_SECONDS)
        self._stack = ExitStack()
        self.is_simulated = self._host.is_simulated
        self.wrong_elements = 0
        if self._host.stack_name is None:
            raise NotRunnable("; ".join(self._host.missing_stack), EXIT_USAGE)
        if self.is_simulated and benchmark.datatype not in _SIMULATED_TYPES:
            known = ", ".join(_SIMULATED_TYPES)
            raise NotRunnable(f"{benchmark.datatype}: simulated cores cannot send it; give one of {known}", EXIT_USAGE)
        self._require_host_memory()
        self._cores = self._free_cores()

    def __enter__(self) -> CollectiveBenchmark:
        self._stack.enter_context(self._host)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self) -> Iterator[BenchmarkRow]:
        """Yields a row for each size. Raises BenchmarkFailed if a rank fails."""
        benchmark, cores = self._benchmark, self._cores
        counts = [element_count(benchmark, size) for size in benchmark.sizes_bytes]
        plan = {
            "size": benchmark.ranks,
            "store": str(Path(self._host.directory, "store")),
            "timeout_seconds": _SILENCE_SECONDS,
            "operation": benchmark.operation,
            "datatype": benchmark.datatype,
            "counts": counts,
            "iterations": benchmark.iterations,
            "warmup_iterations": benchmark.warmup_iterations,
            "checks": benchmark.checks,
        }
        script = "nccom_workload.py"
        ranks = [self._host.start({**plan, "rank": rank}, str(core), script=script) for rank, core in enumerate(cores)]
        done = 0
        for _, line in lines_of_all(ranks, _SILENCE_SECONDS):
            self.wrong_elements += int(line.get("wrong", 0))
            if "seconds" in line:
                size_bytes = counts[done] * TYPE_BYTES[benchmark.datatype]
                factor = bus_factor(benchmark.operation, benchmark.ranks)
                yield BenchmarkRow(size_bytes, counts[done], benchmark.datatype, float(line["seconds"]), factor)
                done += 1
        failed = {rank: process.failure for rank, process in enumerate(ranks) if process.failure}
        if failed:
            # A rank whose device failed names the error of the device; its peers only miss it.
            rank = next((rank for rank, text in failed.items() if "COLLECTIVES" not in text), min(failed))
            raise BenchmarkFailed(
                f"rank {rank} on NeuronCore {cores[rank]}: {failed[rank]}",
                benchmark.sizes_bytes[min(done, len(counts) - 1)],
            )

    def _require_host_memory(self) -> None:
        """Raises NotRunnable if the ranks would use up the memory of this host."""
        host = self._host.snapshot.host
        if host is None or host.memory_total_bytes is None or host.memory_used_bytes is None:
            return
        needed = host_memory_bytes(self._benchmark, is_simulated=self.is_simulated)
        free = host.memory_total_bytes - host.memory_used_bytes
        if needed > free:
            raise NotRunnable(
                f"{self._benchmark.ranks} ranks need about {bytes_text(needed)} of host memory, and only "
                f"{bytes_text(free)} are free; give a smaller --maxbytes or fewer ranks",
                EXIT_USAGE,
            )

    def _free_cores(self) -> list[int]:
        host, ranks = self._host, self._benchmark.ranks
        selected = free_cores.select(host.snapshot, ranks, logical_neuroncore_config=host.logical_neuroncore_config)
        if selected is None:
            free = ranges_text(sorted(free_cores.free_indices(host.snapshot, host.logical_neuroncore_config)))
            raise NotRunnable(
                f"no {ranks} NeuronCores in a row are free, only {free or 'none'}; neuron-ls shows who holds them",
                EXIT_USAGE,
            )
        return [*range(selected.first, selected.first + ranks)]
