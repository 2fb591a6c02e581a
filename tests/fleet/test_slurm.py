"""The hosts of a job, by a real slurmctld, and by a scontrol that fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from neurontools.errors import UserError
from neurontools.fleet.hosts import Place, Reach
from neurontools.fleet.slurm import job_hosts
from tests.harness.running_daemon import StartDaemon
from tests.harness.slurm_cluster import NODE, SlurmCluster, needs_slurm
from tests.harness.waiting import HANG_SECONDS, wait_until


@needs_slurm
def test_the_nodes_of_a_job_that_runs(
    start_daemon: StartDaemon, socket_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge")
    with SlurmCluster(socket_directory, daemon.socket) as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])

        def submitted(*arguments: str) -> str:
            script = "#!/bin/sh\nsleep 600\n"
            command = ["sbatch", "--parsable", "--output=/dev/null", *arguments]
            done = subprocess.run(
                command, input=script, capture_output=True, text=True, timeout=HANG_SECONDS, check=True
            )
            return done.stdout.strip()

        job = submitted()
        waits = submitted(f"--dependency=after:{job}+60")
        wait_until(lambda: "RUNNING" in shown(job) or None)
        assert job_hosts(job).places == (Place(NODE, Reach.SSH, NODE, (("slurm_job", job),)),)
        with pytest.raises(
            UserError, match=f"--slurm {waits}: the job is pending and has no nodes; wait until it runs"
        ):
            job_hosts(waits)
        with pytest.raises(UserError, match=r"--slurm 4999: scontrol show: .*Invalid job id"):
            job_hosts("4999")
        subprocess.run(["scancel", job, waits], check=True, timeout=HANG_SECONDS)
        wait_until(lambda: cluster.state() == "IDLE")


def shown(job: str) -> str:
    return subprocess.run(
        ["scontrol", "show", "job", job], capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    ).stdout


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        (None, "there is no scontrol here"),
        (
            "echo 'slurm_load_jobs error: Unable to contact\nmore' >&2; exit 1",
            "scontrol show: slurm_load_jobs error: Unable to contact; is slurmctld running?",
        ),
        ("exit 3", "scontrol show: it ended with 3; see squeue"),
        ("kill -9 $$", "scontrol show: it was ended by SIGKILL; see squeue"),
        ("echo nothing", "the job is not running and has no nodes"),
    ],
)
def test_a_scontrol_that_fails_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, cause: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "scontrol").chmod(0o755)
    with pytest.raises(UserError) as raised:
        job_hosts("7_1")
    assert str(raised.value).startswith(f"--slurm 7_1: {cause}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("job", ["", "x", "-1", "1;rm", "1 2"])
def test_what_is_no_job(job: str) -> None:
    with pytest.raises(UserError, match="is no job"):
        job_hosts(job)
