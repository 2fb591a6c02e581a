"""An injected fault reaches a real training process, and shows wherever a real one would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neurontools.faults.kind import Effect
from neurontools.faults.kinds import KINDS
from neurontools.faults.request import FaultRequest
from neurontools.kernel_log.hardware_error import hardware_error
from neurontools.kernel_log.record import parsed
from neurontools.model import FaultState
from neurontools.rpc import faults
from tests.harness import python_process
from tests.harness.paths import PYTHONPATH
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

TRAINS = """
import math, os, sys, torch, torch_xla.core.xla_model as xm
device = xm.xla_device()
weight = torch.ones(4, 4, device=device, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.001)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    loss = (weight @ weight).sum()
    loss.backward()
    optimizer.step()
    xm.mark_step()
    print(step, loss.item(), flush=True)
    sys.stdin.readline()
"""


class Training:
    """A script that takes a step whenever it is asked to."""

    def __init__(self, daemon: RunningDaemon, directory: Path, core: int = 0, **environment: str) -> None:
        self.process = python_process.popen(
            [sys.executable, "-m", "neurontools.runtime", self._script(directory), "1000"],
            loaded=python_process.TORCH,
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
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.losses: list[float] = []
        self._in, self._out = self.process.stdin, self.process.stdout
        self._read()

    @staticmethod
    def _script(directory: Path) -> str:
        (directory / "train.py").write_text(TRAINS)
        return str(directory / "train.py")

    def _read(self) -> bool:
        line = self._out.readline()
        if line:
            self.losses.append(float(line.split()[1]))
        return bool(line)

    def step(self) -> bool:
        """Takes a step; False when the script has failed."""
        try:
            self._in.write("\n")
            self._in.flush()
        except BrokenPipeError:
            return False
        return self._read()

    def end(self) -> tuple[int, str]:
        """The exit code and what was written to standard error."""
        _, errors = self.process.communicate()
        return self.process.returncode, errors


@pytest.fixture
def trainings() -> Iterator[list[Training]]:
    started: list[Training] = []
    yield started
    for each in started:
        each.process.kill()
        each.process.communicate()


@pytest.fixture
def train(trainings: list[Training], tmp_path: Path) -> Any:
    def start(daemon: RunningDaemon, core: int = 0, **environment: str) -> Training:
        trainings.append(Training(daemon, tmp_path, core, **environment))
        return trainings[-1]

    return start


def kernel_log(tree: Path) -> list[str]:
    lines = (tree / "dev/kmsg").read_bytes().splitlines(keepends=True)
    return [record.text for line in lines if (record := parsed(line)) is not None]


def read_count(tree: Path, path: str) -> int:
    return int((tree / "sys/devices/virtual/neuron_device" / path).read_text())


def test_an_error_in_hbm_is_met_by_the_next_execution_and_shows_everywhere(
    start_daemon: StartDaemon, train: Any, tmp_path: Path
) -> None:
    tree = tmp_path / "host"
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--interval", "0.05", "--export-sysfs", str(tree))
    training = train(daemon, core=3)
    assert training.step()
    (fault,) = faults.inject(daemon.socket, [FaultRequest("hbm-uncorrectable", device_index=1)])
    counters = "neuron1/stats/hardware/mem_ecc_uncorrected"
    wait_until(lambda: read_count(tree, counters) == 1)
    assert kernel_log(tree) == [], "nobody has met it yet"
    assert not training.step()
    exit_code, errors = training.end()
    assert exit_code == 1
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
    wait_until(lambda: read_count(tree, "neuron1/neuron_core1/stats/status/hw_hbm_ue_error/total") == 1)
    (line,) = kernel_log(tree)
    error = hardware_error(line)
    assert error is not None
    assert (error.name, error.device_index, error.core_index) == ("HBM_UNCORRECTABLE_ERROR", 1, 1)
    assert error.serial_number == daemon.snapshot().devices[1].serial_number

    def findings() -> set[tuple[str, bool]]:
        health = daemon.snapshot().health
        assert health is not None
        return {(finding.kind, finding.injected) for finding in health.findings}

    wait_until(lambda: {("ecc_uncorrected", True), ("core_errors", True)} <= findings())
    (ended,) = wait_until(lambda: daemon.snapshot().ended)
    assert ended.errors is not None
    assert ended.errors.hardware_total == 1


def test_an_aborted_transfer_outlives_the_process_until_it_is_healed(daemon: RunningDaemon, train: Any) -> None:
    training = train(daemon)
    faults.inject(daemon.socket, [FaultRequest("dma-abort", neuroncore_index=0, after_executions=2)])
    for _ in range(4):
        if not training.step():
            break
    assert "NRT_EXEC_HW_ERR_DMA_ABORT(1203)" in training.end()[1]
    second = faults.listed(daemon.socket)[0]
    assert (second.state, second.met_total) == (FaultState.HOLDS, 1)
    with pytest.raises(AssertionError, match="did not start"):
        _start_or_fail(train, daemon)
    assert faults.heal(daemon.socket) == 1
    assert train(daemon).step()


def _start_or_fail(train: Any, daemon: RunningDaemon) -> None:
    training = train(daemon)
    assert training.losses, f"did not start: {training.end()[1]}"


def test_a_script_that_catches_the_error_meets_it_again(daemon: RunningDaemon, tmp_path: Path) -> None:
    script = tmp_path / "catches.py"
    script.write_text(
        """
import sys, torch, torch_xla.core.xla_model as xm
device = xm.xla_device()
print(flush=True)
sys.stdin.readline()
for _ in range(2):
    try:
        print(torch.ones(2, device=device).sum().item())
    except RuntimeError as error:
        print(error.status.name)
"""
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "neurontools.runtime", str(script)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "NEURONTOOLS_SOCKET": daemon.socket, "NEURON_RT_NUM_CORES": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    faults.inject(daemon.socket, [FaultRequest("execution-unit-lost", device_index=0)])
    output, _ = process.communicate("\n")
    assert output.split() == ["EXEC_UNIT_UNRECOVERABLE"] * 2


def test_a_hang_lasts_until_the_time_out_and_fails_then(daemon: RunningDaemon, train: Any) -> None:
    training = train(daemon, NEURON_RT_EXEC_TIMEOUT="5")
    faults.inject(daemon.socket, [FaultRequest("hang-compute", pid=training.process.pid)])
    assert not training.step()
    errors = training.end()[1]
    assert "NRT_TIMEOUT(5): (FATAL-RT-UNDEFINED-STATE) execution timeout (5000 ms) on Neuron Device 0 NC 0" in errors
    (fault,) = wait_until(lambda: [f for f in faults.listed(daemon.socket) if f.state is FaultState.OVER])
    assert fault.met_total == 1


def test_a_hang_that_ends_lets_training_go_on(daemon: RunningDaemon, train: Any) -> None:
    training = train(daemon)

    def was_met() -> bool:
        """On a busy machine it may be over before the training comes to it."""
        before = training.losses[-1]
        (hang,) = faults.inject(daemon.socket, [FaultRequest("hang-compute", device_index=0, for_seconds=0.2)])
        assert training.step()
        assert training.losses[-1] < before
        (fault,) = [fault for fault in faults.listed(daemon.socket) if fault.number == hang.number]
        return (fault.state, fault.met_total) == (FaultState.OVER, 1)

    wait_until(was_met)
    assert training.step()


def test_nan_is_in_the_results_and_is_raised_where_the_script_asks_for_it(daemon: RunningDaemon, train: Any) -> None:
    training = train(daemon)
    faults.inject(daemon.socket, [FaultRequest("numerical", neuroncore_index=0)])
    assert training.step()
    assert any(loss != loss for loss in (training.losses[-1], training.step() and training.losses[-1]))
    wait_until(lambda: _numerical(daemon, training.process.pid))
    asked = train(daemon, core=1, NEURON_FAIL_ON_NAN="1")
    faults.inject(daemon.socket, [FaultRequest("numerical", neuroncore_index=1)])
    assert not asked.step()
    assert "NRT_EXEC_COMPLETED_WITH_NUM_ERR(1003)" in asked.end()[1]


def _numerical(daemon: RunningDaemon, pid: int) -> bool:
    process = daemon.find(pid)
    return process is not None and process.errors is not None and process.errors.numerical_total > 0


COLLECTS = """
import sys, time, torch, torch.distributed as dist, torch_xla.core.xla_model as xm
device = xm.xla_device()
dist.init_process_group("xla", store=dist.HashStore(), rank=0, world_size=1)
value = torch.ones(4, device=device)
for step in range(1000):
    dist.all_reduce(value)
    began = time.monotonic()
    xm.mark_step()
    print(step, time.monotonic() - began, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def collect(train: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """As `train`, with steps that are a collective each; their losses are the seconds that they took."""
    monkeypatch.setattr(f"{__name__}.TRAINS", COLLECTS)
    return train


def test_a_collective_that_hangs_fails_when_its_time_is_over(daemon: RunningDaemon, collect: Any) -> None:
    training = collect(daemon, NEURON_RT_EXEC_TIMEOUT="5")
    faults.inject(daemon.socket, [FaultRequest("hang-collective", neuroncore_index=0)])
    assert not training.step()
    errors = training.end()[1]
    assert "NRT_EXEC_HW_ERR_COLLECTIVES(1200): (FATAL-RT-UNDEFINED-STATE) missing collectives status" in errors
    assert "suspected hang in collectives operation 0 out of 1" in errors
    wait_until(lambda: faults.listed(daemon.socket)[0].state is FaultState.OVER)
    status = daemon.next_snapshot().cores[0].status
    assert status is not None
    assert status.hw_collectives_error_total == 1


def test_collectives_are_late_until_they_are_healed(daemon: RunningDaemon, collect: Any) -> None:
    training = collect(daemon)
    (fault,) = faults.inject(daemon.socket, [FaultRequest("collective-latency", device_index=0, amount=300)])
    assert training.step()
    assert training.step()
    assert min(training.losses[1:]) >= 0.3
    faults.heal(daemon.socket, [fault.number])
    assert training.step()
    assert not faults.listed(daemon.socket)


def test_what_has_no_collective_does_not_meet_a_link_that_is_down(daemon: RunningDaemon, train: Any) -> None:
    training = train(daemon)
    faults.inject(daemon.socket, [FaultRequest("link-down", device_index=0)])
    assert training.step()
    assert faults.listed(daemon.socket)[0].met_total == 0


def test_a_slow_core_is_busy_for_longer(daemon: RunningDaemon, train: Any) -> None:
    training = train(daemon)
    faults.inject(daemon.socket, [FaultRequest("slow-core", neuroncore_index=0, amount=1000)])
    before = daemon.next_snapshot().cores[0].busy_seconds_total or 0.0
    assert training.step()
    wait_until(lambda: (daemon.snapshot().cores[0].busy_seconds_total or 0.0) > before + 0.01)


FLIPS = """
import sys, torch, torch_xla.core.xla_model as xm
device = xm.xla_device()
for step in range(1000):
    print(step, torch.ones(64, device=device).mul(2).cpu().double().sum().item(), flush=True)
    sys.stdin.readline()
"""


def test_bits_flip_silently_and_the_same_ones_for_the_same_seed(
    daemon: RunningDaemon, train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.TRAINS", FLIPS)
    results = []
    for core in (0, 1):
        training = train(daemon, core=core)
        faults.inject(daemon.socket, [FaultRequest("bit-flip", neuroncore_index=core, amount=64, seed=7)])
        assert training.step()
        assert training.step()
        assert training.losses[0] == training.losses[2] == 128.0
        results.append(training.losses[1])
    assert repr(results[0]) == repr(results[1]) != "128.0"
    assert [fault.state for fault in faults.listed(daemon.socket)] == [FaultState.OVER] * 2
    health = daemon.next_snapshot().health
    assert health is not None
    assert not [finding for finding in health.findings if finding.injected]


def test_a_device_that_is_lost_is_missing_everywhere_and_comes_back(start_daemon: StartDaemon, tmp_path: Path) -> None:
    tree = tmp_path / "host"
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--interval", "0.05", "--export-sysfs", str(tree))
    links = tree / "sys/devices/virtual/neuron_device/neuron0/connected_devices"
    before = links.read_text()
    (fault,) = faults.inject(daemon.socket, [FaultRequest("device-lost", device_index=7)])
    snapshot = wait_until(lambda: s if len((s := daemon.snapshot()).devices) == 15 else None)
    assert {core.device_index for core in snapshot.cores} == set(range(16)) - {7}
    assert not any(device.connected_to for device in snapshot.devices)

    def missing() -> list[bool]:
        health = daemon.snapshot().health
        assert health is not None
        return [finding.injected for finding in health.findings if finding.kind == "device_missing"]

    assert wait_until(missing) == [True]
    wait_until(lambda: links.read_text().strip() == "")
    assert not (tree / "dev/neuron7").exists()
    faults.heal(daemon.socket, [fault.number])
    wait_until(lambda: links.read_text() == before and (tree / "dev/neuron7").exists())
    wait_until(lambda: not missing())


def test_lost_reports_make_a_process_silent_and_it_goes_on(daemon: RunningDaemon, train: Any) -> None:
    training = train(daemon)
    pid = training.process.pid
    wait_until(lambda: (found := daemon.find(pid)) is not None and found.reporting)
    faults.inject(daemon.socket, [FaultRequest("reports-lost", pid=pid)])
    wait_until(lambda: (found := daemon.find(pid)) is not None and not found.reporting)
    assert training.step()
    faults.heal(daemon.socket)
    wait_until(lambda: (found := daemon.find(pid)) is not None and found.reporting)


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.effect is Effect.FAILS], ids=lambda k: k.name)
def test_each_failure_has_its_status_and_its_text(daemon: RunningDaemon, train: Any, kind: Any) -> None:
    training = train(daemon)
    faults.inject(daemon.socket, [FaultRequest(kind.name, device_index=0)])
    assert not training.step()
    exit_code, errors = training.end()
    assert exit_code == 1
    assert f"NRT_{kind.status.name}({int(kind.status)}): " in errors.splitlines()[-1]
    assert f"Inference completed with err: {int(kind.status)}" in errors
    wait_until(lambda: faults.listed(daemon.socket)[0].met_total == 1)
    if kind.counter is not None:
        status = daemon.next_snapshot().cores[0].status
        assert status is not None
        assert getattr(status, f"{kind.counter}_total") == 1


def test_a_record_of_neuron_monitor_has_the_error(daemon: RunningDaemon, train: Any) -> None:
    training = train(daemon)
    faults.inject(daemon.socket, [FaultRequest("sram-uncorrectable", device_index=0)])
    command = [sys.executable, "-m", "neurontools.cli.monitor.command", "--once", "--socket", daemon.socket]
    record = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    (first, *_) = record["system_data"]["neuron_hw_counters"]["neuron_devices"]
    assert first["sram_ecc_uncorrected"] == 1
    assert not training.step()
