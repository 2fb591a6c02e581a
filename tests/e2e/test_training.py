"""From end to end: a real training process, a real daemon, and neuron-ls from outside."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from neurontools.util.version import __version__
from tests.harness import python_process
from tests.harness.command import calls
from tests.harness.paths import ROOT
from tests.harness.reporting_process import end
from tests.harness.running_daemon import RunningDaemon
from tests.harness.waiting import wait_until

pytest.importorskip("torch", reason="the example needs the extra `runtime`")

TRAIN = ROOT / "examples/train_mlp.py"
BATCH = 32
_sizes = re.search(r"^FEATURES, HIDDEN, CLASSES = (\d+), (\d+), (\d+)$", TRAIN.read_text("utf-8"), re.MULTILINE)
assert _sizes
FEATURES, HIDDEN, CLASSES = map(int, _sizes.groups())
# Weights and biases of two layers, 4 bytes each.
PARAMETER_BYTES = 4 * (FEATURES * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES)
# 2 FLOPs a multiply-add; forward once, backward for weights and inputs, but the first layer's input needs no gradient.
FLOP_PER_EXECUTION = 2 * BATCH * (2 * FEATURES * HIDDEN + 3 * HIDDEN * CLASSES)


@pytest.fixture
def process(daemon: RunningDaemon) -> Iterator[subprocess.Popen[bytes]]:
    variables = {"NEURON_RT_VISIBLE_CORES": "3-4", "NEURON_PROCESS_TAG": "mlp"}
    process = python_process.popen(
        [sys.executable, str(TRAIN), "--seconds", "600", "--batch-size", str(BATCH), "--quiet"],
        loaded=python_process.TORCH,
        env={**os.environ, "NEURONTOOLS_SOCKET": daemon.socket, **variables},
    )
    yield process
    end(process)


def test_neuron_ls_shows_what_a_training_process_really_does(
    daemon: RunningDaemon, process: subprocess.Popen[bytes]
) -> None:
    def neuron_ls(*flags: str) -> str:
        done = calls("neuron-ls", os.environ)("--socket", daemon.socket, *flags)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    seen = wait_until(
        lambda: p if (p := daemon.find(process.pid)) and p.executions and p.executions.completed_total > 50 else None
    )
    devices: list[dict[str, Any]] = json.loads(neuron_ls("-j"))
    command = f"{sys.executable} {TRAIN} --seconds 600 --batch-size {BATCH} --quiet"
    shown = [{"pid": process.pid, "command": command, "neuron_runtime_version": __version__}]
    held = [shown if index in (1, 2) else [] for index in range(16)]  # cores 3 and 4 lie on devices 1 and 2
    assert [device["neuron_processes"] for device in devices] == held
    assert str(process.pid) in neuron_ls("-w", "-d", "2")
    assert (seen.tag, seen.uid, seen.neuroncore_indices) == ("mlp", os.getuid(), (3, 4))
    cores = [core for core in daemon.snapshot().cores if core.owner_pid == process.pid]
    assert [core.index for core in cores] == [3, 4]
    assert [model.name for model in seen.models] == ["train_mlp"] * 2
    held_bytes = PARAMETER_BYTES + BATCH * (4 * FEATURES + 8)  # the gradients and a batch; the first has the optimizer
    assert [core.memory.tensors_bytes for core in cores] == [held_bytes + 2 * PARAMETER_BYTES + 4 * 4, held_bytes]
    for core in cores:
        assert core.memory.constants_bytes == PARAMETER_BYTES
        assert core.flop_total == FLOP_PER_EXECUTION * (core.executions_total or 0)
        assert (core.busy_seconds_total or 0) > 0
