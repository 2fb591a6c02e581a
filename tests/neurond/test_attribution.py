"""Containers, pods and jobs from real shapes of cgroups, and what a kubelet adds that answers well, badly or not."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neurond.attribution import (
    KubeletTimeouts,
    KubeletWatcher,
    ProcessAttributor,
    attribution_from,
    read_allocations,
    read_attribution,
)

from neurontools.model import Attribution, Job, PodAllocation, Process, Snapshot
from neurontools.rpc import wire
from neurontools.testing import DriverTree, process_on
from tests.harness.kubelet import Kubelet, pod, reply_of
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.scenario_host import ScenarioHost
from tests.harness.waiting import HANG_SECONDS, wait_until

ID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4
UID = "6b2a1c3d-0f4e-4a5b-8c7d-9e0f1a2b3c4d"
SLICE = UID.replace("-", "_")
SLURM = "0::/system.slice/slurmstepd.scope"


@pytest.mark.parametrize(
    ("cgroup", "container", "pod"),
    [
        # cgroup v2, systemd driver: containerd, CRI-O, Docker, Podman; then cgroupfs; then v1.
        (f"0::/kubepods.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope", ID, UID),
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
        (f"{SLURM}/job_77", {"SLURM_JOB_ID": "78", "SLURM_STEP_ID": "3"}, "77", None),
        *(
            (f"{SLURM}/job_77", {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": step}, "77", step if is_step else None)
            for step, is_step in (("3", True), ("3\n", False), ("9" * 20, True), ("9" * 21, False))
        ),
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


@pytest.mark.parametrize("cgroup", ["", "0::/user.slice/user-1000.slice/session-3.scope", f"0::/docker/{ID}"])
def test_nobody_gets_into_a_pod_by_its_environment(cgroup: str) -> None:
    claimed = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "trainer-0", "POD_NAME": "trainer-0"}
    claimed |= {"POD_NAMESPACE": "ml", "CONTAINER_NAME": "main"}
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


Attribute = Callable[..., Process]


@pytest.fixture
def attribute(tmp_path: Path) -> Attribute:
    """What a snapshot says of a process with this cgroup and environment, which holds NeuronCores 0 and 1."""

    def attributed(
        cgroup: str, allocations: tuple[PodAllocation, ...] = (), job: Job | None = None, **environment: str
    ) -> Process:
        process, *others = HOST.processes
        directory = tmp_path / str(process.pid)
        directory.mkdir(exist_ok=True)
        (directory / "cgroup").write_text(f"0::{cgroup}\n")
        (directory / "environ").write_text("".join(f"{name}={value}\0" for name, value in environment.items()))
        attributions = ProcessAttributor(str(tmp_path))
        attributions.set_allocations(allocations)
        found = attributions.attribute(replace(HOST, processes=(replace(process, synthetic=False, job=job), *others)))
        assert found.pod_allocations == allocations
        assert found.processes[1].attribution is None, "an invented process is in no pod"
        return found.processes[0]

    return attributed


HOST: Snapshot = ScenarioHost("trn1.32xlarge", neuroncores=2).at(1)
POD = f"/kubepods/pod{UID}/{ID}"


def test_steps_of_slurm_and_groups_of_pods_are_runs_of_their_own(attribute: Attribute) -> None:
    def job(cgroup: str, before: Job | None = None, **environment: str) -> Job:
        found = attribute(cgroup, job=before, **environment).job
        assert found is not None
        return found

    slurm = "/system.slice/slurmstepd.scope/job_17/step_"
    step = job(f"{slurm}0")
    assert (step.name, len(step.run_id or "")) == ("Slurm job 17", 12)
    assert step == job(f"{slurm}0")
    other = job(f"{slurm}3")
    assert (other.name, other.run_id == step.run_id) == ("Slurm job 17.3", False)
    launched = Job("torchrun exp1", 1, 4, "0123456789ab", 0, 2)
    within = job(f"{slurm}0", launched)
    assert within == replace(launched, name="Slurm job 17", run_id=within.run_id)
    assert within.run_id not in (step.run_id, launched.run_id)
    first = job(POD, POD_NAME="a-0", POD_NAMESPACE="ml", JOB_NAME="a")
    second = job(POD.replace(ID, OTHER), POD_NAME="a-1", POD_NAMESPACE="ml", JOB_NAME="a")
    assert first == second == Job("pod group ml/a", run_id=first.run_id)
    assert first.run_id != job(POD, POD_NAMESPACE="other", JOB_NAME="a").run_id
    pod = job(POD, launched, POD_NAME="a-0", POD_NAMESPACE="ml")
    assert (pod.name, pod.run_id) == ("pod ml/a-0", launched.run_id)
    assert job(POD).name == f"pod {UID}"


def test_a_real_process_in_a_job(tmp_path: Path) -> None:
    """Its environment is real, its cgroup a line of a file: a cgroup of Slurm's takes root."""
    claims = {"SLURM_JOB_ID": "123", "SLURM_STEP_ID": "4"}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={**os.environ, **claims}) as process:
        (tmp_path / "environ").symlink_to(f"/proc/{process.pid}/environ")
        (tmp_path / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_123\n")
        wait_until(lambda: read_attribution(tmp_path) == Attribution(slurm_job_id="123", slurm_step_id="4"))
        assert read_attribution(Path(f"/proc/{process.pid}")).slurm_job_id is None
        process.communicate(timeout=HANG_SECONDS)
    assert read_attribution(Path(f"/proc/{process.pid}")) == Attribution()


def test_what_the_kubelet_says_names_the_pod_of_a_container(attribute: Attribute) -> None:
    elsewhere = PodAllocation("else", "n", "c", device_indices=(5,))
    by_core = PodAllocation("by-core", "n", "c", neuroncore_indices=(0, 1))
    by_device = PodAllocation("by-device", "n", "c", device_indices=(0,))
    for allocation in (by_core, by_device):
        found = attribute(f"/docker/{ID}", (elsewhere, allocation)).attribution
        assert found is not None
        assert (found.pod_name, found.container_id) == (allocation.pod_name, ID)
    outside = attribute("/system.slice/slurmstepd.scope/job_1", (by_core,)).attribution
    assert outside is not None
    assert outside.pod_name is None, "it helps itself to cores from outside of all containers"


TRAINER = pod("trainer-0", "ml", "main", neuron=["neuron1", "0"], neuroncore=["3", "2", "1", "0"])
REPLY = reply_of(
    TRAINER,
    pod("server", "web", "app", neuroncore=["neuron-core-7"]),
    pod("other", "web", "app", gpu=["4"]),
    pod("plain", "web", "app"),
)
ALLOCATIONS = (
    PodAllocation("trainer-0", "ml", "main", (0, 1), (0, 1, 2, 3)),
    PodAllocation("server", "web", "app", (), (7,)),
)


@pytest.fixture
def kubelet(socket_directory: Path) -> Iterator[Kubelet]:
    made = Kubelet(socket_directory / "kubelet.sock", REPLY)
    yield made
    made.stop()


def test_devices_that_claims_were_given() -> None:
    """Dynamic resource allocation: the names of devices are those of the driver neuron.aws.com."""
    claimed = ["neuron.aws.com/neuron-device-4", "neuron.aws.com/neuron-device-15", "gpu.example.com/neuron-device-2"]
    reply = reply_of(pod("claims", "ml", "main", claimed=claimed), pod("efa", "ml", "main", claimed=["dra.net/efa0"]))
    assert tuple(read_allocations(reply)) == (PodAllocation("claims", "ml", "main", (4, 15)),)
    strange = reply_of(pod("claims", "ml", "main", claimed=["neuron.aws.com/ultraserver-4", "neuron.aws.com/"]))
    assert tuple(read_allocations(strange)) == (), "an index that isn't told is not guessed"


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff",
        REPLY[:-1],
        wire.encode_uint(1, 5),
        reply_of(pod("", "ml", "main", neuron=["0"])),
        reply_of(pod("tra\x1b[31miner", "ml", "main", neuron=["0"])),
        reply_of(pod("trainer", "m" * 300, "main", neuron=["0"])),
        b"<html>404</html>",
    ],
)
def test_a_garbled_reply_is_none(garbage: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        tuple(read_allocations(garbage))


@given(st.binary(max_size=200) | st.integers(0, len(REPLY)).map(lambda cut: REPLY[:cut] + b"\x0a" + REPLY[cut:]))
def test_any_bytes_are_allocations_or_a_value_error(reply: bytes) -> None:
    try:
        for allocation in read_allocations(reply):
            assert allocation.pod_name
            assert all(index < 1024 for index in (*allocation.device_indices, *allocation.neuroncore_indices))
    except ValueError:
        pass


class Heard(list[tuple[PodAllocation, ...]]):
    """What a watcher has handed on."""

    def __call__(self, allocations: tuple[PodAllocation, ...]) -> None:
        self.append(allocations)


async def test_one_bad_answer_after_the_other_changes_nothing(kubelet: Kubelet) -> None:
    kubelet.start()
    heard = Heard()
    watcher = KubeletWatcher(heard, str(kubelet.path), KubeletTimeouts(reply_seconds=HANG_SECONDS))
    await watcher.poll()
    assert (heard, watcher.warnings) == ([ALLOCATIONS], ())

    async def fails(trouble: str) -> None:
        await watcher.poll()
        assert trouble in watcher.warnings[0]
        assert watcher.warnings[0].endswith("pods are shown as last reported")

    kubelet.fault = grpc.StatusCode.INTERNAL
    await fails("INTERNAL: no pods today")
    kubelet.fault, kubelet.reply = None, b"\xff\xff"
    await fails("its reply is garbled")
    kubelet.stop()
    await fails("its socket is gone")
    assert heard == [ALLOCATIONS]


async def test_it_goes_by_the_next_good_answer_also_by_one_without_pods(kubelet: Kubelet) -> None:
    kubelet.fault = grpc.StatusCode.INTERNAL
    kubelet.start()
    heard = Heard()
    watcher = KubeletWatcher(heard, str(kubelet.path))
    assert [await watcher.poll() for _ in range(9)] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert heard == []
    kubelet.fault, kubelet.reply = None, reply_of()
    assert await watcher.poll() == 10.0
    assert (heard, watcher.warnings) == ([()], ())
    kubelet.fault = grpc.StatusCode.INTERNAL
    assert await watcher.poll() == 1.0


async def test_an_answer_does_not_hold_for_ever(kubelet: Kubelet) -> None:
    kubelet.start()
    heard = Heard()
    watcher = KubeletWatcher(heard, str(kubelet.path), KubeletTimeouts(held_seconds=0.0))
    await watcher.poll()
    kubelet.fault = grpc.StatusCode.UNAVAILABLE
    for _ in range(3):
        await watcher.poll()
        assert heard == [ALLOCATIONS, ()]
        assert watcher.warnings[0].endswith("(UNAVAILABLE: no pods today): pods may have no names")
    kubelet.stop()
    assert await watcher.poll() == 10.0
    assert watcher.warnings == ()


async def test_a_host_without_a_kubelet_is_no_trouble_and_one_that_does_not_answer_is(kubelet: Kubelet) -> None:
    heard = Heard()
    watcher = KubeletWatcher(heard, str(kubelet.path), KubeletTimeouts(reply_seconds=0.05))
    assert await watcher.poll() == 10.0
    assert (watcher.warnings, heard) == ((), [])
    start = f"the kubelet at unix:{kubelet.path} doesn't list its pods"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(kubelet.path))
        assert await watcher.poll() == 1.0
    assert watcher.warnings[0].startswith(f"{start} (UNAVAILABLE")
    assert watcher.warnings[0].endswith("): pods may have no names")
    kubelet.path.unlink()
    kubelet.hung = True
    kubelet.start()
    assert await watcher.poll() == 2.0
    assert watcher.warnings[0].startswith(f"{start} (DEADLINE_EXCEEDED: ")


def pod_of(daemon: RunningDaemon, pid: int) -> tuple[str | None, str | None] | None:
    process = daemon.find(pid)
    if process is None or process.attribution is None:
        return None
    return process.attribution.pod_name, process.attribution.container_name


def test_a_daemon_names_the_pods_of_processes_once_the_kubelet_answers_well(
    start_daemon: StartDaemon, kubelet: Kubelet, tmp_path: Path
) -> None:
    """The processes are those of the tree below --proc-root, and so are their cgroups."""
    configuration = tmp_path / "neurond.toml"
    configuration.write_text(f'[kubernetes]\npod_resources_socket = "{kubelet.path}"\n')
    kubelet.reply = b"\xff"
    kubelet.start()
    with DriverTree("trn1.32xlarge") as tree:
        tree.set_processes(
            process_on(4711, "python train.py", cores=(0, 1), runtime_version="2.34.10"),
            process_on(4712, "python serve.py", cores=(6, 7), runtime_version="2.34.10"),
            process_on(4713, "python other.py", cores=(20,), runtime_version="2.34.10"),
        )
        for pid in (4711, 4712, 4713):
            environment = Path(tree.roots.proc, str(pid), "environ")
            tree.write(f"proc/{pid}/environ", environment.read_text() + "HOSTNAME=the-node\0")
            tree.write(f"proc/{pid}/cgroup", f"0::{POD}\n")
        daemon = start_daemon(*tree.flags, "--config", str(configuration), "--interval", "0.05")
        told = f"the kubelet at unix:{kubelet.path} doesn't list its pods"
        wait_until(lambda: any(warning.startswith(told) for warning in daemon.snapshot().warnings))
        assert pod_of(daemon, 4711) == (None, None)
        kubelet.reply = reply_of(TRAINER, pod("claims", "ml", "main", claimed=["neuron.aws.com/neuron-device-3"]))
        wait_until(lambda: pod_of(daemon, 4711) == ("trainer-0", "main"))
        assert (pod_of(daemon, 4712), pod_of(daemon, 4713)) == (("claims", "main"), (None, None))
        wait_until(lambda: not any(warning.startswith(told) for warning in daemon.snapshot().warnings))
        assert daemon.log.count(told) == 1
