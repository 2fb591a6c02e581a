"""Pods by the kubelet's word: a real gRPC server that answers well, badly, late or not at all."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neurond.attribution.kubelet import KubeletWatcher, Patience
from neurond.attribution.pod_resources import METHOD, read_allocations

from neurontools.model import PodAllocation
from neurontools.rpc import wire
from neurontools.testing import DriverTree, process_on
from tests.harness import kubelet as harness
from tests.harness.kubelet import Kubelet, pod, reply_of
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until, wait_until_async

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


def test_a_reply_of_the_kubelet() -> None:
    assert METHOD == harness.METHOD
    assert tuple(read_allocations(REPLY)) == ALLOCATIONS
    assert tuple(read_allocations(b"")) == ()


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


PATIENCE = Patience(interval_seconds=0.02, reply_seconds=0.2, first_retry_seconds=0.02, longest_retry_seconds=0.1)


class Heard:
    """What a watcher hands on."""

    def __init__(self) -> None:
        self.latest: tuple[PodAllocation, ...] | None = None
        self.times = 0

    def __call__(self, allocations: tuple[PodAllocation, ...]) -> None:
        self.latest = allocations
        self.times += 1


async def test_one_bad_answer_after_the_other_changes_nothing(kubelet: Kubelet) -> None:
    kubelet.start()
    heard = Heard()
    watcher = KubeletWatcher(heard, str(kubelet.path), PATIENCE)
    watcher.start()

    def heard_well(*allocations: PodAllocation) -> bool:
        """Whether the latest answer was this; on a busy machine one may come too late."""
        return heard.latest == allocations and watcher.warnings == ()

    await wait_until_async(lambda: heard_well(*ALLOCATIONS))

    async def told_of(trouble: str) -> None:
        await wait_until_async(lambda: trouble in "".join(watcher.warnings))
        assert watcher.warnings[0].endswith("pods are shown as it said last")
        assert heard.latest == ALLOCATIONS

    kubelet.fault = grpc.StatusCode.INTERNAL
    await told_of("INTERNAL: no pods today")
    kubelet.fault, kubelet.reply = None, b"\xff\xff"
    await told_of("its reply is garbled")
    kubelet.reply, kubelet.hung = REPLY, True
    await told_of("DEADLINE_EXCEEDED")
    kubelet.stop()
    await told_of("its socket is gone")
    kubelet.hung, kubelet.reply = False, reply_of(pod("next", "ml", "main", neuron=["15"]))
    kubelet.start()
    await wait_until_async(lambda: heard_well(PodAllocation("next", "ml", "main", (15,))))
    kubelet.reply = reply_of()
    await wait_until_async(heard_well)  # an answer without pods is an answer
    await watcher.close()


async def test_an_answer_does_not_hold_for_ever(kubelet: Kubelet) -> None:
    kubelet.start()
    heard = Heard()
    watcher = KubeletWatcher(
        heard,
        str(kubelet.path),
        Patience(interval_seconds=0.02, first_retry_seconds=0.01, longest_retry_seconds=0.02, held_seconds=0.3),
    )
    watcher.start()
    await wait_until_async(lambda: heard.latest == ALLOCATIONS)
    kubelet.fault = grpc.StatusCode.UNAVAILABLE
    await wait_until_async(lambda: heard.latest == ())
    assert watcher.warnings[0].endswith("(UNAVAILABLE: no pods today): pods may have no names")
    asked = kubelet.asked_total
    await wait_until_async(lambda: kubelet.asked_total > asked + 3)
    assert watcher.warnings[0].endswith("(UNAVAILABLE: no pods today): pods may have no names")
    kubelet.stop()
    await wait_until_async(lambda: watcher.warnings == ())
    await watcher.close()


async def test_pauses_grow(kubelet: Kubelet) -> None:
    kubelet.fault = grpc.StatusCode.INTERNAL
    kubelet.start()
    watcher = KubeletWatcher(Heard(), str(kubelet.path))
    pauses = [await watcher._round() for _ in range(9)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    kubelet.fault = None
    assert await watcher._round() == 10.0
    kubelet.fault = grpc.StatusCode.INTERNAL
    assert await watcher._round() == 1.0


async def test_a_host_without_a_kubelet_is_no_trouble(tmp_path: Path) -> None:
    heard = Heard()
    watcher = KubeletWatcher(heard, str(tmp_path / "kubelet.sock"))
    assert await watcher._round() == 10.0
    assert (watcher.warnings, heard.times) == ((), 0)


async def test_a_socket_that_nobody_serves(socket_directory: Path) -> None:
    path = socket_directory / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        watcher = KubeletWatcher(Heard(), str(path))
        assert await watcher._round() == 1.0
    assert watcher.warnings[0].startswith(f"the kubelet at unix:{path} doesn't tell its pods (UNAVAILABLE")
    assert watcher.warnings[0].endswith("): pods may have no names")


UID = "6b2a1c3d-0f4e-4a5b-8c7d-9e0f1a2b3c4d"
CGROUP = f"0::/kubepods/besteffort/pod{UID}/{'0123456789abcdef' * 4}\n"


def put_into_pod(tree: DriverTree, pid: int) -> None:
    """Gives a process of the tree a pod's cgroup, and a host's name."""
    environment = Path(tree.roots.proc, str(pid), "environ")
    tree.write(f"proc/{pid}/environ", environment.read_text() + "HOSTNAME=the-node\0")
    tree.write(f"proc/{pid}/cgroup", CGROUP)


def pod_of(daemon: RunningDaemon, pid: int) -> tuple[str | None, str | None] | None:
    process = daemon.find(pid)
    if process is None or process.attribution is None:
        return None
    return process.attribution.pod_name, process.attribution.container_name


def test_a_daemon_keeps_the_pods_of_processes_while_the_kubelet_fails(
    start_daemon: StartDaemon, kubelet: Kubelet, tmp_path: Path
) -> None:
    """The process is one of the tree below --proc-root, and so is its cgroup."""
    configuration = tmp_path / "neurond.toml"
    configuration.write_text(f'[kubernetes]\npod_resources_socket = "{kubelet.path}"\n')
    kubelet.start()
    with DriverTree("trn1.32xlarge") as tree:
        tree.set_processes(process_on(4711, "python train.py", cores=(0, 1), runtime_version="2.34.10"))
        put_into_pod(tree, 4711)
        daemon = start_daemon(*tree.flags, "--config", str(configuration), "--interval", "0.05")
        wait_until(lambda: pod_of(daemon, 4711) == ("trainer-0", "main"))
        kubelet.reply = b"\xff"
        told = f"the kubelet at unix:{kubelet.path} doesn't tell its pods"
        wait_until(lambda: any(warning.startswith(told) for warning in daemon.snapshot().warnings))
        assert pod_of(daemon, 4711) == ("trainer-0", "main")
        assert daemon.log.count(told) == 1
        kubelet.reply = REPLY
        wait_until(lambda: not any(warning.startswith(told) for warning in daemon.snapshot().warnings))
        assert pod_of(daemon, 4711) == ("trainer-0", "main")


def test_a_process_without_the_kubelets_word_has_no_hosts_name(
    start_daemon: StartDaemon, kubelet: Kubelet, tmp_path: Path
) -> None:
    configuration = tmp_path / "neurond.toml"
    configuration.write_text(f'[kubernetes]\npod_resources_socket = "{kubelet.path}"\n')
    kubelet.reply = reply_of(pod("claims", "ml", "main", claimed=["neuron.aws.com/neuron-device-3"]))
    kubelet.start()
    with DriverTree("trn1.32xlarge") as tree:
        tree.set_processes(
            process_on(4711, "a", cores=(0,), runtime_version="2.34.10"),
            process_on(4712, "b", cores=(6, 7), runtime_version="2.34.10"),
        )
        for pid in (4711, 4712):
            put_into_pod(tree, pid)
        daemon = start_daemon(*tree.flags, "--config", str(configuration), "--interval", "0.05")
        wait_until(lambda: pod_of(daemon, 4712) == ("claims", "main"))
        assert pod_of(daemon, 4711) == (None, None)
