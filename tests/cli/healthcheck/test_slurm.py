"""neuron-healthcheck as the HealthCheckProgram of a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from neurontools.model import EccCounters
from neurontools.testing import DriverTree
from tests.harness.healthcheck import RunHealthcheck, has_findings
from tests.harness.running_daemon import RunningDaemon
from tests.harness.slurm_cluster import SlurmCluster, needs_slurm
from tests.harness.waiting import wait_until

HBM_ERROR, NO_ERROR = EccCounters(0, 1, 0, 0, 0), EccCounters(0, 0, 0, 0, 0)
SRAM_ERROR = EccCounters(0, 0, 0, 0, 1)
MARK = "[node_problem] neuron-healthcheck: "


@pytest.fixture
def cluster(watching: RunningDaemon, socket_directory: Path) -> Iterator[SlurmCluster]:
    directory = socket_directory / "slurm"
    directory.mkdir()
    with SlurmCluster(directory, watching.socket) as cluster:
        yield cluster


@needs_slurm
@pytest.mark.long
def test_a_sick_node_is_drained_with_a_reason_and_undrained_when_it_is_well(
    cluster: SlurmCluster, tree: DriverTree, watching: RunningDaemon
) -> None:
    assert "left as it is" in cluster.check().stdout
    tree.set_device(0, ecc=HBM_ERROR)
    wait_until(lambda: "DRAIN" in cluster.state())
    assert cluster.reason().startswith(f"{MARK}HBM_UNCORRECTABLE_ERROR: device 0: 1 uncorrected ECC error in HBM")
    assert "stays drained" in cluster.check().stdout
    tree.set_device(0, ecc=SRAM_ERROR)
    wait_until(lambda: "SRAM_UNCORRECTABLE_ERROR" in cluster.reason())
    watching.stop()
    unknown = cluster.check()
    assert (unknown.returncode, unknown.stdout.startswith("unknown: ")) == (0, True)
    assert "DRAIN" in cluster.state()


@needs_slurm
@pytest.mark.long
def test_what_an_operator_has_drained_stays_as_it_is(
    cluster: SlurmCluster, tree: DriverTree, watching: RunningDaemon
) -> None:
    cluster.drain("fan replacement [root@elsewhere]")
    tree.set_device(0, ecc=HBM_ERROR)
    wait_until(lambda: has_findings(watching))
    checked = cluster.check()
    assert (checked.returncode, "is drained already" in checked.stdout) == (0, True)
    assert cluster.reason().startswith("fan replacement")
    tree.set_device(0, ecc=NO_ERROR)
    wait_until(lambda: not has_findings(watching))
    assert "left as it is" in cluster.check().stdout
    assert "DRAIN" in cluster.state()


@needs_slurm
@pytest.mark.long
def test_a_node_that_is_well_again_is_undrained(
    cluster: SlurmCluster, tree: DriverTree, watching: RunningDaemon
) -> None:
    tree.set_device(0, ecc=HBM_ERROR)
    wait_until(lambda: "DRAIN" in cluster.state())
    tree.set_device(0, ecc=NO_ERROR)
    wait_until(lambda: "DRAIN" not in cluster.state())
    cluster.drain(f"{MARK}by hand, as if by an earlier check")
    wait_until(lambda: "DRAIN" not in cluster.state())


@pytest.fixture
def without_slurm(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "bin").mkdir()
    return {"PATH": str(tmp_path / "bin"), "SLURMD_NODENAME": "n0"}


def test_where_slurm_is_not_nothing_is_done(
    healthcheck: RunHealthcheck, tree: DriverTree, watching: RunningDaemon, without_slurm: dict[str, str]
) -> None:
    tree.set_device(0, ecc=HBM_ERROR)
    wait_until(lambda: has_findings(watching))
    done = healthcheck("--format", "slurm", "--socket", watching.socket, **without_slurm)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("[no scontrol here: nothing done]\n")


@pytest.mark.parametrize("says", ["exit 1", "echo slurm_load_node error >&2; exit 1", "echo gibberish", "kill -9 $$"])
def test_a_scontrol_that_fails_is_a_line_and_changes_nothing(
    healthcheck: RunHealthcheck, watching: RunningDaemon, without_slurm: dict[str, str], says: str
) -> None:
    scontrol = Path(without_slurm["PATH"]) / "scontrol"
    scontrol.write_text(f"#!/bin/sh\n{says}\n")
    scontrol.chmod(0o755)
    done = healthcheck("--format", "slurm", "--socket", watching.socket, **without_slurm)
    assert (done.returncode, done.stderr.count("\n"), done.stdout.count("\n")) == (1, 1, 1)


def test_dry_run_says_what_it_would_do(
    healthcheck: RunHealthcheck,
    tree: DriverTree,
    watching: RunningDaemon,
    without_slurm: dict[str, str],
    tmp_path: Path,
) -> None:
    scontrol = Path(without_slurm["PATH"]) / "scontrol"
    scontrol.write_text("#!/bin/sh\n[ $1 = show ] || exit 1\necho '   State=MIXED*+DYNAMIC_NORM ThreadsPerCore=1'\n")
    scontrol.chmod(0o755)
    tree.set_device(0, ecc=HBM_ERROR)
    wait_until(lambda: has_findings(watching))
    done = healthcheck("--format", "slurm", "--socket", watching.socket, "--dry-run", **without_slurm)
    assert (done.returncode, done.stdout.endswith("[node n0 would be drained]\n")) == (0, True)
