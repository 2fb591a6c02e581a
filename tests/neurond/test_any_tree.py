"""An exported tree is read back as it was; any other tree gives warnings or a clear error."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from neurond.allocator import CoreAllocator
from neurond.snapshots.sampler import Sampler
from neurond.sources.simulated import SCENARIOS, simulated_shape
from neurond.sources.sysfs import SysfsSource
from neurond.verdicts.rule_evaluator import RuleEvaluator

from neurontools import catalog
from neurontools.driver.environment import Roots
from neurontools.driver.inventory import read_host_snapshot
from neurontools.driver.sysfs_files import DEVICE_MEMORY_CATEGORIES, ECC_COUNTERS, MAX_COUNT, STATUS_COUNTERS
from neurontools.driver.tree_export import ExportedTree
from neurontools.model import (
    Device,
    DeviceMemory,
    EccCounters,
    ErrorCounters,
    ExecutionCounters,
    HostMemory,
    Instance,
    NeuronCore,
    PowerUtilization,
    Process,
    Snapshot,
    health,
)
from neurontools.rpc.convert import to_message
from neurontools.testing import DriverTree, idle_host, process_on
from neurontools.testing.driver_tree import temporary_directory
from neurontools.util.errors import UserError
from neurontools.views.device_list import device_list_json, device_list_table
from tests.harness.examples import examples
from tests.harness.scenario_host import ScenarioHost


@pytest.fixture
def place() -> Iterator[Path]:
    """Where a tree can be made."""
    with temporary_directory() as directory:
        yield Path(directory) / "host"


@contextmanager
def _reading(tree: ExportedTree, lnc: int | None = None) -> Iterator[Callable[[], Snapshot]]:
    """A source on the tree, and what reads it anew."""
    source = SysfsSource(tree.roots, lnc=lnc, time_in_use_unit="us")

    def read() -> Snapshot:
        # The scenario's time flies: in the first reading cores were busier than can be, and how busy is unknown.
        source.refresh()
        source.refresh()
        reading = source.read()
        return replace(
            idle_host(source.instance.instance_type),
            instance=source.instance,
            devices=reading.devices,
            cores=reading.cores,
            processes=reading.processes,
            warnings=reading.warnings,
        )

    try:
        yield read
    finally:
        source.close()


@pytest.mark.parametrize(
    ("instance_type", "index"), [("trn2u.48xlarge", 3), pytest.param("trn3s.48xlarge", 2, marks=pytest.mark.slow)]
)
def test_a_node_of_an_ultraserver_is_read_back_as_that_node(place: Path, instance_type: str, index: int) -> None:
    server_id = "00000000000000a7"
    exported = ScenarioHost(instance_type, "steady", place=(server_id, index)).at(30.0)
    with ExportedTree(str(place), exported) as tree, _reading(tree) as read:
        found = read()
        assert found.instance.ultraserver_id == server_id
        assert found.instance.ultraserver_node == exported.instance.ultraserver_node
        # Trainium2's odd nodes number their cores from the other die: the same core is still the same.
        assert [core.flop_total for core in found.cores] == [core.flop_total for core in exported.cores]


# What the tree can't carry, part by part. Each function gives a part without it.


def _instance(instance: Instance) -> Instance:
    """Not carried: how surely the topology is known, which devices should be there, what the metadata service tells.

    The driver's version is the tree's own.
    """
    inferred = tuple(sorted(set(instance.inferred_fields) - {"topology", "device_memory_bytes"}))
    untold: dict[str, Any] = {
        **dict.fromkeys(("driver_version", "instance_id", "instance_name", "region", "ami_id", "subnet_id")),
        **dict.fromkeys(("availability_zone", "availability_zone_id")),
    }
    return replace(instance, inferred_fields=inferred, expected_device_indices=(), **untold)


def _device(device: Device, generation: int) -> Device:
    """Not carried: marks of what is inferred, since neighbours are read, and places without a PCI device looked up.

    Inferentia has no ECC files, Trainium1 and Inferentia2 none of corrected errors.
    """
    ecc = device.ecc
    if generation == 1:
        ecc = EccCounters()
    elif generation == 2:
        ecc = replace(ecc, mem_corrected_total=None, sram_corrected_total=None)
    return replace(device, ecc=ecc, inferred_fields=(), reported_health=None)  # the driver alone reports it


def _core(core: NeuronCore) -> NeuronCore:
    """Not carried: fractions of a microsecond, when executions began and ended. Rates come later."""
    return replace(
        core,
        busy_seconds_total=None if core.busy_seconds_total is None else round(core.busy_seconds_total * 1e6) / 1e6,
        execution_started_at_unix_seconds=None,
        last_execution_at_unix_seconds=None,
        measured_at_seconds=None,
        utilization_ratio=None,
        flops_per_second=None,
        status=None,  # only the driver has it, and the resets
        reset_requests_total=None,
        reset_failures_total=None,
    )


# Carried: who it is and what it holds. Not: models, latencies, host memory, and executions before it was seen.
_process = attrgetter(
    *("pid", "command", "tag", "runtime_version", "synthetic", "logical_neuroncore_config"),
    *("core_indices", "neuroncore_indices", "device_indices"),
)


def _assert_same(simulated: Snapshot, read: Snapshot) -> None:
    generation = catalog.load(simulated.instance.instance_type).family.generation
    assert read.warnings == ()
    assert _instance(read.instance) == _instance(simulated.instance)
    assert len(read.devices) == len(simulated.devices)
    for ours, theirs in zip(read.devices, simulated.devices, strict=True):
        assert asdict(_device(ours, 3)) == asdict(_device(theirs, generation))
    assert list(map(_core, read.cores)) == list(map(_core, simulated.cores))
    assert list(map(_process, read.processes)) == list(map(_process, simulated.processes))


def _grown(start: object, now: object) -> dict[str, int]:
    return {name: getattr(now, name) - getattr(start, name) for name in now.__slots__}  # type: ignore[attr-defined]


def _used_stacks(cores: Iterable[NeuronCore], device: Device) -> Device:
    """The device with its stacks used as far as its cores say."""
    used: dict[int, int] = {}
    for core in cores:
        if core.device_index == device.index:
            used[core.hbm_stack_index] = used.get(core.hbm_stack_index, 0) + (core.memory.total_bytes or 0)
    stacks = tuple(replace(stack, used_bytes=used.get(stack.index, 0)) for stack in device.hbm_stacks)
    return replace(device, hbm_stacks=stacks)


def _without(snapshot: Snapshot, gone: set[int]) -> Snapshot:
    """The host after these processes have ended: their memory is free, what they counted stays with the cores."""
    cores = tuple(
        replace(core, owner_pid=None, memory=DeviceMemory()) if core.owner_pid in gone else core
        for core in snapshot.cores
    )
    devices = tuple(_used_stacks(cores, device) for device in snapshot.devices)
    processes = tuple(process for process in snapshot.processes if process.pid not in gone)
    return replace(snapshot, cores=cores, devices=devices, processes=processes)


class _Follower:
    """Compares what is read at one moment after the other, executions and errors since a process was first seen."""

    def __init__(self) -> None:
        self._first: dict[int, Process] = {}

    def compare(self, simulated: Snapshot, read: Snapshot) -> None:
        _assert_same(simulated, read)
        present = {process.pid: process for process in simulated.processes}
        self._first = {pid: self._first.get(pid, process) for pid, process in present.items()}
        for process in read.processes:
            start, now = self._first[process.pid], present[process.pid]
            assert process.executions is not None
            assert process.errors is not None
            assert asdict(process.executions) == _grown(start.executions, now.executions)
            # Not carried: transient errors, and numerical ones that were no outcome of an execution.
            carried = ("generic_total", "model_total", "runtime_total", "hardware_total")
            grown = _grown(start.errors, now.errors)
            assert {name: getattr(process.errors, name) for name in carried} == {name: grown[name] for name in carried}


# Trees take a while to write, so failures are not shrunk: the hosts are small enough to read.
_SETTINGS = settings(
    max_examples=examples(25),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow],
)
_TYPES = ["inf1.xlarge", "inf2.24xlarge", "trn1.2xlarge", "trn1.32xlarge", "trn2.3xlarge", "trn3pd98.3xlarge"]


@st.composite
def _days(draw: st.DrawFn) -> tuple[str, str, int, list[tuple[float, float]]]:
    """Type, scenario, seed, and moments: so many seconds later, and which share of the processes has ended by then."""
    moments = st.lists(
        st.tuples(st.sampled_from([0.25, 1.0, 4.0, 11.5, 40.0]), st.sampled_from([0.0, 0.0, 0.3, 1.0])),
        min_size=2,
        max_size=6,
    )
    scenario, seed = draw(st.sampled_from(sorted(SCENARIOS))), draw(st.integers(0, 99))
    return draw(st.sampled_from(_TYPES)), scenario, seed, draw(moments)


# A day with all that scenarios differ in: the start, before and in a ramp, while allocation fails.
@pytest.mark.slow
@example(("trn1.2xlarge", "idle", 0, [(3.0, 0.0), (17.0, 0.0), (45.0, 0.0)]))
@example(("trn1.2xlarge", "memory-leak", 0, [(3.0, 0.0), (17.0, 0.0), (45.0, 0.0)]))
@_SETTINGS
@given(_days())
def test_any_scenario_at_any_moments_while_processes_come_and_go(
    day: tuple[str, str, int, list[tuple[float, float]]],
) -> None:
    instance_type, scenario, seed, moments = day
    host, follower, seconds = ScenarioHost(instance_type, scenario, seed=seed), _Follower(), 0.0
    with (
        temporary_directory() as directory,
        ExportedTree(f"{directory}/host", host.at(0.0)) as tree,
        _reading(tree) as read,
    ):
        follower.compare(host.at(0.0), read())
        for later, ended_ratio in moments:
            seconds += later
            running = host.at(seconds)
            pids = [process.pid for process in running.processes]
            simulated = _without(running, set(pids[: round(ended_ratio * len(pids))]))
            tree.update(simulated)
            follower.compare(simulated, read())


_COUNT = st.integers(0, MAX_COUNT)
_MEMORY = st.builds(DeviceMemory, *[st.integers(0, 2**40)] * 11)


@st.composite
def _hosts(draw: st.DrawFn) -> Snapshot:
    """A host of a small type with any values the tree can carry."""
    name = draw(st.sampled_from([name for name in _TYPES if name != "trn1.32xlarge"]))
    host = idle_host(name)
    cores = tuple(
        replace(
            core,
            memory=draw(_MEMORY),
            busy_seconds_total=draw(st.integers(0, 2**50)) / 1e6,
            flop_total=draw(st.integers(0, 2**64 - 1)),
            executions_total=draw(_COUNT),
        )
        for core in host.cores
    )
    serial_numbers = st.none() | st.integers(0, 2**64 - 1).map("{:016x}".format)
    ratio = st.integers(0, 10_000).map(lambda hundredths: hundredths / 10_000)
    devices = []
    for device in host.devices:
        low, mean, high = sorted(draw(st.tuples(ratio, ratio, ratio)))
        at = draw(st.integers(0, 2**40))
        devices.append(
            replace(
                device,
                serial_number=None if name.startswith("inf1") else draw(serial_numbers),
                ecc=EccCounters(*draw(st.tuples(*[_COUNT] * 5))),
                power=draw(st.none() | st.just(PowerUtilization(float(at), low, high, mean))),
                host_memory=HostMemory(*draw(st.tuples(*[_COUNT] * 8))),
            )
        )
    return replace(host, cores=cores, devices=tuple(_used_stacks(cores, device) for device in devices))


@pytest.mark.slow
@_SETTINGS
@given(before=_hosts(), after=_hosts())
def test_any_state_comes_back_also_after_another(before: Snapshot, after: Snapshot) -> None:
    if before.instance.instance_type != after.instance.instance_type:
        before = idle_host(after.instance.instance_type)
    with temporary_directory() as directory, ExportedTree(f"{directory}/host", before) as tree:
        tree.update(after)
        with _reading(tree) as read:
            _assert_same(after, read())


@pytest.mark.slow
@pytest.mark.parametrize("lnc", [1, 2])
def test_logical_cores_keep_their_place(lnc: int, place: Path) -> None:
    simulated = ScenarioHost("trn2.3xlarge", "steady", lnc=lnc).at(5)
    with ExportedTree(str(place), simulated) as tree, _reading(tree, lnc) as read:
        _assert_same(simulated, read())
        # Physical core 4 of device 0 is its first in the logical order.
        memory = Path(tree.roots.devices) / "neuron0/neuron_core4/stats/memory_usage/device_mem/total"
        assert int(memory.read_text()) == simulated.cores[0].memory.total_bytes


def test_outcomes_of_executions_come_back(place: Path) -> None:
    first = ScenarioHost("trn1.2xlarge", "steady").at(0)
    outcomes, errors = ExecutionCounters(40, 3, 2, 1, 5, 6), ErrorCounters(generic_total=4, model_total=7)

    def with_outcomes(executions: int, counters: ExecutionCounters, errors: ErrorCounters) -> Snapshot:
        cores = (replace(first.cores[0], executions_total=executions), *first.cores[1:])
        owner = replace(first.processes[0], executions=counters, errors=errors)
        return replace(first, cores=cores, processes=(owner, *first.processes[1:]))

    start = with_outcomes(0, ExecutionCounters(), ErrorCounters())
    with ExportedTree(str(place), start) as tree, _reading(tree) as read:
        read()
        tree.update(with_outcomes(57, outcomes, errors))
        reading = read()
    assert reading.processes[0].executions == outcomes
    assert reading.processes[0].errors == replace(errors, numerical_total=2)
    assert reading.cores[0].executions_total == 57


_FUZZ = settings(max_examples=examples(60))


def _file(content: bytes) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.write_bytes(content)

    return put


def _link(target: str) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.symlink_to(target)

    return put


def _full_directory(path: Path) -> None:
    path.mkdir()
    (path / "neuron0").mkdir()
    (path / "total").write_text("1\n")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, suppress(OSError):  # a path may be too long
        listener.bind(str(path))


_TEXTS = st.sampled_from(
    [b"", b"\n", b"0", b"-1\n", b"9" * 23, b"18446744073709551615\n", b"NDv3\n", b"Trn1\n", b"\xff\n"]
)
_THINGS: st.SearchStrategy[Callable[[Path], None]] = st.one_of(
    st.binary(max_size=80).map(_file),
    _TEXTS.map(_file),
    st.just(_file(b"7" * 100_000)),
    st.sampled_from([lambda _path: None, Path.mkdir, _full_directory, os.mkfifo, _socket]),
    st.sampled_from(["/dev/zero", "/proc/self/mem", ".", "..", "loop", "/nowhere", "/"]).map(_link),
)


def _read_in_all_ways(roots: Roots) -> None:
    """Reads in both ways, thrice, and shows what was read."""
    with suppress(UserError):
        snapshot = read_host_snapshot(roots)
        if snapshot is not None:
            to_message(snapshot)
            device_list_table(snapshot, topology=True, all_processes=True)
            device_list_json(snapshot)
    try:
        source = SysfsSource(roots)
    except UserError as error:
        assert "\n" not in str(error)
        return
    with closing(source):
        for _ in range(3):
            source.refresh()
            reading = source.read()
            for part in (*reading.devices, *reading.cores, *reading.processes, source.instance):
                to_message(part)
            assert all("\n" not in line and len(line) < 1000 for line in reading.warnings)
            assert len(reading.warnings) < 32


@_FUZZ
@given(st.data())
def test_a_tree_with_anything_in_place_of_anything(data: st.DataObject) -> None:
    with DriverTree(data.draw(st.sampled_from(["inf1.xlarge", "inf2.xlarge", "trn2.3xlarge"]))) as tree:
        tree.set_processes(process_on(7, "python", cores=(0,), runtime_version="2.34.10", tag="tag"))
        entries = sorted(
            Path(directory) / name
            for directory, directories, names in os.walk(tree.directory)
            for name in (*directories, *names)
        )
        # The directories near the top are as likely as the many files below.
        near = [path for path in entries if len(path.relative_to(tree.directory).parts) < 8]
        for _ in range(data.draw(st.integers(1, 6))):
            path = data.draw(st.sampled_from(near) | st.sampled_from(entries))
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                with suppress(OSError):
                    path.unlink()
            with suppress(OSError):  # what it was in may be gone
                data.draw(_THINGS)(path)
        _read_in_all_ways(tree.roots)


_NUMBERS = st.sampled_from(
    [b"-1\n", b"0\n", b"7", b"281474976710655\n", b"281474976710656\n", b"18446744073709551615\n"]
)
_BAD_OR_NOT: st.SearchStrategy[Callable[[Path], None]] = st.one_of(_NUMBERS.map(_file), _THINGS)


def _number(path: Path, highest: int = MAX_COUNT) -> int | None:
    """What a careful reader sees in a file."""
    text = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    digits = text.removesuffix(b"\n")
    return int(digits) if digits.isdigit() and len(digits) <= 20 and int(digits) <= highest else None


def _assert_right_or_unknown(tree: DriverTree, snapshot: Snapshot) -> None:
    device = tree.device_path(0)
    evidence: list[int | None] = []
    for name, field in ECC_COUNTERS.items() if (device / "stats/hardware").exists() else ():
        path = device / "stats/hardware" / name
        if snapshot.instance.instance_type.startswith("trn2") or "uncorrected" in name:
            evidence.append(_number(path))
            assert getattr(snapshot.devices[0].ecc, field) == evidence[-1], path
    for core in snapshot.cores:
        path = tree.core_path(core.index) / "stats"
        assert core.status is not None
        for name in STATUS_COUNTERS:
            evidence.append(_number(path / "status" / name / "total"))
            assert getattr(core.status, f"{name}_total") == evidence[-1], (path, name)
        evidence.append(_number(path / "other_info/reset_fail_count/total"))
        assert core.reset_failures_total == evidence[-1]
        assert core.flop_total == _number(path / "other_info/flop_count/total", 2**64 - 1)
        sizes = [_number(path / f"memory_usage/device_mem/{name}/total") for name in DEVICE_MEMORY_CATEGORIES]
        assert [getattr(core.memory, f"{name}_bytes") for name in DEVICE_MEMORY_CATEGORIES] == sizes
        stack = snapshot.devices[0].hbm_stacks[core.hbm_stack_index]
        assert None not in sizes or stack.used_bytes is None
    components = device / "stats/hardware/health_status/unhealthy_components"
    if snapshot.instance.instance_type.startswith("trn2"):
        is_quiet = components.is_file() and not components.is_symlink() and components.read_bytes() in (b"\n", b"\n\n")
        evidence.append(0 if is_quiet else None)
    (verdict,) = health.verdicts(snapshot)
    if None in evidence:
        assert not verdict.is_healthy
        assert verdict.is_healthy is False or "neuron0/" in (verdict.unknown_reason or "")
    elif not any(evidence) and not verdict.findings:
        assert verdict.is_healthy


@pytest.mark.slow
@_FUZZ
@given(st.data())
def test_after_any_change_of_counter_files_the_next_snapshot_is_right_or_unknown(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["inf2.xlarge", "trn1.2xlarge", "trn2.3xlarge"]))
    with DriverTree(kind) as tree:
        tree.set_processes(process_on(7, "python", cores=(0, 1), runtime_version="2.34.10", tag="tag"))
        tree.set_cores(
            lambda core: replace(core, executions_total=5, flop_total=7, memory=DeviceMemory(constants_bytes=9))
        )
        files = sorted(path for path in tree.device_path(0).rglob("*") if path.is_file() and "stats" in path.parts)
        told = [path for path in files if path.name not in ("present", "peak")]
        changes = data.draw(
            st.lists(st.tuples(st.sampled_from(told) | st.sampled_from(files), _BAD_OR_NOT), max_size=6)
        )

        def change() -> None:
            for path, put in changes:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                path.unlink(missing_ok=True)
                put(path)
            if data.draw(st.integers(0, 9)) == 0:
                shutil.rmtree(
                    tree.device_path(0) / data.draw(st.sampled_from(["stats/hardware", "neuron_core0/stats"]))
                )

        is_bad_from_the_start = data.draw(st.booleans())
        if is_bad_from_the_start:
            change()
        rules = RuleEvaluator()
        with closing(SysfsSource(tree.roots, time_in_use_unit="us")) as source:  # also if Hypothesis ends the example
            sampler = Sampler(source, CoreAllocator(simulated_shape(catalog.load(kind))), None, 1.0, tree.roots)
            for tick in range(2):
                if tick and not is_bad_from_the_start:
                    change()
                source.refresh()
                snapshot = rules.evaluate(sampler.sample(), unknown=sampler.unknown_health)
                to_message(snapshot)
                _assert_right_or_unknown(tree, snapshot)
