from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from neurontools.testing import DriverTree
from tests.harness.command import runs
from tests.harness.healthcheck import HEALTHCHECK, RunHealthcheck
from tests.harness.running_daemon import RunningDaemon, StartDaemon


@pytest.fixture
def healthcheck(clean_environment: dict[str, str]) -> RunHealthcheck:
    """Runs the command as a process of its own."""
    return runs(HEALTHCHECK, clean_environment)


@pytest.fixture
def tree() -> Iterator[DriverTree]:
    """The driver's tree of a host with one device."""
    with DriverTree("trn1.2xlarge") as tree:
        yield tree


@pytest.fixture
def watching(tree: DriverTree, start_daemon: StartDaemon) -> RunningDaemon:
    """A daemon that reads the tree."""
    return start_daemon(*tree.flags, "--interval", "0.05")


@pytest.fixture
def empty_host(tmp_path: Path) -> dict[str, str]:
    """The environment of a host without a driver."""
    for name in ("sys", "proc", "dev"):
        (tmp_path / name).mkdir()
    return {f"NEURONTOOLS_{name.upper()}_ROOT": str(tmp_path / name) for name in ("sysfs", "proc", "dev")} | {
        "NEURONTOOLS_SYSFS_ROOT": str(tmp_path / "sys")
    }
