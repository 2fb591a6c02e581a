"""Levels 2 and 3 of neuron-diag: run the tests on free cores and judge their measurements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neurontools import catalog
from neurontools.client.daemon_client import Client
from neurontools.diagnose.level3 import (
    SLOW_ACTION,
    SLOW_FACTOR,
    SLOW_LINK_FACTOR,
    Link,
    judged_links,
    judged_load,
    links_between,
    power_results,
)
from neurontools.diagnose.results import Outcome, TestResult
from neurontools.diagnose.table import BETWEEN_HOSTS
from neurontools.diagnose.workload_process import WorkloadHost, lines_of_all
from neurontools.model import LogicalNeuronCore, Snapshot, logical_cores

CORE_TESTS = ("matmul", "convolution", "random", "hbm", "transfer", "training", "collective", "speed")
_COMPARED_TESTS = ("collective", "speed")  # a result holds only after the comparison with the other cores
RANK_TESTS = ("all-reduce", "all-gather", "links")
EXECUTING_TESTS = frozenset((*CORE_TESTS, *RANK_TESTS, "reports", BETWEEN_HOSTS, "sustained"))
_REPEATED_TESTS = ("matmul", "convolution", "hbm", "transfer")  # in each round of the sustained load
PROVES_LEVEL_2 = "A pass proves that these computations were right on this hardware, now."
_EXECUTION_TIMEOUT_SECONDS = 10
_SILENCE_SECONDS = {True: 300.0, False: 1800.0}  # simulated or not; on hardware, a program may compile for minutes
_LATE_SECONDS, _LATE_FACTOR = 0.02, 5.0  # a collective is late if it takes longer than the shortest by both
_CONFIRMATIONS = 2  # further runs that must also find a core slow, because a busy host delays any core at times
_COUNTED_SECONDS = 10.0
_PEER_HOST_SECONDS = 240.0  # time limit of the other host
_SIZES = {
    True: {
        "hbm_bytes": 1 << 22,
        "transfer_bytes": 1 << 20,
        "speed_size": 256,
        "rounds": 5,
        "words": 1 << 16,
        "link_bytes": 1 << 22,
        "load_type": "float32",
    },
    False: {
        "hbm_bytes": 1 << 30,
        "transfer_bytes": 1 << 28,
        "speed_size": 4096,
        "rounds": 10,
        "words": 1 << 24,
        "link_bytes": 1 << 26,
        "load_type": "bfloat16",
    },
}
_RETRY = "run neuron-diag again on this device; if it fails again, move the work and have the host replaced"
_RANK_ACTION = "any rank may be the cause: see the other tests of these cores, then run neuron-diag again"
_MISSING_ACTION = "see the failed tests; if there is none, remove the cause and run neuron-diag again"
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _CoreRange:
    """Consecutive free logical cores, which one process can hold."""

    cores: tuple[LogicalNeuronCore, ...]

    def __str__(self) -> str:
        first, last = self.cores[0].index, self.cores[-1].index
        return str(first) if first == last else f"{first}-{last}"


@dataclass(frozen=True, slots=True)
class Peer:
    """The other host of a transfer. Without a port, this host listens at `address`, and `announce` gets its port."""

    address: str
    port: int | None
    announce: Callable[[int], None]


class DeviceTests:
    """The tests that execute something. Close it, or use it as a context manager: that ends all its processes."""

    def __init__(
        self,
        socket_path: str,
        device_indices: Collection[int],
        progress: Progress,
        sustained_seconds: float = 0.0,
        peer: Peer | None = None,
    ) -> None:
        self._host = WorkloadHost(socket_path, _EXECUTION_TIMEOUT_SECONDS)
        self._progress = progress
        self._device_indices = device_indices
        self._sustained_seconds = sustained_seconds
        self._peer = peer
        cores = logical_cores(self._host.snapshot, self._host.logical_neuroncore_config)
        self._cores = [core for core in cores if core.device_index in device_indices]

    def __enter__(self) -> DeviceTests:
        self._host.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._host.__exit__()

    @property
    def stack_name(self) -> str | None:
        """Name of the software that computes; None if this host has none for its devices."""
        return self._host.stack_name

    def run(self, names: Sequence[str]) -> Iterator[TestResult]:
        """Runs the tests with these names on all free cores. Cores that others hold are skipped."""
        on_cores = [name for name in names if name in EXECUTING_TESTS]
        if on_cores:
            yield from self._run_executing(on_cores)
        if "power" in names:
            with Client(self._host.socket_path) as client:
                yield from power_results(client.snapshot(), self._device_indices)

    def _run_executing(self, on_cores: Sequence[str]) -> Iterator[TestResult]:
        if self.stack_name is None:
            reason, action = self._host.missing_stack
            for name in on_cores:
                yield TestResult(name, Outcome.NOT_RUN, reason, action)
            return
        free = [core for core in self._cores if core.is_free is True]
        for core in self._cores:
            if core.is_free is not True:
                pids = ", ".join(map(str, core.owner_pids or core.candidate_pids))
                reason = f"not tested: PID {pids} holds the core" if pids else "not tested: the core may be held"
                for name in (name for name in on_cores if name not in ("links", BETWEEN_HOSTS)):
                    yield TestResult(name, Outcome.SKIP, reason, "", core.device_index, core.index)
        if free:
            yield from self._run_on_cores(on_cores, free)
        elif BETWEEN_HOSTS in on_cores:
            yield TestResult(BETWEEN_HOSTS, Outcome.SKIP, "no tested core is free")

    def _run_on_cores(self, names: Sequence[str], free: list[LogicalNeuronCore]) -> Iterator[TestResult]:
        core_tests = [name for name in names if name in CORE_TESTS]
        if core_tests:
            executed: set[int] = set()  # devices on which the workload ran
            for cores in _ranges(free):
                for result in self._judged(cores, core_tests):
                    if result.outcome is not Outcome.NOT_RUN and result.device_index is not None:
                        executed.add(result.device_index)
                    yield result
            if "reports" in names:
                yield from self._count_results(free, executed)
        elif "reports" in names:
            yield TestResult("reports", Outcome.NOT_RUN, "no test executed anything", "add a test such as matmul")
        if any(name in RANK_TESTS for name in names):
            yield from self._run_ranks([name for name in names if name in RANK_TESTS], _ranks(free))
        if BETWEEN_HOSTS in names:
            yield from self._run_between_hosts(free[0])
        if "sustained" in names:
            yield from self._run_sustained(_ranges(free))

    def missing_results(
        self, names: Sequence[str], found: Sequence[TestResult], reason: str, action: str
    ) -> Iterator[TestResult]:
        """Yields a result for each test and core that `found` lacks, after the tests were broken off."""
        known = {(result.test, result.device_index, result.neuroncore_index) for result in found}
        free = [core for core in self._cores if core.is_free is True]
        for name in names:
            places: list[tuple[int, int | None]] = []
            if name in ("links", "power"):
                places = [(index, None) for index in sorted({core.device_index for core in free})]
            elif name in EXECUTING_TESTS and name != "reports":
                cores = _ranks(free) if name in RANK_TESTS else free[:1] if name == BETWEEN_HOSTS else free
                places = [(core.device_index, core.index) for core in cores]
            elif name == "reports":
                places = [(index, None) for index in sorted({core.device_index for core in free})]
            for device_index, core_index in places:
                if not known.intersection({(name, device_index, core_index), (name, None, None)}):
                    yield TestResult(name, Outcome.NOT_RUN, reason, action, device_index, core_index)

    def _judged(self, cores: _CoreRange, names: Sequence[str]) -> Iterator[TestResult]:
        """Yields the results of the cores. If the tests are broken off, yields first those that need no comparison."""
        results: list[TestResult] = []
        suspects: set[tuple[str, int | None]] = set()
        try:
            for result in self._run_range(cores, names):
                results.append(result)  # noqa: PERF402 - keeps the results before an error
            suspects = _suspects(results)
            for _ in range(_CONFIRMATIONS):
                if not suspects:
                    break
                again = [*self._run_range(cores, sorted({test for test, _ in suspects}))]
                suspects &= _suspects(again)
        except Exception:
            yield from (
                self._with_expectation(result)
                for result in results
                if result.outcome is Outcome.FAIL or result.test not in _COMPARED_TESTS
            )
            raise
        best = _best(results)
        for result in results:
            yield self._with_expectation(
                _slow_result(result, best) if (result.test, result.neuroncore_index) in suspects else result
            )

    def _run_range(self, cores: _CoreRange, names: Sequence[str]) -> Iterator[TestResult]:
        """Runs the workload in a process that holds these cores."""
        plan = {"cores": [*range(len(cores.cores))], "tests": [*names], **_SIZES[self._host.is_simulated]}
        process = self._host.start(plan, str(cores))
        expected = {(core.index, name) for core in cores.cores for name in names}
        running: tuple[LogicalNeuronCore, str] | None = None
        for line in process.lines(_SILENCE_SECONDS[self._host.is_simulated]):
            core = cores.cores[line["core"]]
            if "begin" in line:
                running = core, line["begin"]
                self._progress(f"{line['begin']} on core {core.index}, {len(expected)} to do")
            else:
                expected.discard((core.index, line["test"]))
                yield self._result(line, core)
        for core in cores.cores:
            for name in names:
                if (core.index, name) in expected:
                    is_culprit = running == (core, name)
                    yield _missing_result(name, core, process.failure, is_culprit=is_culprit)

    def _run_ranks(self, names: Sequence[str], ranks: Sequence[LogicalNeuronCore]) -> Iterator[TestResult]:
        """Runs collectives between processes, each of which holds a core of another device if there are several."""
        links = links_between(self._host.snapshot, [core.device_index for core in ranks])
        if "links" in names:
            yield from self._untested_links(links)
            if not links:
                yield TestResult("links", Outcome.SKIP, "no two of the tested devices are linked")
                names = [name for name in names if name != "links"]
        if len(ranks) < 2 or not names:
            for name in names:
                yield TestResult(name, Outcome.SKIP, "needs two free cores", "", ranks[0].device_index)
            return
        rank_of = {core.device_index: rank for rank, core in enumerate(ranks)}
        pairs = [(rank_of[link.device_index], rank_of[link.peer_device_index]) for link in links]
        plan = {
            "tests": [*names],
            "pairs": pairs,
            "size": len(ranks),
            "store": f"{self._host.directory}/store",
            "slow_link_factor": SLOW_LINK_FACTOR,
            "timeout_seconds": _SILENCE_SECONDS[self._host.is_simulated],
            **_SIZES[self._host.is_simulated],
        }
        processes = [self._host.start({**plan, "rank": rank}, str(core.index)) for rank, core in enumerate(ranks)]
        found: dict[tuple[str, int], TestResult] = {}
        link_lines: dict[int, Mapping[str, Any]] = {}
        self._progress(f"collectives between {len(ranks)} cores")
        try:
            for process, line in lines_of_all(processes, _SILENCE_SECONDS[self._host.is_simulated]):
                core = ranks[processes.index(process)]
                if line.get("begin") == "links":
                    self._progress(f"links between {len(ranks)} devices")
                elif "link" in line:
                    link_lines.setdefault(line["link"], line)
                elif "test" in line:
                    found[line["test"], core.index] = self._result(line, core)
                if line.get("outcome") == Outcome.FAIL:
                    for each in processes:  # the others would only miss this one
                        each.end()
        except Exception:
            yield from found.values()
            raise
        yield from judged_links(links, link_lines, _RETRY)
        if "links" in names:
            for position, link in enumerate(links):
                if position not in link_lines:
                    failures = [processes[rank].failure for rank in pairs[position]]
                    reason = next(filter(None, failures), "a peer failed")
                    yield link.result(Outcome.NOT_RUN, f"{link}: {reason}", _MISSING_ACTION)
        for name in (name for name in names if name != "links"):
            for core, process in zip(ranks, processes, strict=True):
                yield found.get((name, core.index)) or _missing_result(name, core, process.failure, is_culprit=False)

    def _run_between_hosts(self, core: LogicalNeuronCore) -> Iterator[TestResult]:
        """Sends data to the core of another host and back. One host listens, and the other one connects."""
        if self._peer is None or not self._host.is_simulated:
            reason = "needs --hosts with two hosts" if self._peer is None else "nccom-test of AWS measures EFA"
            yield TestResult(BETWEEN_HOSTS, Outcome.SKIP, reason)
            return
        rank = int(self._peer.port is not None)
        plan = {
            "tests": [BETWEEN_HOSTS],
            "rank": rank,
            "size": 2,
            "address": self._peer.address,
            "port": self._peer.port,
            "timeout_seconds": _PEER_HOST_SECONDS,
            **_SIZES[self._host.is_simulated],
        }
        process = self._host.start(plan, str(core.index))
        found = None
        for line in process.lines(_PEER_HOST_SECONDS):
            if "listening" in line:
                self._peer.announce(line["listening"])
            elif "test" in line:
                found = self._result(line, core)
        yield found or _missing_result(BETWEEN_HOSTS, core, process.failure, is_culprit=False)

    def _untested_links(self, tested: Sequence[Link]) -> Iterator[TestResult]:
        """Yields the links to selected devices that have no free core."""
        for link in links_between(self._host.snapshot, self._device_indices):
            if link not in tested:
                yield link.result(Outcome.SKIP, f"not tested: one end of {link} has no free core")

    def _run_sustained(self, ranges: Sequence[_CoreRange]) -> Iterator[TestResult]:
        """Runs the sustained load on all cores at once, with a process for each range."""
        sizes = _SIZES[self._host.is_simulated]
        plan = {"tests": _REPEATED_TESTS, "seconds": self._sustained_seconds, "slow_factor": SLOW_FACTOR, **sizes}
        processes = [
            self._host.start({"cores": [*range(len(each.cores))], **plan}, str(each), script="sustained_workload.py")
            for each in ranges
        ]
        found: dict[int, TestResult] = {}
        early_rates: dict[int | None, float] = {}
        for process, line in lines_of_all(processes, _SILENCE_SECONDS[self._host.is_simulated]):
            core = ranges[processes.index(process)].cores[line["core"]]
            if "begin" in line:
                self._progress(f"sustained load on core {core.index}, {line['left_seconds']:.0f} s left")
            else:
                found[core.index] = self._result(line, core)
                early_rates[core.index] = float(line.get("early", 0.0))
        # On a busy host, a whole process may be slow; it measures a slow core again, but only against its own cores.
        groups = [each.cores for each in ranges] if self._host.is_simulated else [[c for r in ranges for c in r.cores]]
        for cores in groups:
            results = [found[core.index] for core in cores if core.index in found]
            judged = judged_load(results, early_rates, is_simulated=self._host.is_simulated)
            yield from map(self._with_expectation, judged)
        for each, process in zip(ranges, processes, strict=True):
            for core in each.cores:
                if core.index not in found:
                    yield _missing_result("sustained", core, process.failure, is_culprit=False)

    def _count_results(self, free: Sequence[LogicalNeuronCore], executed: Collection[int]) -> Iterator[TestResult]:
        """Judges whether the daemon counted executions on each device on which the workload ran."""
        before = _executions_by_device(self._host.snapshot)
        for index in sorted({core.device_index for core in free}.difference(executed)):
            action = "see the tests of this device"
            yield TestResult("reports", Outcome.NOT_RUN, "no test executed anything", action, index)
        devices = sorted(executed)
        if not devices:
            return

        def uncounted(now: Mapping[int, int | None]) -> list[int]:
            return [index for index in devices if now.get(index) is not None and now.get(index) == before.get(index)]

        lost = devices
        with Client(self._host.socket_path) as client:
            for snapshot in client.watch(duration_seconds=_COUNTED_SECONDS):
                lost = uncounted(_executions_by_device(snapshot))
                if not lost:
                    break
        for index in devices:
            if index in lost:
                action = "see the log of neurond; restart it"
                yield TestResult("reports", Outcome.FAIL, "neurond counted no execution of the test", action, index)
            else:
                yield TestResult("reports", Outcome.PASS, "neurond counted the executions of the test", "", index)

    def _result(self, line: Mapping[str, Any], core: LogicalNeuronCore) -> TestResult:
        outcome = Outcome(line["outcome"])
        return TestResult(
            str(line["test"]),
            outcome,
            str(line["reason"])[:1000],
            "" if outcome is not Outcome.FAIL else _RANK_ACTION if line["test"] in RANK_TESTS else _RETRY,
            core.device_index,
            core.index,
            line.get("measured"),
            unit=str(line.get("unit", "")),
        )

    def _with_expectation(self, result: TestResult) -> TestResult:
        """Adds the peak of the catalog to a measured rate."""
        name = self._host.snapshot.instance.instance_type
        if result.measured is None or name not in catalog.names():
            return result
        if result.test in ("speed", "sustained"):
            peak = catalog.peak_flops_per_logical_core(name, self._host.logical_neuroncore_config)
            return replace(result, expected=peak, source=f"catalog: bf16 peak of a core of {name}")
        family = catalog.load(name).family
        if result.test == "hbm" and family.memory_bandwidth_bytes_per_second.value is not None:
            peak = float(family.memory_bandwidth_bytes_per_second.value)
            return replace(result, expected=peak, source=f"catalog: HBM bandwidth of a device of {name}")
        return result


def _ranges(free: Sequence[LogicalNeuronCore]) -> list[_CoreRange]:
    ranges: list[list[LogicalNeuronCore]] = []
    for core in free:
        if ranges and ranges[-1][-1].index + 1 == core.index:
            ranges[-1].append(core)
        else:
            ranges.append([core])
    return [_CoreRange(tuple(cores)) for cores in ranges]


def _ranks(free: Sequence[LogicalNeuronCore]) -> list[LogicalNeuronCore]:
    """Returns the cores between which collectives run: the first free one of each device, or two of the only device."""
    ranks = list({core.device_index: core for core in reversed(free)}.values())[::-1]
    return ranks if len(ranks) > 1 else [*free[:2]]


def _executions_by_device(snapshot: Snapshot) -> dict[int, int | None]:
    counts: dict[int, int | None] = {}
    for core in snapshot.cores:
        if core.executions_total is not None:
            counts[core.device_index] = (counts.get(core.device_index) or 0) + core.executions_total
    return counts


def _best(results: Sequence[TestResult]) -> dict[str, float]:
    """Returns the best value of the tests that compare cores: the highest speed and the shortest collective."""
    values: dict[str, list[float]] = {}
    for result in results:
        if result.outcome is Outcome.PASS and result.measured is not None:
            values.setdefault(result.test, []).append(result.measured)
    return {test: max(found) if test == "speed" else min(found) for test, found in values.items()}


def _suspects(results: Sequence[TestResult]) -> set[tuple[str, int | None]]:
    """Returns test and core of the results that are much worse than the best core."""
    best, found = _best(results), set()
    for result in results:
        if result.measured is None or result.test not in best:
            continue
        limit = best[result.test]
        if (result.test == "speed" and result.measured * SLOW_FACTOR < limit) or (
            result.test == "collective" and result.measured > limit * _LATE_FACTOR + _LATE_SECONDS
        ):
            found.add((result.test, result.neuroncore_index))
    return found


def _slow_result(result: TestResult, best: Mapping[str, float]) -> TestResult:
    limit, measured = best[result.test], result.measured or 0.0
    if result.test == "speed":
        reason = f"the fastest core is {limit / measured:.1f} times as fast"
    else:
        reason = f"a collective takes {measured * 1e3:.0f} ms, on the best core {limit * 1e3:.1f} ms"
    return replace(result, outcome=Outcome.FAIL, reason=reason, action=SLOW_ACTION)


def _missing_result(test: str, core: LogicalNeuronCore, failure: str, *, is_culprit: bool) -> TestResult:
    """Returns the result of a test that gave none. The test that ran when the process failed is a failure."""
    reason = failure or "a peer failed"
    outcome = Outcome.FAIL if is_culprit else Outcome.NOT_RUN
    action = _RETRY if is_culprit else _MISSING_ACTION
    return TestResult(test, outcome, reason, action, core.device_index, core.index)
