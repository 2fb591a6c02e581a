"""Twenty seconds of training, twelve outside of CI, read by the tools: every number shown equals the script's own.

The script is written as those of the SDK's tutorials are; what it counts and times, it does with its own means. Counts
and bytes have to be equal. Times are those of the same executions, taken on two sides of the same call.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neurontools.model import ErrorCounters, ExecutionCounters, Process
from neurontools.version import __version__
from tests.harness import examples, python_process
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
SECONDS = 20.0 if examples.ALL else 12.0  # as many records, and a few to spare
LEAST_RECORDS, LEAST_STEPS = int(SECONDS / 2), 100  # a busy machine trains for longer to have them
COMPILING_STEPS = 3  # at the most: after those the graph is the same at each step
BATCH, FEATURES, HIDDEN, CLASSES = 64, 512, 1024, 10
# 2 operations a multiply-add; forward once, backward for weights and inputs, but the first layer's input needs none.
FLOP_PER_STEP = 2 * BATCH * (2 * FEATURES * HIDDEN + 3 * HIDDEN * CLASSES)
SCRIPT = f"""
import json, os, time
from pathlib import Path
import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl

def wait_for(name):
    while not Path(name).exists(): time.sleep(0.02)

class Batches:  # random data for so many seconds, and until enough of it was told
    def __iter__(self):
        end = time.monotonic() + {SECONDS}
        while time.monotonic() < end or not Path("enough").exists():
            yield torch.randn({BATCH}, {FEATURES}), torch.randint(0, {CLASSES}, ({BATCH},))
    def __len__(self): return 10**9

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

steps = samples = loaded = 0
seconds = []
cpu_seconds = []
steps_began, steps_ended = [], []
for inputs, targets in pl.MpDeviceLoader(Batches(), device):
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
    steps += 1
    samples += len(inputs)
    loaded += bytes_of([inputs, targets])
state = [value for entry in optimizer.state.values() for value in entry.values() if torch.is_tensor(value)]
alive = [p.grad for p in parameters] + state + [inputs, targets, loss]
save("trained", {{
    "steps": steps, "samples": samples, "seconds": seconds, "cpu_seconds": cpu_seconds, "loaded": loaded,
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
    return start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.25")


@pytest.fixture
def environment(tmp_path: Path, daemon: RunningDaemon) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NEURON", "XLA_", "TORCHELASTIC"))}
    return {
        **kept,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}",
        "NEURONTOOLS_SOCKET": daemon.socket,
        "NEURON_COMPILE_CACHE_URL": str(tmp_path / "cache"),
        "NEURON_PROCESS_TAG": "twenty",
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture
def training(tmp_path: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "train.py").write_text(SCRIPT)
    process = python_process.popen(
        [
            *(sys.executable, "-m", "neurontools.cli.run.command", "--cores", "1", "--summary-json", "summary.json"),
            *("train.py", "--epochs", "3"),
        ],
        loaded=python_process.TORCH,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    if process.poll() is None:
        process.terminate()
    process.communicate(timeout=HANG_SECONDS)


@pytest.fixture
def monitor(tmp_path: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """neuron-monitor, a record a second."""
    metrics = [{"type": kind} for kind in ("neuroncore_counters", "memory_used", "execution_stats")]
    runtimes = [{"tag_filter": ".*", "metrics": metrics}]
    (tmp_path / "monitor.json").write_text(
        json.dumps({"period": "1s", "neuron_runtimes": runtimes, "system_metrics": []})
    )
    with (tmp_path / "records").open("wb") as output:
        process = python_process.popen(
            [sys.executable, "-m", "neurontools.cli.monitor.command", "-c", "monitor.json"],
            loaded=python_process.MONITORS,
            cwd=tmp_path,
            env=environment,
            stdout=output,
            text=True,
        )
    yield process
    process.kill()
    process.wait()


def records(directory: Path) -> list[dict[str, Any]]:
    """What neuron-monitor has told of the one process so far."""
    told = [json.loads(line) for line in (directory / "records").read_text().split("\n")[:-1]]
    return [data["report"] for record in told for data in record["neuron_runtime_data"]]


def neuron_ls(environment: dict[str, str]) -> list[dict[str, Any]]:
    command = [sys.executable, str(ROOT / "scripts" / "neuron-ls"), "-j"]
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    document: list[dict[str, Any]] = json.loads(done.stdout)
    return document


def executions_of(process: Process) -> ExecutionCounters:
    assert process.executions is not None
    return process.executions


def errors_of(process: Process) -> ErrorCounters:
    assert process.errors is not None
    return process.errors


@pytest.mark.long
def test_every_number_that_is_shown_is_the_scripts_own(
    training: subprocess.Popen[str],
    environment: dict[str, str],
    daemon: RunningDaemon,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    def told(name: str) -> dict[str, Any]:
        def look() -> Any:
            assert training.poll() is None, training.communicate()
            path = tmp_path / name
            return json.loads(path.read_text()) if path.exists() else None

        return {**wait_until(look)}

    ready = told("ready")
    process = wait_until(lambda: p if (p := daemon.find(ready["pid"])) and p.measured_at_seconds else None)
    before = executions_of(process).completed_total
    request.getfixturevalue("monitor")
    untrained = len(wait_until(lambda: records(tmp_path)))  # told before the training: nothing ran

    def later() -> list[dict[str, Any]]:
        return records(tmp_path)[untrained:]

    def completed() -> list[int]:
        return [each["execution_stats"]["execution_summary"]["completed"] for each in later()]

    (tmp_path / "go").touch()

    # While it trains, neuron-ls is asked all the time: who, with what, since the start; never anything else.
    command = f"{sys.executable} -m neurontools.runtime train.py --epochs 3"
    expected = [{"pid": ready["pid"], "command": command, "neuron_runtime_version": __version__}]
    asked = 0
    while not (tmp_path / "trained").exists():
        assert training.poll() is None, training.communicate()
        (device,) = neuron_ls(environment)
        assert device["neuron_processes"] == expected
        assert (device["neuron_device"], device["nc_count"], device["memory_size"]) == (0, 2, 32 << 30)
        asked += 1
        if sum(map(bool, completed())) > LEAST_RECORDS and sum(completed()) > LEAST_STEPS:
            (tmp_path / "enough").touch()
        time.sleep(0.1)  # not a load of its own
    assert asked > 1

    trained = told("trained")
    steps, seconds = trained["steps"], trained["seconds"]
    assert steps > LEAST_STEPS
    process = wait_until(
        lambda: p if (p := daemon.find(ready["pid"])) and executions_of(p).completed_total == before + steps else None
    )
    wait_until(lambda: sum(completed()) == steps)
    wait_until(lambda: completed()[-1] == 0)
    snapshot = daemon.snapshot()
    idle, core = snapshot.cores
    process = wait_until(lambda: daemon.find(ready["pid"]))

    # Who and where.
    assert (process.tag, process.uid, process.command) == ("twenty", os.getuid(), command)
    assert (process.neuroncore_indices, process.device_indices, core.owner_pid) == ((1,), (0,), ready["pid"])
    assert (idle.owner_pid, idle.executions_total, idle.flop_total) == (None, 0, 0)

    # Executions and operations.
    assert core.executions_total == before + steps
    assert core.flop_total == FLOP_PER_STEP * steps
    assert executions_of(process).completed_total == before + steps
    assert sum(model.executions_total for model in process.models) == before + steps
    assert executions_of(process).completed_with_num_err_total == 0

    # Memory, to the byte: what the script can add up by category, the compiled models as they are on disk, the rest
    # by the total that the script is told.
    entries = [path.parent for path in (tmp_path / "cache").rglob("model.done")]
    code_bytes = sum((entry / "model.neff").stat().st_size for entry in entries)
    memory = core.memory
    assert (
        memory.constants_bytes == trained["constants"] == 4 * (FEATURES * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES)
    )
    assert memory.tensors_bytes == trained["tensors"]
    assert memory.model_code_bytes == code_bytes
    assert memory.runtime_memory_bytes == trained["random"]
    known = trained["constants"] + trained["tensors"] + code_bytes + trained["random"]
    assert memory.model_shared_scratchpad_bytes == trained["used"] - known
    assert {model.name for model in process.models} == {entry.name for entry in entries}

    # Times: the script's clock stands around the same calls, so it can only have seen more. How much more is a matter
    # of who else wants the CPU; what the calls had of it is nearly all the execution's.
    assert core.busy_seconds_total is not None
    least = 0.9 * sum(trained["cpu_seconds"][COMPILING_STEPS:])
    assert least < core.busy_seconds_total <= sum(seconds) + 0.1  # what ran before the training

    # Training.
    training_counters = process.training
    assert training_counters is not None
    assert (training_counters.steps_total, training_counters.samples_total) == (steps, trained["samples"])
    assert training_counters.compilations_total == len(entries)
    assert training_counters.to_device_bytes_total == ready["to_device"] + trained["loaded"]
    assert (training_counters.collectives_total, training_counters.from_device_bytes_total) == (0, 0)

    check_records(later(), trained)

    # An execution whose result is not a number, and the transfers of two numbers.
    (tmp_path / "fail").touch()
    failed = told("failed")
    assert failed["is_nan"]
    process = wait_until(lambda: p if (p := daemon.find(ready["pid"])) and errors_of(p).numerical_total else None)
    assert (errors_of(process).numerical_total, executions_of(process).completed_with_num_err_total) == (1, 1)
    assert executions_of(process).completed_total == before + steps
    counters = wait_until(
        lambda: t if (p := daemon.find(ready["pid"])) and (t := p.training) and t.from_device_bytes_total else None
    )
    assert counters.from_device_bytes_total == 8

    # The end: no process, and a summary with the same numbers.
    (tmp_path / "stop").touch()
    output, errors = training.communicate(timeout=HANG_SECONDS)
    assert (training.returncode, output) == (0, ""), errors
    wait_until(lambda: daemon.find(ready["pid"]) is None)
    assert neuron_ls(environment)[0]["neuron_processes"] == []
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["exit_code"], summary["workers"], summary["cores"]) == (0, 1, [1])
    assert (summary["steps_total"], summary["samples_total"]) == (steps, trained["samples"])
    assert summary["executions_total"] == before + steps + 1
    assert summary["flop_total"] == FLOP_PER_STEP * steps
    assert summary["numerical_errors_total"] == 1
    assert summary["hbm_peak_bytes"] >= trained["used"]
    assert summary["from_device_bytes"] == 8
    shortest, longest = trained["training"]
    assert shortest <= summary["training_seconds"] <= longest
    assert summary["flops_per_second"] == pytest.approx(FLOP_PER_STEP * summary["steps_per_second"], rel=1e-6)
    assert summary["mfu_ratio"] == pytest.approx(summary["flops_per_second"] / 95e12, rel=1e-6)


def check_records(told: list[dict[str, Any]], trained: dict[str, Any]) -> None:
    """Each record of neuron-monitor is about executions that the script timed one by one, in this order."""
    seconds, cpu_seconds = trained["seconds"], trained["cpu_seconds"]
    first = 0
    busy = flop = 0.0
    told_count = close = close_to_longest = 0
    for each in told:
        stats, cores = each["execution_stats"], each["neuroncore_counters"]["neuroncores_in_use"]
        completed = stats["execution_summary"]["completed"]
        mine = sorted(seconds[first : first + completed])
        of_cpu = sorted(cpu_seconds[first : first + completed])
        first += completed
        assert list(cores) == ["0", "1"]
        assert set(cores["0"].values()) == {0}
        period = each["neuroncore_counters"]["period"]
        busy += cores["1"]["neuroncore_utilization"] / 100 * period
        if not completed:
            continue
        flop += cores["1"]["flops"] * period
        latency = stats["latency_stats"]["device_latency"]
        assert latency["p50"] < 1.02 * mine[-1]
        assert latency["p100"] < 1.02 * mine[-1]
        # Not of those that compile.
        close += latency["p50"] > 0.8 * of_cpu[math.ceil(completed / 2) - 1]
        close_to_longest += latency["p100"] > 0.8 * of_cpu[-1]
        told_count += 1
        assert not any(stats["error_summary"].values())
        used = each["memory_used"]["neuron_runtime_used_bytes"]
        breakdown = used["usage_breakdown"]["neuroncore_memory_usage"]["1"]
        assert breakdown["constants"] == trained["constants"]
        assert sum(breakdown.values()) == used["neuron_device"]
    assert first == len(seconds)
    assert told_count > LEAST_RECORDS
    assert close > 0.8 * told_count
    assert close_to_longest > 0.5 * told_count
    # Rates are those between two reports of the process, which lie a little beside the ends of a period.
    assert flop == pytest.approx(FLOP_PER_STEP * first, rel=0.05)
    assert 0.9 * sum(cpu_seconds[COMPILING_STEPS:]) < busy < 1.1 * sum(seconds)
