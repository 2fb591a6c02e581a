"""Training under a real daemon: what it shows is what the script did, whatever happens to the daemon."""

from __future__ import annotations

import contextlib
import fcntl
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neurontools.model.training import STEP_PARTS
from neurontools.profile import read_directory
from tests.harness.training_host import TrainingHost
from tests.harness.waiting import HANG_SECONDS, wait_until


@pytest.fixture
def host(tmp_path: Path, device_environment: dict[str, str]) -> Iterator[TrainingHost]:
    made = TrainingHost(tmp_path, device_environment)
    yield made
    made.close()


def test_every_number_is_the_scripts_own(host: TrainingHost) -> None:
    host.start_daemon()
    script = host.start_script(NEURON_RT_VISIBLE_CORES="1")
    wait_until(lambda: host.steps() > 20)
    (device,) = host.neuron_ls()
    assert [process["pid"] for process in device["neuron_processes"]] == [script.pid]
    host.stop()
    assert script.stdout is not None
    line = script.stdout.readline()
    assert line, script.stderr.read() if script.stderr else ""
    done = json.loads(line)

    def settled() -> Any:
        snapshot = host.snapshot()
        # the last one reads the loss, which is there already
        return snapshot if snapshot.cores[1].executions_total >= done["steps"] else None

    snapshot = wait_until(settled)
    time_of_report = snapshot.cores[1].measured_at_seconds
    snapshot = wait_until(lambda: s if (s := host.snapshot()).cores[1].measured_at_seconds > time_of_report else None)
    core, (process,) = snapshot.cores[1], snapshot.processes
    assert process.pid == script.pid
    assert core.executions_total == done["steps"] == process.executions.completed_total
    assert core.flop_total == done["steps"] * done["flops"]
    assert core.memory.constants_bytes == done["parameters"]
    assert core.memory.tensors_bytes == done["tensors"]
    levels = core.memory
    total = levels.constants_bytes + levels.tensors_bytes + levels.model_code_bytes
    total += levels.model_shared_scratchpad_bytes + levels.runtime_memory_bytes
    assert total == done["bytes"]
    assert sum(model.executions_total for model in process.models) == done["steps"]
    assert process.host_memory.dma_buffers_bytes == levels.model_code_bytes > 0
    training = process.training
    assert training.steps_total == done["steps"]
    assert not training.HasField("samples_total")  # the script has no loader
    assert training.to_device_bytes_total == done["to_device"]
    assert training.from_device_bytes_total == done["from_device"]
    assert training.compilations_total == len(process.models)
    assert 0 < training.compile_seconds_total < 60
    assert training.collectives_total == 0
    parts = [getattr(training, part.counter) for part in STEP_PARTS]
    assert sum(parts) <= process.measured_at_seconds - process.counted_since_seconds + 1.0
    assert 0 < training.compute_seconds_total <= core.busy_seconds_total
    assert training.host_seconds_total > 0
    assert not training.HasField("input_wait_seconds_total")
    assert not training.HasField("compiling_since_seconds")
    assert 0 < training.last_step_at_seconds <= process.measured_at_seconds
    assert 0 < core.busy_seconds_total < 60
    script.communicate()
    wait_until(lambda: not host.snapshot().processes)


def test_a_profile_has_the_busy_time_that_the_daemon_shows(host: TrainingHost) -> None:
    host.start_daemon()
    made = host.directory / "made"
    script = host.start_script(
        NEURON_RT_VISIBLE_CORES="1", NEURON_RT_INSPECT_ENABLE="1", NEURON_RT_INSPECT_OUTPUT_DIR=str(made)
    )
    wait_until(lambda: host.steps() > 20)
    host.stop()
    assert script.stdout is not None
    assert script.stdin is not None
    steps = json.loads(script.stdout.readline())["steps"]
    wait_until(lambda: host.snapshot().cores[1].executions_total >= steps)
    (work,) = host.snapshot().processes[0].core_work
    script.stdin.close()
    assert script.wait(HANG_SECONDS) == 0
    (profile,) = read_directory(made)
    assert sum(profile.graph_totals.column("executions")) == steps
    operators_seconds = sum(profile.operator_totals.column("total_ns")) / 1e9
    assert work.busy_seconds_total == pytest.approx(operators_seconds, rel=0.01)
    assert profile.metadata.logical_neuroncore_config == 1


def test_who_waits_for_a_compilation_says_since_when(host: TrainingHost) -> None:
    host.start_daemon()
    first = host.start_script()
    wait_until(lambda: host.steps() > 5)
    first.kill()
    first.wait()
    wait_until(lambda: not host.snapshot().processes)
    entries = {path.parent for path in (host.directory / "cache").rglob("model.done")}
    with contextlib.ExitStack() as locks:
        for entry in entries:
            (entry / "model.done").unlink()
            lock = locks.enter_context((entry / "model.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # as another worker does that compiles
        host.start_script()

        def waiting() -> Any:
            processes = host.snapshot().processes
            return processes[0] if processes and processes[0].training.HasField("compiling_since_seconds") else None

        process = wait_until(waiting)
        since = process.training.compiling_since_seconds
        assert process.counted_since_seconds - 1.0 <= since <= process.measured_at_seconds
        later = wait_until(lambda: p if (p := waiting()).training.compile_wait_seconds_total > 0.5 else None)
        assert later.training.compiling_since_seconds == pytest.approx(since, abs=0.1)
    wait_until(lambda: not waiting())


def test_training_goes_on_whatever_happens_to_the_daemon(host: TrainingHost) -> None:
    script = host.start_script()
    wait_until(lambda: host.steps() > 5)
    host.start_daemon()
    wait_until(lambda: [p.pid for p in host.snapshot().processes] == [script.pid])
    assert host.daemon is not None
    host.daemon.send_signal(signal.SIGSTOP)
    seen = host.steps()
    wait_until(lambda: host.steps() > seen + 20)
    host.daemon.kill()
    host.daemon.wait()
    seen = host.steps()
    wait_until(lambda: host.steps() > seen + 20)
    host.start_daemon()
    wait_until(lambda: [p.pid for p in host.snapshot().processes] == [script.pid])
    wait_until(lambda: host.snapshot().cores[0].executions_total > 0)
    host.stop()
    _, errors = script.communicate()
    assert script.returncode == 0, errors
    assert errors.count("nothing is monitored") == 1


def test_a_killed_process_frees_its_cores(host: TrainingHost) -> None:
    host.start_daemon()
    script = host.start_script()
    wait_until(lambda: host.steps() > 5)
    assert all(core.owner_pid == script.pid for core in host.snapshot().cores)
    script.kill()
    script.wait()
    wait_until(lambda: not any(core.HasField("owner_pid") for core in host.snapshot().cores))


def test_cores_that_others_hold_are_refused_in_the_words_of_the_runtime(host: TrainingHost) -> None:
    host.start_daemon()
    host.start_script(NEURON_RT_VISIBLE_CORES="0")
    wait_until(lambda: host.steps() > 5)
    second = host.start_script(NEURON_RT_VISIBLE_CORES="0")
    _, errors = second.communicate()
    assert second.returncode == 1
    assert "NRT_RESOURCE: NeuronCore(s) not available - Requested:nc0-nc0 Available:0" in errors


def test_a_required_daemon_that_is_not_there_is_an_error(host: TrainingHost) -> None:
    script = host.start_script(NEURONTOOLS_REQUIRE_DAEMON="1")
    _, errors = script.communicate()
    assert script.returncode == 12
    assert "no monitor daemon at" in errors


FORKING = """
import os, torch, torch_xla, torch_xla.core.xla_model as xm
from torch.utils.data import DataLoader, TensorDataset
value = torch.ones(3).to(xm.xla_device())
pending = value + 1
child = os.fork()
if child == 0:
    os._exit(0 if (pending * 2).sum().item() == 12.0 else 3)
assert os.waitpid(child, 0)[1] == 0
assert pending.tolist() == [2.0] * 3
data = TensorDataset(torch.randn(20, 4), torch.arange(20))
for context in ("fork", "spawn"):
    loader = DataLoader(data, batch_size=5, num_workers=2, multiprocessing_context=context)
    assert sum(y.to("xla").sum().item() for x, y in loader) == 190
print("fine")
"""


def test_forked_and_spawned_workers(host: TrainingHost) -> None:
    imports, *rest = FORKING.strip().splitlines()
    guarded = "\n".join([imports, "def main():", *("    " + line for line in rest)])
    guarded += "\nif __name__ == '__main__':\n    main()\n"
    host.start_daemon()
    script = host.start_script(guarded)
    output, errors = script.communicate()
    assert output == "fine\n", errors


def test_what_a_running_script_could_do_better_is_told_while_it_runs(host: TrainingHost) -> None:
    from tests.harness.training_host import SCRIPT

    host.start_daemon()
    reading = SCRIPT.replace("    steps += 1\n", "    steps += 1; loss.item()\n", 1).replace(
        "xm.mark_step()", "xm.mark_step"
    )
    line = next(number for number, text in enumerate(reading.splitlines(), 1) if "loss.item()" in text)
    script = host.start_script(reading)

    def told() -> Any:
        processes = [process for process in host.snapshot().processes if process.pid == script.pid]
        return processes[0].advice if processes else None

    first = wait_until(told)[0]
    assert first.rule == "host-read"
    assert first.place.endswith(f"script.py:{line}")
    assert "steps" in first.measured
    assert "xm.add_step_closure" in first.fix
