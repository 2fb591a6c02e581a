"""Containers, pods and jobs from real shapes of cgroups, and what the kubelet adds to them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from neurond.attribution.process import Attributions, _job, attribution_from, read_attribution

from neurontools.model import Attribution, Job, PodAllocation
from tests.harness.running_daemon import RunningDaemon
from tests.harness.scenario_host import ScenarioHost
from tests.harness.waiting import HANG_SECONDS, wait_until

ID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4
UID = "6b2a1c3d-0f4e-4a5b-8c7d-9e0f1a2b3c4d"
SLICE = UID.replace("-", "_")


@pytest.mark.parametrize(
    ("cgroup", "container", "pod"),
    [
        # cgroup v2, systemd driver: containerd, CRI-O, Docker, Podman; then cgroupfs; then v1.
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope",
            ID,
            UID,
        ),
        (f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/crio-{ID}.scope/container", ID, UID),
        (f"0::/system.slice/docker-{ID}.scope", ID, None),
        (f"0::/machine.slice/libpod-{ID}.scope/container", ID, None),
        (f"0::/kubepods/besteffort/pod{UID}/{ID}", ID, UID),
        (f"12:devices:/kubepods/pod{UID}/{ID}\n11:memory:/kubepods/pod{UID}/{ID}\n0::/", ID, UID),
        (f"4:memory:/docker/{ID}\n0::/\n", ID, None),
        # As a daemon in a container of its own sees its neighbours.
        (f"0::/../../kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope", ID, UID),
        # A container in a container: the inner one.
        (f"0::/docker/{OTHER}/docker/{ID}", ID, None),
        ("0::/user.slice/user-1000.slice/session-3.scope", None, None),
        (f"0::/system.slice/build-{ID}f.service", None, None),
        ("", None, None),
    ],
)
def test_cgroups(cgroup: str, container: str | None, pod: str | None) -> None:
    found = attribution_from(cgroup, {})
    assert (found.container_id, found.pod_uid) == (container, pod)


@pytest.mark.parametrize(
    ("cgroup", "environment", "job", "step"),
    [
        ("9:memory:/slurm/uid_1000/job_4711/step_0/task_3\n0::/", {"SLURM_JOB_ID": "1"}, "4711", "0"),
        ("9:memory:/slurm_node7/uid_1000/job_4711/step_0\n0::/", {}, "4711", "0"),
        ("0::/system.slice/slurmstepd.scope/job_77/step_batch/user/task_0", {}, "77", "batch"),
        ("0::/system.slice/node7_slurmstepd.scope/job_77/step_extern", {}, "77", "extern"),
        ("0::/../../system.slice/slurmstepd.scope/job_77/step_0", {}, "77", "0"),
        ("0::/system.slice/slurmstepd.scope/job_77", {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3"}, "77", "3"),
        ("0::/system.slice/slurmstepd.scope/job_77", {"SLURM_JOB_ID": "78", "SLURM_STEP_ID": "3"}, "77", None),
        ("0::/system.slice/slurmstepd.scope/job_77", {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3\n"}, "77", None),
    ],
)
def test_slurm_by_its_cgroup(cgroup: str, environment: dict[str, str], job: str, step: str | None) -> None:
    found = attribution_from(cgroup, environment)
    assert (found.slurm_job_id, found.slurm_step_id) == (job, step)


OWN_SLICE = "/user.slice/user-1000.slice/user@1000.service"


@pytest.mark.parametrize(
    "cgroup",
    [
        "0::/",
        f"0::{OWN_SLICE}/app.slice/job_42",
        f"0::{OWN_SLICE}/system.slice/slurmstepd.scope/job_42/step_0",
        f"0::/../..{OWN_SLICE}/slurm/uid_0/job_42",
        "0::/user.slice/slurmstepd.scope/job_42/step_0",
        "0::/system.slice/theirs.service/slurm/uid_1000/job_42/step_0",
        "0::/system.slice/job_42",
        f"0::{OWN_SLICE}/kubepods/pod{UID}/{ID}",
        f"0::/..{OWN_SLICE}/kubepods/pod{UID}/{ID}",
    ],
)
def test_nobody_gets_into_a_job_or_a_pod_by_what_they_can_write_themselves(cgroup: str) -> None:
    claimed = {"SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0", "SLURM_JOBID": "42", "POD_NAME": "trainer-0"}
    assert attribution_from(cgroup, claimed) == Attribution()


def test_names_of_a_pod_from_the_environment() -> None:
    cgroup = f"0::/kubepods/pod{UID}/{ID}"
    given = {"POD_NAME": "trainer-0", "POD_NAMESPACE": "ml", "CONTAINER_NAME": "main", "HOSTNAME": "other"}
    found = attribution_from(cgroup, given)
    assert (found.pod_name, found.pod_namespace, found.container_name) == ("trainer-0", "ml", "main")
    assert attribution_from(cgroup, {"HOSTNAME": "trainer-0"}).pod_name is None, "the name of a host is none of a pod"
    assert attribution_from(cgroup, {"POD_NAME": "no\nname", "POD_NAMESPACE": "x" * 300}).pod_name is None


@pytest.mark.parametrize("cgroup", ["", "0::/", "0::/user.slice/user-1000.slice/session-3.scope", f"0::/docker/{ID}"])
def test_nobody_gets_into_a_pod_by_its_environment(cgroup: str) -> None:
    claimed = {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "HOSTNAME": "trainer-0",
        "POD_NAME": "trainer-0",
        "POD_NAMESPACE": "ml",
        "CONTAINER_NAME": "main",
    }
    assert attribution_from(cgroup, claimed) == attribution_from(cgroup, {})


@pytest.mark.parametrize(
    ("environment", "group"),
    [
        ({"JOBSET_NAME": "train"}, "train"),
        ({"JOB_NAME": "train-a"}, "train-a"),
        ({"JOBSET_NAME": "train", "JOB_NAME": "train-workers-0"}, "train"),
        ({"LWS_LEADER_ADDRESS": "serve-0.serve.ml"}, "serve-0"),
        ({"JOB_NAME": "no\nname"}, None),
        ({}, None),
    ],
)
def test_pods_of_one_job_are_told_by_what_their_environment_has_of_it(
    environment: dict[str, str], group: str | None
) -> None:
    assert attribution_from(f"0::/kubepods/pod{UID}/{ID}", environment).pod_group == group
    assert attribution_from("0::/", environment).pod_group is None


def test_steps_of_slurm_and_groups_of_pods_are_runs_of_their_own() -> None:
    def job(of: Attribution, before: Job | None = None) -> Job:
        process = replace(ScenarioHost("trn1.2xlarge", "steady").at(1).processes[0], job=before)
        found = _job(process, of)
        assert found is not None
        return found

    step = job(Attribution(slurm_job_id="17", slurm_step_id="0"))
    assert (step.name, len(step.run_id or "")) == ("Slurm job 17", 12)
    assert step.run_id == job(Attribution(slurm_job_id="17", slurm_step_id="0")).run_id
    other = job(Attribution(slurm_job_id="17", slurm_step_id="3"))
    assert (other.name, other.run_id == step.run_id) == ("Slurm job 17.3", False)
    launched = Job("torchrun exp1", 1, 4, "0123456789ab", 0, 2)
    within = job(Attribution(slurm_job_id="17", slurm_step_id="0"), launched)
    assert within == replace(launched, name="Slurm job 17", run_id=within.run_id)
    assert within.run_id not in (step.run_id, launched.run_id)
    first = job(Attribution(pod_uid="u", pod_name="a-0", pod_namespace="ml", pod_group="a"))
    second = job(Attribution(pod_uid="v", pod_name="a-1", pod_namespace="ml", pod_group="a"))
    assert first == second == Job("pod group ml/a", run_id=first.run_id)
    assert first.run_id != job(Attribution(pod_uid="u", pod_namespace="other", pod_group="a")).run_id
    pod = job(Attribution(pod_uid="u", pod_name="a-0", pod_namespace="ml"), launched)
    assert (pod.name, pod.run_id) == ("pod ml/a-0", launched.run_id)


def test_a_real_process_in_a_job(tmp_path: Path) -> None:
    """Its environment is real, its cgroup a line of a file: a cgroup of Slurm's takes root."""
    claims = {"SLURM_JOB_ID": "123", "SLURM_STEP_ID": "4"}
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, **claims}
    ) as process:
        (tmp_path / "environ").symlink_to(f"/proc/{process.pid}/environ")
        (tmp_path / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_123\n")
        wait_until(lambda: read_attribution(tmp_path) == Attribution(slurm_job_id="123", slurm_step_id="4"))
        assert read_attribution(Path(f"/proc/{process.pid}")).slurm_job_id is None
        process.communicate(b"\n", timeout=HANG_SECONDS)
    assert read_attribution(Path(f"/proc/{process.pid}")) == Attribution()


def given_process(host: ScenarioHost, **attribution: str) -> tuple[Any, Attributions]:
    now = host.at(1)
    process = replace(now.processes[0], synthetic=False)
    attributions = Attributions()
    attributions._of = lambda _: Attribution(**attribution)  # type: ignore[method-assign, assignment]
    return replace(now, processes=(process, *now.processes[1:])), attributions


def test_what_the_kubelet_says_names_the_pod_of_a_container() -> None:
    by_core = PodAllocation("by-core", "n", "c", neuroncore_indices=(0, 1))
    by_device = PodAllocation("by-device", "n", "c", device_indices=(0,))
    for allocation in (by_core, by_device):
        snapshot, attributions = given_process(ScenarioHost("trn1.32xlarge", neuroncores=2), container_id=ID)
        attributions.take_allocations((PodAllocation("else", "n", "c", device_indices=(5,)), allocation))
        attributed = attributions.attribute(snapshot)
        assert attributed.pod_allocations[1] == allocation
        found = attributed.processes[0].attribution
        assert found is not None
        assert (found.pod_name, found.container_id) == (allocation.pod_name, ID)
        assert attributed.processes[1].attribution is None, "an invented process is in no pod"
    snapshot, attributions = given_process(ScenarioHost("trn1.32xlarge", neuroncores=2), slurm_job_id="1")
    attributions.take_allocations((by_core,))
    outside = attributions.attribute(snapshot).processes[0].attribution
    assert outside is not None
    assert outside.pod_name is None, "it helps itself to cores from outside of all containers"


def test_the_daemon_believes_no_claims_of_an_attached_process(daemon: RunningDaemon) -> None:
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(100); "
        "sys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, f"{daemon.socket}.attach"],
        stdin=subprocess.PIPE,
        env={**os.environ, "SLURM_JOB_ID": "99", "KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "claimed"},
    ) as process:
        seen = wait_until(lambda: daemon.find(process.pid)).attribution or Attribution()
        assert (seen.slurm_job_id, seen.pod_name) == (None, None)
        process.communicate(b"\n", timeout=HANG_SECONDS)
