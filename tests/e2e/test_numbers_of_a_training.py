"""A training that counts and times its own steps: every number that a tool shows equals the script's.

The script is written as those of the SDK's tutorials are. Counts and bytes have to be equal. Times are those of the
same executions, taken on two sides of the same call.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neurontools.model import Process
from neurontools.util.version import __version__
from tests.harness import neuron_run, python_process
from tests.harness.paths import NEURON_LS
from tests.harness.record_stream import RecordStream
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

pytest.importorskip("torch")

STEPS = 150
COMPILING_STEPS = 3  # at the most: after those the graph is the same at each step
BATCH, FEATURES, HIDDEN, CLASSES = 64, 512, 1024, 10
# 2 operations a multiply-add; forward once, backward for weights and inputs, but the first layer's input needs none.
FLOP_PER_STEP = 2 * BATCH * (2 * FEATURES * HIDDEN + 3 * HIDDEN * CLASSES)
PARAMETER_BYTES = 4 * (FEATURES * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES)
SCRIPT = f"""
import json, os, time
from pathlib import Path
import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl

def wait_for(name):
    while not Path(name).exists(): time.sleep(0.02)

def save(name, document):
    Path(name + ".new").write_text(json.dumps(document))
    os.rename(name + ".new", name)

def bytes_of(tensors): return sum(t.numel() * t.element_size() for t in tensors if t.device.type == "xla")

torch.manual_seed(0)
device = xm.xla_device()
first, last = torch.nn.Linear({FEATURES}, {HIDDEN}), torch.nn.Linear({HIDDEN}, {CLASSES})
model = torch.nn.Sequential(first, torch.nn.ReLU(), last).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
parameters = list(model.parameters())
xm.mark_step()
save("ready", {{"pid": os.getpid(), "to_device": bytes_of(parameters)}})
wait_for("go")

batches = [(torch.randn({BATCH}, {FEATURES}), torch.randint(0, {CLASSES}, ({BATCH},))) for _ in range({STEPS})]
loaded, seconds, cpu_seconds, steps_began, steps_ended = 0, [], [], [], []
for inputs, targets in pl.MpDeviceLoader(batches, device):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    steps_began.append(time.monotonic())
    optimizer.step()
    steps_ended.append(time.monotonic())
    before, cpu_before = time.monotonic(), time.thread_time()
    xm.mark_step()
    cpu_seconds.append(time.thread_time() - cpu_before)
    seconds.append(time.monotonic() - before)
    loaded += bytes_of([inputs, targets])
state = [value for entry in optimizer.state.values() for value in entry.values() if torch.is_tensor(value)]
alive = [p.grad for p in parameters] + state + [inputs, targets, loss]
save("trained", {{
    "seconds": seconds, "cpu_seconds": cpu_seconds, "loaded": loaded,
    "training": [steps_began[-1] - steps_ended[0], steps_ended[-1] - steps_began[0]],
    "constants": bytes_of(parameters), "tensors": bytes_of(alive),
    "used": xm.get_memory_info(device)["bytes_used"], "random": torch.get_rng_state().numel(),
}})
wait_for("fail")
bad = torch.zeros(1).to(device) / 0  # not a number
xm.mark_step()
first, last = loss.item(), bad.item()
save("failed", {{"loss": first, "is_nan": last != last}})
wait_for("stop")
"""


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.1")


@pytest.fixture
def environment(tmp_path: Path, daemon: RunningDaemon) -> dict[str, str]:
    return neuron_run.environment(tmp_path, daemon.socket, NEURON_PROCESS_TAG="counted")


@pytest.fixture
def training(tmp_path: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "train.py").write_text(SCRIPT)
    process = python_process.popen(
        [*neuron_run.COMMAND, "--cores", "1", "--summary-json", "summary.json", "train.py", "--epochs", "3"],
        loaded=python_process.TORCH,
        cwd=tmp_path,
        env=environment,
        **python_process.PIPES,
    )
    yield process
    if process.poll() is None:
        process.terminate()
    process.communicate(timeout=HANG_SECONDS)


def neuron_ls(environment: dict[str, str]) -> list[dict[str, Any]]:
    done = subprocess.run([sys.executable, NEURON_LS, "-j"], capture_output=True, env=environment, check=True)
    document: list[dict[str, Any]] = json.loads(done.stdout)
    return document


@pytest.mark.slow
def test_every_number_that_is_shown_is_the_scripts_own(
    training: subprocess.Popen[str], environment: dict[str, str], daemon: RunningDaemon, tmp_path: Path
) -> None:
    def told(name: str) -> Any:
        def look() -> bool:
            assert training.poll() is None, training.communicate()
            return (tmp_path / name).exists()

        wait_until(look)
        return json.loads((tmp_path / name).read_text())

    ready = told("ready")
    pid = ready["pid"]

    def completed(process: Process | None) -> int | None:
        return None if process is None or process.executions is None else process.executions.completed_total

    process = wait_until(lambda: p if (p := daemon.find(pid)) and p.measured_at_seconds else None)
    before = completed(process) or 0
    busy_before_seconds = daemon.snapshot().cores[1].busy_seconds_total or 0.0
    groups = ("neuroncore_counters", "memory_used", "execution_stats")
    with RecordStream(tmp_path, daemon.socket, *groups, period="100ms") as monitor:
        wait_until(monitor.reports)  # its first record is of before the training
        (tmp_path / "go").touch()
        trained = told("trained")
        wait_until(lambda: sum(monitor.completed()) == STEPS and monitor.completed()[-1] == 0)
        reports = monitor.reports()
    process = wait_until(lambda: p if completed(p := daemon.find(pid)) == before + STEPS else None)
    idle, core = daemon.snapshot().cores

    # Who and where.
    command = f"{sys.executable} -m neurontools.runtime train.py --epochs 3"
    (device,) = neuron_ls(environment)
    assert device["neuron_processes"] == [{"pid": pid, "command": command, "neuron_runtime_version": __version__}]
    assert (device["neuron_device"], device["nc_count"], device["memory_size"]) == (0, 2, 32 << 30)
    assert (process.tag, process.uid, process.command) == ("counted", os.getuid(), command)
    assert (process.neuroncore_indices, process.device_indices, core.owner_pid) == ((1,), (0,), pid)
    assert (idle.owner_pid, idle.executions_total, idle.flop_total) == (None, 0, 0)

    # Executions and operations.
    assert core.executions_total == sum(model.executions_total for model in process.models) == before + STEPS
    assert core.flop_total == FLOP_PER_STEP * STEPS
    assert process.executions is not None
    assert process.executions.completed_with_num_err_total == 0

    # Memory, to the byte: what the script can add up by category, the compiled models as they are on disk, the rest
    # by the total that the script is told.
    entries = [path.parent for path in (tmp_path / "cache").rglob("model.done")]
    code_bytes = sum((entry / "model.neff").stat().st_size for entry in entries)
    memory = core.memory
    assert memory.constants_bytes == trained["constants"] == PARAMETER_BYTES
    assert memory.tensors_bytes == trained["tensors"]
    assert memory.model_code_bytes == code_bytes
    assert memory.runtime_memory_bytes == trained["random"]
    known = trained["constants"] + trained["tensors"] + code_bytes + trained["random"]
    assert memory.model_shared_scratchpad_bytes == trained["used"] - known
    assert {model.name for model in process.models} == {entry.name for entry in entries}

    # Training.
    counters = process.training
    assert counters is not None
    assert (counters.steps_total, counters.samples_total) == (STEPS, STEPS * BATCH)
    assert counters.compilations_total == len(entries)
    assert counters.to_device_bytes_total == ready["to_device"] + trained["loaded"]
    assert (counters.collectives_total, counters.from_device_bytes_total) == (0, 0)

    check_times((core.busy_seconds_total or 0.0) - busy_before_seconds, reports, trained)

    # An execution whose result is not a number, and the transfers of two numbers.
    (tmp_path / "fail").touch()
    assert told("failed")["is_nan"]

    def failed() -> Process | None:
        seen = daemon.find(pid)
        if seen is None or seen.errors is None or seen.training is None:
            return None
        # A report between the two transfers has one number only.
        has_both = (seen.training.from_device_bytes_total or 0) >= 8
        return seen if seen.errors.numerical_total and has_both else None

    process = wait_until(failed)
    assert process.errors is not None
    assert process.executions is not None
    assert process.training is not None
    assert (process.errors.numerical_total, process.executions.completed_with_num_err_total) == (1, 1)
    assert (completed(process), process.training.from_device_bytes_total) == (before + STEPS, 8)

    # The end: no process, and a summary with the same numbers.
    (tmp_path / "stop").touch()
    output, errors = training.communicate(timeout=HANG_SECONDS)
    assert (training.returncode, output) == (0, ""), errors
    wait_until(lambda: daemon.find(pid) is None)
    assert neuron_ls(environment)[0]["neuron_processes"] == []
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["exit_code"], summary["workers"], summary["cores"]) == (0, 1, [1])
    assert (summary["steps_total"], summary["samples_total"]) == (STEPS, STEPS * BATCH)
    assert (summary["executions_total"], summary["flop_total"]) == (before + STEPS + 1, FLOP_PER_STEP * STEPS)
    assert (summary["numerical_errors_total"], summary["from_device_bytes"]) == (1, 8)
    assert summary["hbm_peak_bytes"] >= trained["used"]
    shortest, longest = trained["training"]
    assert shortest <= summary["training_seconds"] <= longest
    assert summary["flops_per_second"] == pytest.approx(FLOP_PER_STEP * summary["steps_per_second"], rel=1e-6)
    assert summary["mfu_ratio"] == pytest.approx(summary["flops_per_second"] / 95e12, rel=1e-6)


def check_times(busy_seconds: float, reports: list[dict[str, Any]], trained: dict[str, Any]) -> None:
    """The script's clock stands around the calls, so it has seen more; their CPU time is nearly all the executions'.

    Each record is about executions that the script timed one by one, in this order.
    """
    seconds, cpu_seconds = trained["seconds"], trained["cpu_seconds"]
    least_seconds = 0.9 * sum(cpu_seconds[COMPILING_STEPS:])
    assert least_seconds < busy_seconds <= sum(seconds)
    first, flop, busy, medians = 0, 0.0, 0.0, []
    for each in reports:
        stats, cores = each["execution_stats"], each["neuroncore_counters"]["neuroncores_in_use"]
        completed = stats["execution_summary"]["completed"]
        longest = max(seconds[first : first + completed], default=0.0)
        first += completed
        if stats["error"] or each["neuroncore_counters"]["error"]:
            assert not completed, "nothing was reported within its period"
            continue
        assert list(cores) == ["0", "1"]
        assert set(cores["0"].values()) == {0}
        period = each["neuroncore_counters"]["period"]
        busy += cores["1"]["neuroncore_utilization"] / 100 * period
        if not completed:
            continue
        flop += cores["1"]["flops"] * period
        latency = stats["latency_stats"]["device_latency"]
        assert latency["p50"] <= latency["p100"] < 1.02 * longest
        medians.append(latency["p50"])
        assert not any(stats["error_summary"].values())
        used = each["memory_used"]["neuron_runtime_used_bytes"]
        breakdown = used["usage_breakdown"]["neuroncore_memory_usage"]["1"]
        assert breakdown["constants"] == trained["constants"]
        assert sum(breakdown.values()) == used["neuron_device"]
    assert first == STEPS
    assert statistics.median(medians) > 0.5 * statistics.median(cpu_seconds)
    # Rates are those between two reports of the process, which lie a little beside the ends of a period.
    assert flop == pytest.approx(FLOP_PER_STEP * STEPS, rel=0.05)
    assert least_seconds < busy < 1.1 * sum(seconds)
