"""From end to end: a real training process, a real daemon, and neuron-ls from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness import python_process
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

pytest.importorskip("torch", reason="the example needs the extra `runtime`")

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "examples/train_mlp.py"
BATCH = 32
_sizes = re.search(r"^FEATURES, HIDDEN, CLASSES = (\d+), (\d+), (\d+)$", TRAIN.read_text("utf-8"), re.MULTILINE)
assert _sizes
FEATURES, HIDDEN, CLASSES = map(int, _sizes.groups())
# Weights and biases of two layers, 4 bytes each.
PARAMETER_BYTES = 4 * (FEATURES * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES)
# 2 FLOPs a multiply-add; forward once, backward for weights and inputs, but the first layer's input needs no gradient.
FLOP_PER_EXECUTION = 2 * BATCH * (2 * FEATURES * HIDDEN + 3 * HIDDEN * CLASSES)


def neuron_ls(daemon: RunningDaemon, *flags: str) -> str:
    command = [sys.executable, str(ROOT / "scripts/neuron-ls"), "--socket", daemon.socket, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout


def holders(daemon: RunningDaemon) -> dict[int, list[dict[str, Any]]]:
    devices = json.loads(neuron_ls(daemon, "-j"))
    return {device["neuron_device"]: device["neuron_processes"] for device in devices if device["neuron_processes"]}


def train(daemon: RunningDaemon, **environment: str) -> subprocess.Popen[bytes]:
    return python_process.popen(
        [sys.executable, str(TRAIN), "--seconds", "600", "--batch-size", str(BATCH), "--quiet"],
        loaded=python_process.TORCH,
        env={**os.environ, "NEURONTOOLS_SOCKET": daemon.socket, **environment},
    )


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon("--simulate", "trn1.32xlarge", "--interval", "0.05")


def test_neuron_ls_shows_what_a_training_process_really_does(daemon: RunningDaemon) -> None:
    process = train(daemon, NEURON_RT_VISIBLE_CORES="3-4", NEURON_PROCESS_TAG="mlp")
    try:
        wait_until(
            lambda: (seen := daemon.find(process.pid)) and seen.executions and seen.executions.completed_total > 50
        )
        command = f"{sys.executable} {TRAIN} --seconds 600 --batch-size {BATCH} --quiet"
        shown = {"pid": process.pid, "command": command, "neuron_runtime_version": "0.1.0"}
        assert holders(daemon) == {1: [shown], 2: [shown]}  # cores 3 and 4 lie on devices 1 and 2
        assert str(process.pid) in neuron_ls(daemon, "-w", "-d", "2")

        seen = daemon.find(process.pid)
        assert seen is not None
        assert (seen.tag, seen.uid, seen.neuroncore_indices) == ("mlp", os.getuid(), (3, 4))
        cores = [core for core in daemon.snapshot().cores if core.owner_pid == process.pid]
        assert [core.index for core in cores] == [3, 4]
        for core in cores:
            assert core.memory.constants_bytes == PARAMETER_BYTES
            assert core.flop_total == FLOP_PER_EXECUTION * (core.executions_total or 0)
            assert (core.busy_seconds_total or 0) > 0
    finally:
        process.kill()
        process.wait()


def test_killing_a_training_process_frees_its_cores_and_the_next_one_gets_them(daemon: RunningDaemon) -> None:
    first = train(daemon, NEURON_RT_NUM_CORES="2")
    wait_until(lambda: daemon.find(first.pid) and holders(daemon))
    refused = train(daemon, NEURON_RT_VISIBLE_CORES="0-1")
    assert refused.wait(HANG_SECONDS) == 1
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    wait_until(lambda: not holders(daemon))
    second = train(daemon, NEURON_RT_VISIBLE_CORES="0-1")
    try:
        wait_until(lambda: [held["pid"] for held in holders(daemon).get(0, [])] == [second.pid])
    finally:
        second.kill()
        second.wait()
