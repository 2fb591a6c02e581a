"""An injected fault reaches a real training process, and shows wherever a real one would."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from neurontools.driver.kernel_log import parse_hardware_error, parse_kernel_record
from neurontools.faults.kinds import KINDS, LINK_BYTES_PER_SECOND, FaultDuration, FaultEffect
from neurontools.faults.requests import FaultRequest
from neurontools.model import FaultState, InjectedFault
from neurontools.profile import read_directory
from neurontools.rpc import fault_calls
from tests.harness import python_process
from tests.harness.paths import PYTHONPATH
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

pytest.importorskip("torch")

TRAINS = """
import sys, torch, torch_xla.core.xla_model as xm
device = xm.xla_device()
weight = torch.ones(4, 4, device=device, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.001)
while True:
    optimizer.zero_grad()
    loss = (weight @ weight).sum()
    loss.backward()
    optimizer.step()
    xm.mark_step()
    print(loss.item(), flush=True)
    sys.stdin.readline()
"""
CATCHES = """
import sys, torch, torch_xla.core.xla_model as xm
device = xm.xla_device()
while True:
    try:
        print(torch.ones(2, device=device).sum().item(), flush=True)
    except RuntimeError as error:
        print(error, flush=True)
    sys.stdin.readline()
"""
# Each of RANKS processes prints the seconds of a collective.
COLLECTS = """
import os, sys, time, torch, torch.distributed as dist, torch_xla.core.xla_model as xm
device = xm.xla_device()
rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("RANKS", "1"))
dist.init_process_group("xla", store=dist.FileStore("store", ranks), rank=rank, world_size=ranks)
value = torch.ones(2**18, device=device)
while True:
    dist.all_reduce(value)
    began = time.monotonic()
    xm.mark_step()
    print(time.monotonic() - began, flush=True)
    sys.stdin.readline()
"""
FLIPS = """
import sys, torch, torch_xla.core.xla_model as xm
device = xm.xla_device()
while True:
    print(torch.ones(64, device=device).mul(2).cpu().double().sum().item(), flush=True)
    sys.stdin.readline()
"""


class Training:
    """A script that takes a step whenever it is asked to, and prints a result at each; it has taken the first."""

    def __init__(
        self, daemon: RunningDaemon, directory: Path, script: str = TRAINS, core: int = 0, **environment: str
    ) -> None:
        (directory / "train.py").write_text(script)
        self._errors = directory / f"errors{core}"
        with self._errors.open("w") as errors:
            self.process = python_process.popen(
                [sys.executable, "-m", "neurontools.runtime", str(directory / "train.py")],
                loaded=python_process.TORCH,
                cwd=directory,
                env={
                    **os.environ,
                    "PYTHONPATH": PYTHONPATH,
                    "NEURONTOOLS_SOCKET": daemon.socket,
                    "NEURON_RT_VISIBLE_CORES": str(core),
                    "NEURON_COMPILE_CACHE_URL": str(directory / "cache"),
                    **environment,
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def read(self) -> str:
        """Waits for the next result."""
        self.result = self._read()
        return self.result

    def _read(self) -> str:
        assert self.process.stdout is not None
        return str(self.process.stdout.readline().strip())

    def begin_step(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("\n")
            self.process.stdin.flush()

    def step(self) -> str:
        """Takes a step; "" when the script has failed."""
        self.begin_step()
        return self.read()

    def errors(self) -> str:
        """What was written to standard error."""
        return self._errors.read_text()

    def failure(self) -> str:
        """What it wrote to standard error; it has failed."""
        assert self.process.wait() == 1
        return self.errors()


class Train(Protocol):
    def __call__(self, script: str = TRAINS, core: int = 0, **environment: str) -> Training: ...


@pytest.fixture
def train(daemon: RunningDaemon, tmp_path: Path) -> Iterator[Train]:
    started: list[Training] = []

    def start(script: str = TRAINS, core: int = 0, **environment: str) -> Training:
        started.append(Training(daemon, tmp_path, script, core, **environment))
        if "RANK" not in environment:  # a rank waits for the others
            started[-1].read()
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Where the daemon shows what the driver would, for tests that ask for it."""
    return tmp_path / "host"


@pytest.fixture
def daemon(start_daemon: StartDaemon, tmp_path: Path, request: pytest.FixtureRequest) -> RunningDaemon:
    usual = ("--interval", "0.05")
    exports = ("--interval", "0.2", "--export-sysfs", str(tmp_path / "host"))
    return start_daemon("--simulate", "trn1.32xlarge", *(exports if "tree" in request.fixturenames else usual))


def inject(daemon: RunningDaemon, kind: str, **options: float) -> InjectedFault:
    (fault,) = fault_calls.inject(daemon.socket, [FaultRequest(kind, **options)])  # type: ignore[arg-type]
    return fault


def kernel_log(tree: Path) -> list[str]:
    lines = (tree / "dev/kmsg").read_bytes().splitlines(keepends=True)
    return [record.text for line in lines if (record := parse_kernel_record(line)) is not None]


def findings(daemon: RunningDaemon) -> set[tuple[str, bool]]:
    """Kinds, and whether they are of an injected fault."""
    return {(finding.kind, finding.injected) for finding in daemon.findings()}


def test_an_error_in_hbm_is_met_by_the_next_execution_and_shows_everywhere(
    daemon: RunningDaemon, train: Train, tree: Path
) -> None:
    devices = tree / "sys/devices/virtual/neuron_device"

    def count(path: str) -> int:
        return int((devices / path).read_text())

    training = train(core=3)
    assert training.step()
    fault = inject(daemon, "hbm-uncorrectable", device_index=1)
    wait_until(lambda: count("neuron1/stats/hardware/mem_ecc_uncorrected") == 1)
    assert kernel_log(tree) == [], "nobody has met it yet"
    command = [sys.executable, "-m", "neurontools.cli.monitor.command", "--once", "--socket", daemon.socket]
    record = json.loads(python_process.run(command, loaded=python_process.MONITORS).stdout)
    counters = record["system_data"]["neuron_hw_counters"]["neuron_devices"]
    assert [each["mem_ecc_uncorrected"] for each in counters] == [0, 1, *[0] * 14]
    assert not training.step()
    errors = training.failure()
    assert re.search(
        r"^\d{4}-[A-Z][a-z]{2}-\d\d \d\d:\d\d:\d\d\.\d{6} +(\d+):\1 +ERROR  TDRV:exec_request_process_errors +"
        r"\(FATAL-RT-UNDEFINED-STATE\) Uncorrectable HBM memory error is detected\.",
        errors,
        re.MULTILINE,
    )
    assert "Inference completed with err: 1201" in errors
    assert "Failure: NRT_EXEC_HW_ERR_HBM_UE in nrt_execute()" in errors
    assert errors.rstrip().endswith(f"[injected fault {fault.number}]")
    assert "NRT_EXEC_HW_ERR_HBM_UE(1201): (FATAL-RT-UNDEFINED-STATE)" in errors
    wait_until(lambda: count("neuron1/neuron_core1/stats/status/hw_hbm_ue_error/total") == 1)
    (line,) = wait_until(lambda: kernel_log(tree))
    error = parse_hardware_error(line)
    assert error is not None
    assert (error.name, error.device_index, error.core_index) == ("HBM_UNCORRECTABLE_ERROR", 1, 1)
    assert error.serial_number == daemon.snapshot().devices[1].serial_number
    wait_until(lambda: {("ecc_uncorrected", True), ("core_errors", True)} <= findings(daemon))
    (ended,) = wait_until(lambda: daemon.snapshot().ended)
    assert ended.errors is not None
    assert ended.errors.hardware_total == 1


def test_each_failure_has_its_status_its_text_and_its_counter(daemon: RunningDaemon, train: Train) -> None:
    kinds = [kind for kind in KINDS.values() if kind.effect is FaultEffect.FAILS]
    assert len(kinds) == 10
    training = train(CATCHES)
    for kind in sorted(kinds, key=lambda kind: kind.lasts is FaultDuration.PROCESS):
        logged = len(training.errors())
        counter = f"{kind.counter}_total"
        before = getattr(daemon.next_snapshot().cores[0].status, counter, 0) or 0
        fault = inject(daemon, kind.name, device_index=0)
        text = f"NRT_{kind.status.name}({int(kind.status)}): "
        assert training.step().startswith(text)
        assert training.result.endswith(f"[injected fault {fault.number}]")
        assert f"Inference completed with err: {int(kind.status)}" in training.errors()[logged:]
        wait_until(lambda: fault_calls.list_faults(daemon.socket)[0].met_total == 1)
        if kind.counter is not None:
            assert getattr(daemon.next_snapshot().cores[0].status, counter) == before + 1
        assert (
            training.step() == "2.0" if kind.lasts is FaultDuration.ONE_EXECUTION else training.step().startswith(text)
        )
        wait_until(lambda: any((found, True) in findings(daemon) for found in kind.findings))  # noqa: B023
        fault_calls.heal(daemon.socket)
        wait_until(lambda: not fault_calls.list_faults(daemon.socket))
        if kind.lasts is not FaultDuration.PROCESS:
            wait_until(lambda: not findings(daemon))  # while the process lives
        if kind.lasts is FaultDuration.PROCESS:
            assert training.step().startswith(text), "only a new process gets it back"
            training.process.kill()
            training.process.wait()
            training = train(CATCHES)
        wait_until(lambda: training.step() == "2.0")  # noqa: B023  (called at once; it hears of the repair by itself)


@pytest.mark.slow
def test_training_goes_on_through_what_only_slows_it_or_hides_it(
    daemon: RunningDaemon, train: Train, tmp_path: Path
) -> None:
    training = train(NEURON_RT_INSPECT_ENABLE="1", NEURON_RT_INSPECT_OUTPUT_DIR=str(tmp_path / "profile"))
    pid = training.process.pid

    def hang_was_met() -> bool:
        """On a busy machine it may be over before the training comes to it."""
        before = float(training.result)
        hang = inject(daemon, "hang-compute", device_index=0, for_seconds=0.2)
        assert float(training.step()) < before
        (fault,) = [fault for fault in fault_calls.list_faults(daemon.socket) if fault.number == hang.number]
        return (fault.state, fault.met_total) == (FaultState.OVER, 1)

    wait_until(hang_was_met)
    fault_calls.heal(daemon.socket)
    inject(daemon, "link-down", device_index=0)
    assert training.step()
    assert fault_calls.list_faults(daemon.socket)[0].met_total == 0, "it has no collective"
    fault_calls.heal(daemon.socket)
    inject(daemon, "slow-core", neuroncore_index=0, amount=1000)
    before = daemon.next_snapshot().cores[0].busy_seconds_total or 0.0
    assert training.step()
    wait_until(lambda: (daemon.snapshot().cores[0].busy_seconds_total or 0.0) > before + 0.01)

    def profile_has_all_executions() -> bool:
        found, (profile,) = daemon.find(pid), read_directory(tmp_path / "profile")
        assert found is not None
        counted = [each.executions_total for each in found.models]
        return sum(each.executions for each in profile.graph_totals) == sum(each or 0 for each in counted)

    wait_until(profile_has_all_executions)
    fault_calls.heal(daemon.socket)

    def is_reporting() -> bool:
        found = daemon.find(pid)
        return found is not None and found.reporting

    wait_until(is_reporting)
    inject(daemon, "reports-lost", pid=pid)
    wait_until(lambda: not is_reporting())
    assert training.step()
    fault_calls.heal(daemon.socket)
    wait_until(is_reporting)


def test_nan_is_in_the_results_and_is_raised_where_the_script_asks_for_it(daemon: RunningDaemon, train: Train) -> None:
    training = train()
    inject(daemon, "numerical", neuroncore_index=0)
    assert "nan" in (training.step(), training.step())

    def is_counted() -> bool:
        process = daemon.find(training.process.pid)
        return process is not None and process.errors is not None and process.errors.numerical_total > 0

    wait_until(is_counted)
    wait_until(lambda: ("numerical_errors", True) in findings(daemon))
    fault_calls.heal(daemon.socket)
    wait_until(lambda: not findings(daemon))
    asked = train(core=1, NEURON_FAIL_ON_NAN="1")
    inject(daemon, "numerical", neuroncore_index=1)
    assert not asked.step()
    assert "NRT_EXEC_COMPLETED_WITH_NUM_ERR(1003)" in asked.failure()


@pytest.mark.slow
def test_collectives_are_late_until_they_are_healed(daemon: RunningDaemon, train: Train) -> None:
    training = train(COLLECTS)
    fault = inject(daemon, "collective-latency", device_index=0, amount=200)
    assert float(training.step()) >= 0.2
    assert float(training.step()) >= 0.2
    fault_calls.heal(daemon.socket, [fault.number])
    assert training.step()
    assert not fault_calls.list_faults(daemon.socket)


def test_a_link_is_slow_only_between_its_devices(daemon: RunningDaemon, train: Train) -> None:
    ranks = [train(COLLECTS, core=2 * rank, RANK=str(rank), RANKS="2") for rank in range(2)]

    def seconds() -> float:
        for rank in ranks:
            rank.begin_step()
        return min(float(rank.read()) for rank in ranks)

    assert all(rank.read() for rank in ranks)
    inject(daemon, "slow-link", device_index=0, peer_device_index=4, amount=1000)
    seconds()
    inject(daemon, "slow-link", device_index=1, peer_device_index=0, amount=1000)
    usual_seconds = 4 * 2**18 / LINK_BYTES_PER_SECOND
    assert seconds() >= 999 * usual_seconds > 0.5
    faults = {fault.device_indices: fault for fault in fault_calls.list_faults(daemon.socket)}
    assert {devices: bool(fault.met_total) for devices, fault in faults.items()} == {(0, 4): False, (0, 1): True}
    assert daemon.snapshot().injected_faults[1].device_indices == (0, 1)


def test_bits_flip_silently_and_the_same_ones_for_the_same_seed(daemon: RunningDaemon, train: Train) -> None:
    training = train(FLIPS)
    flipped = []
    for _ in range(2):
        inject(daemon, "bit-flip", neuroncore_index=0, amount=64, seed=7)
        flipped.append(training.step())
        assert training.step() == "128.0"
    assert flipped[0] == flipped[1] != "128.0"
    assert [fault.state for fault in fault_calls.list_faults(daemon.socket)] == [FaultState.OVER] * 2
    daemon.next_snapshot()
    assert not [kind for kind, injected in findings(daemon) if injected]


def test_a_device_that_is_lost_is_missing_everywhere_and_comes_back(daemon: RunningDaemon, tree: Path) -> None:
    links = tree / "sys/devices/virtual/neuron_device/neuron0/connected_devices"
    before = links.read_text()
    fault = inject(daemon, "device-lost", device_index=7)
    snapshot = wait_until(lambda: s if len((s := daemon.snapshot()).devices) == 15 else None)
    assert {core.device_index for core in snapshot.cores} == set(range(16)) - {7}
    assert not any(device.connected_to for device in snapshot.devices)
    wait_until(lambda: ("device_missing", True) in findings(daemon))
    wait_until(lambda: links.read_text().strip() == "" and not (tree / "dev/neuron7").exists())
    fault_calls.heal(daemon.socket, [fault.number])
    wait_until(lambda: links.read_text() == before and (tree / "dev/neuron7").exists())
    wait_until(lambda: ("device_missing", True) not in findings(daemon))
