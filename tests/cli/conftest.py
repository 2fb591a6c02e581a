from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from neurontools.model import Snapshot
from neurontools.testing import DriverTree
from tests.harness.command import RunCommand, calls
from tests.harness.monitor_server import MonitorServer
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.snapshots import process_of, snapshot_of

TRAIN = "torchrun --nproc_per_node=2 train.py --learning-rate 1e-3 --batch-size 8 --epochs 10"


@pytest.fixture
def clean_environment(socket_directory: Path) -> dict[str, str]:
    """An environment in which no daemon of the developer's is found."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return {**kept, "HOME": str(socket_directory), "XDG_RUNTIME_DIR": str(socket_directory)}


@pytest.fixture
def empty_host(tmp_path: Path) -> dict[str, str]:
    """The variables of a host without a driver."""
    for name in ("sys", "proc", "dev"):
        (tmp_path / name).mkdir()
    return {
        f"NEURONTOOLS_{name}_ROOT": str(tmp_path / part)
        for name, part in (("SYSFS", "sys"), ("PROC", "proc"), ("DEV", "dev"))
    }


@pytest.fixture
def neuron_ls(clean_environment: dict[str, str]) -> RunCommand:
    """Calls the command in this process."""
    return calls("neuron-ls", clean_environment)


@pytest.fixture
def tree() -> Iterator[DriverTree]:
    """The driver's tree of a host with one device."""
    with DriverTree("trn1.2xlarge") as tree:
        yield tree


@pytest.fixture
def watching(tree: DriverTree, start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon(*tree.flags, "--interval", "0.05")


@pytest.fixture
def busy_host() -> Snapshot:
    """Two trainings on the first devices, and a monitor that watches all."""
    return snapshot_of(
        "trn2.48xlarge",
        [
            process_of(4242, TRAIN, [0, 1]),
            process_of(4243, "python3 infer.py", [1]),
            process_of(5000, "neuron-monitor", range(16), None),
        ],
    )


@pytest.fixture
def server(socket_directory: Path, busy_host: Snapshot) -> Iterator[MonitorServer]:
    running = MonitorServer(f"{socket_directory}/neurond.sock", busy_host)
    yield running
    running.close()
