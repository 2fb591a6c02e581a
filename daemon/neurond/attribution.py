"""Attributes processes to containers, pods and jobs, from cgroups, environments and the kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc

from neurond.system.processes import read_environment, read_limited, run_id
from neurontools.model import Attribution, Job, PodAllocation, Process, Snapshot
from neurontools.rpc import wire
from neurontools.util.terminal import excerpt

MAX_REPLY_BYTES = 16 * 2**20  # the largest reply that the kubelet's own clients accept
_MAX_CAUSE_CHARACTERS = 200

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KubeletTimeouts:
    interval_seconds: float = 10.0
    reply_seconds: float = 5.0
    first_retry_seconds: float = 1.0  # pause after a failed request; doubles with each further failure
    longest_retry_seconds: float = 60.0
    held_seconds: float = 300.0


class KubeletWatcher:
    """Asks the kubelet periodically for the devices of pods, and calls `on_allocations` with each valid answer.

    Keeps the last good answer for `held_seconds`: a kubelet restart is far likelier than every pod losing its devices.
    After that, calls `on_allocations` with ().
    """

    def __init__(
        self,
        on_allocations: Callable[[tuple[PodAllocation, ...]], None],
        socket: str,
        patience: KubeletTimeouts | None = None,
    ) -> None:
        self._on_allocations = on_allocations
        self._socket = socket
        self._patience = patience or KubeletTimeouts()
        self._task: asyncio.Task[None] | None = None
        self._answered_at_seconds: float | None = None  # time of the last answer; None: expired, or no answer yet
        self._failures = 0
        self._problem = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        if not self._problem:
            return ()
        shown = "pods are shown as last reported" if self._answered_at_seconds is not None else "pods may have no names"
        return (f"the kubelet at unix:{self._socket} doesn't list its pods ({self._problem}): {shown}",)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _watch(self) -> None:
        while True:
            pause_seconds = await self.poll()
            await asyncio.sleep(pause_seconds)

    async def poll(self) -> float:
        """Asks the kubelet once and handles its answer. Returns the seconds until the next request."""
        if os.path.exists(self._socket):  # noqa: ASYNC240, PTH110 - a local path, so it does not block
            try:
                found = await self._fetch_allocations()
            except Exception as error:
                # An error in handling one reply must not end the task that polls the kubelet.
                return self._handle_failure(_cause(error))
            return self._handle_reply(found)
        if self._answered_at_seconds is not None or self._problem:
            return self._handle_failure("its socket is gone")
        return self._patience.interval_seconds

    async def _fetch_allocations(self) -> tuple[PodAllocation, ...]:
        options = (("grpc.max_receive_message_length", MAX_REPLY_BYTES), ("grpc.use_local_subchannel_pool", 1))
        async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=options) as channel:
            ask: Any = channel.unary_unary(METHOD)  # without serializers, request and reply are raw bytes
            reply: bytes = await ask(b"", timeout=self._patience.reply_seconds)
        # Parsing a megabyte takes 0.25 s, during which the event loop would be blocked.
        return await asyncio.to_thread(lambda: tuple(read_allocations(reply)))

    def _handle_reply(self, found: tuple[PodAllocation, ...]) -> float:
        if self._problem:
            _log.info("the kubelet at unix:%s tells its pods again", self._socket)
        self._answered_at_seconds, self._failures, self._problem = time.monotonic(), 0, ""
        self._on_allocations(found)
        return self._patience.interval_seconds

    def _handle_failure(self, cause: str) -> float:
        answered = self._answered_at_seconds
        if answered is not None and time.monotonic() - answered >= self._patience.held_seconds:
            self._answered_at_seconds = None
            self._on_allocations(())
        self._problem = cause
        if self._answered_at_seconds is None and not os.path.exists(self._socket):  # noqa: PTH110
            self._failures, self._problem = 0, ""  # the socket is gone: no kubelet runs any more
            return self._patience.interval_seconds
        self._failures += 1
        pause = self._patience.first_retry_seconds * 2.0 ** min(self._failures - 1, 30)
        return min(pause, self._patience.longest_retry_seconds)


def _cause(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return excerpt(f"{error.code().name}: {error.details()}", _MAX_CAUSE_CHARACTERS)
    return excerpt(f"its reply is garbled: {error}", _MAX_CAUSE_CHARACTERS)


MAX_NAME_CHARACTERS = 253  # longest name of a pod
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


def name_of_kubernetes(text: str | None) -> str | None:
    """Returns the text if it is a valid name of a pod, namespace or container; else None."""
    return text if text and len(text) <= MAX_NAME_CHARACTERS and _NAME.fullmatch(text) else None


METHOD = "/v1.PodResourcesLister/List"

DEVICE_RESOURCES = frozenset(("aws.amazon.com/neuron", "aws.amazon.com/neurondevice"))
CORE_RESOURCES = frozenset(("aws.amazon.com/neuroncore",))
DRA_DRIVER = "neuron.aws.com"

# Field numbers of messages in the kubelet's PodResources API
_POD_RESOURCES = 1  # field number in the message ListPodResourcesResponse
_POD_NAME, _POD_NAMESPACE, _POD_CONTAINERS = 1, 2, 3  # PodResources
_CONTAINER_NAME, _CONTAINER_DEVICES, _CONTAINER_DYNAMIC = 1, 2, 5  # ContainerResources
_RESOURCE_NAME, _DEVICE_IDS = 1, 2  # ContainerDevices
_CLAIM_RESOURCES = 4  # DynamicResource
_CLAIM_DRIVER, _CLAIM_DEVICE = 2, 4  # field numbers in the message ClaimResource, since Kubernetes 1.31

_MOST_INDICES = 1024  # more than any host has
_INDEX = re.compile(r"[0-9]{1,4}$")
_DRA_DEVICE = re.compile(r"neuron-device-([0-9]{1,4})")

_Fields = dict[int, list[int | bytes]]


def read_allocations(reply: bytes) -> Iterator[PodAllocation]:
    """Yields the containers with Neuron devices or cores of a ListPodResourcesResponse.

    Raises ValueError for an invalid message, or if such a container or its pod has an invalid name.
    """
    for pod in _messages(wire.decode(reply), _POD_RESOURCES):
        name, namespace = _text(pod, _POD_NAME), _text(pod, _POD_NAMESPACE)
        for container in _messages(pod, _POD_CONTAINERS):
            devices, cores = _granted_indices(container)
            if devices or cores:
                names = (name, namespace, _text(container, _CONTAINER_NAME))
                if not all(map(name_of_kubernetes, names)):
                    raise ValueError("it gives devices to a pod whose name can't be one")
                yield PodAllocation(*names, tuple(sorted(devices)), tuple(sorted(cores)))


def _granted_indices(container: _Fields) -> tuple[set[int], set[int]]:
    """Returns the indices of the devices, and of the logical cores, that the kubelet gave to a container."""
    devices: set[int] = set()
    cores: set[int] = set()
    for given in _messages(container, _CONTAINER_DEVICES):
        resource = _text(given, _RESOURCE_NAME)
        target = devices if resource in DEVICE_RESOURCES else cores if resource in CORE_RESOURCES else None
        if target is not None:
            target.update(_indices(given.get(_DEVICE_IDS, ())))
    for claim in _messages(container, _CONTAINER_DYNAMIC):
        for resource_of_claim in _messages(claim, _CLAIM_RESOURCES):
            if _text(resource_of_claim, _CLAIM_DRIVER) == DRA_DRIVER:
                device = _DRA_DEVICE.fullmatch(_text(resource_of_claim, _CLAIM_DEVICE))
                if device is not None and int(device[1]) < _MOST_INDICES:
                    devices.add(int(device[1]))
    return devices, cores


def _messages(fields: _Fields, number: int) -> Iterator[_Fields]:
    for value in fields.get(number, ()):
        if not isinstance(value, bytes):
            raise ValueError(f"field {number} is no message")
        yield wire.decode(value)


def _text(fields: _Fields, number: int) -> str:
    value = fields.get(number, [b""])[-1]
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} is no string")
    return value.decode("utf-8", "replace")


def _indices(ids: Iterable[int | bytes]) -> Iterator[int]:
    """Yields the indices at the end of device ids such as "3", "neuron3" or "neuron-core-3"."""
    for value in ids:
        match = _INDEX.search(value.decode("utf-8", "replace")) if isinstance(value, bytes) else None
        if match is not None and int(match[0]) < _MOST_INDICES:
            yield int(match[0])


MAX_CGROUP_BYTES = 64 * 2**10

# Forms of a container's cgroup: docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope, libpod-ID.scope, or the ID.
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)
# Pattern of a pod UID, whose separators are dashes, or underscores if systemd names the slice.
_POD_UID = r"[0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12}"
_POD = re.compile(rf"pod({_POD_UID})(?:\.slice)?(?:/|$)", re.MULTILINE)
# systemd delegates this part of the cgroup tree to users. It is ignored, because users choose the cgroup names in it.
_USER_SLICE = re.compile(r"\d+:[^:]*:(?:/\.\.)*/user\.slice(?:/|$)")
# The cgroup of a Slurm job: /slurm/uid_1000/job_1 (cgroup v1) or /system.slice/slurmstepd.scope/job_1 (v2).
# If a host runs several Slurm nodes, the path has slurm_NAME or NAME_slurmstepd.scope, where NAME is the node's name.
# This pattern for Slurm starts at the root of the cgroup tree: a service can choose any names in its own cgroup.
# The cgroup paths that a daemon in a container reads begin with "/..".
_SLURM = re.compile(
    r"^\d+:[^:]*:(?:/\.\.)*(?:/slurm(?:_[^/]+)?/uid_\d+|/[^/]+\.slice/(?:[^/]+_)?slurmstepd\.scope)"
    r"/job_(\d+)(?:/step_([A-Za-z0-9]+))?(?:/|$)",
    re.MULTILINE,
)

_NOTHING = Attribution()
_Key = tuple[int, float | None, float | None]


class ProcessAttributor:
    """Reads the attribution of each process, and caches it after three reads.

    Belongs to the event loop's thread. `proc` is where /proc is mounted.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = Path(proc)
        self._cache: dict[_Key, tuple[int, Attribution]] = {}
        self.allocations: tuple[PodAllocation, ...] = ()

    def set_allocations(self, allocations: tuple[PodAllocation, ...]) -> None:
        self.allocations = allocations

    def attribute(self, snapshot: Snapshot) -> Snapshot:
        keys = {_key(process) for process in snapshot.processes}
        for gone in self._cache.keys() - keys:
            del self._cache[gone]
        processes = tuple(self._attribute_process(process, snapshot) for process in snapshot.processes)
        if processes == snapshot.processes and not self.allocations:
            return snapshot
        return replace(snapshot, processes=processes, pod_allocations=self.allocations)

    def _attribute_process(self, process: Process, snapshot: Snapshot) -> Process:
        if process.synthetic:
            return process
        found = self._read_cached(process)
        if self.allocations:
            found = _with_pod(found, process, self.allocations, snapshot.instance.logical_neuroncore_config)
        return process if found == _NOTHING else replace(process, attribution=found, job=_job(process, found))

    def _read_cached(self, process: Process) -> Attribution:
        """Returns the attribution of a process by its cgroup and environment.

        Reads them up to three times, because a launcher may move a process to the job's cgroup after its start.
        """
        key = _key(process)
        read_count, found = self._cache.get(key, (0, _NOTHING))
        if read_count < _MOST_READS:
            found = read_attribution(self._proc / str(process.pid))
            self._cache[key] = (read_count + 1, found)
        return found


_MOST_READS = 3


def _key(process: Process) -> _Key:
    """Returns a key that identifies a process even if its PID is reused."""
    return process.pid, process.started_at_unix_seconds, process.attached_at_unix_seconds


def read_attribution(directory: Path) -> Attribution:
    """Reads the attribution of a process from its /proc/PID directory.

    Fields that can't be read, such as those from another user's environment, are None.
    """
    return attribution_from(
        read_limited(directory / "cgroup", MAX_CGROUP_BYTES).decode("utf-8", "replace"),
        {
            name.decode("ascii", "replace"): value.decode("utf-8", "replace")
            for name, value in read_environment(directory, _VARIABLES).items()
        },
    )


def attribution_from(cgroup: str, environment: Mapping[str, str]) -> Attribution:
    cgroup = "\n".join(line for line in cgroup.splitlines() if not _USER_SLICE.match(line))
    containers = _CONTAINER.findall(cgroup)
    pod = _POD.search(cgroup)
    slurm = _SLURM.search(cgroup)
    found = Attribution(
        container_id=containers[-1] if containers else None,  # the innermost container
        container_name=name_of_kubernetes(environment.get("CONTAINER_NAME")) if pod else None,
        pod_uid=pod[1].replace("_", "-") if pod else None,
        pod_name=name_of_kubernetes(environment.get("POD_NAME")) if pod else None,
        pod_namespace=name_of_kubernetes(environment.get("POD_NAMESPACE")) if pod else None,
        slurm_job_id=slurm[1] if slurm else None,
        slurm_step_id=(slurm[2] or _step(slurm[1], environment)) if slurm else None,
        pod_group=_pod_group(environment) if pod else None,
    )
    return _NOTHING if found == _NOTHING else found


def _with_pod(found: Attribution, process: Process, allocations: Iterable[PodAllocation], host_lnc: int) -> Attribution:
    """Adds the names of the pod and container to which the kubelet gave the process's cores or devices.

    An allocation is exclusive, so a process that holds these cores belongs to that pod. The attribution of a process
    outside of all containers is returned unchanged.
    """
    if found.container_id is None and found.pod_uid is None:
        return found
    cores = {core // host_lnc for core in process.core_indices}
    # A monitoring tool opens devices too, but has neither cores nor a runtime version.
    is_user = bool(process.core_indices) or process.runtime_version is not None
    devices = set(process.device_indices) if is_user else set()
    for allocation in allocations:
        given_cores = set(allocation.neuroncore_indices)
        if (given_cores and cores and cores <= given_cores) or (devices and devices <= set(allocation.device_indices)):
            return replace(
                found,
                pod_name=allocation.pod_name,
                pod_namespace=allocation.pod_namespace,
                container_name=allocation.container_name,
            )
    return found


def _job(process: Process, of: Attribution) -> Job | None:
    """Returns the job of a process, named after Slurm or Kubernetes if the process runs under one of them.

    Each step of a Slurm job has its own run id. A pod outside of a pod group keeps the run id of its process.
    """
    job = process.job or Job("")
    if of.slurm_job_id:
        run = run_id("Slurm", of.slurm_job_id, of.slurm_step_id or "", job.run_id or "")
        step = "" if of.slurm_step_id in _ONLY_STEPS else f".{of.slurm_step_id}"
        return replace(job, name=f"Slurm job {of.slurm_job_id}{step}", run_id=run)
    namespace = f"{of.pod_namespace}/" if of.pod_namespace else ""
    if of.pod_group:
        run = run_id("pods", of.pod_group, of.pod_namespace or "", job.run_id or "")
        return replace(job, name=f"pod group {namespace}{of.pod_group}", run_id=run)
    if of.pod_name:
        return replace(job, name=f"pod {namespace}{of.pod_name}")
    if of.pod_uid:
        return replace(job, name=f"pod {of.pod_uid}")
    return process.job


# Environment variables that hold the name of a JobSet or Job, or the address of a LeaderWorkerSet's leader.
_POD_GROUPS = (b"JOBSET_NAME", b"JOB_NAME", b"LWS_LEADER_ADDRESS")
# A job's name omits these Slurm steps, because most jobs train in one of them.
_ONLY_STEPS = (None, "0", "batch", "extern")
_VARIABLES = (b"CONTAINER_NAME", *_POD_GROUPS, b"POD_NAME", b"POD_NAMESPACE", b"SLURM_JOB_ID", b"SLURM_STEP_ID")


def _pod_group(environment: Mapping[str, str]) -> str | None:
    for variable in _POD_GROUPS:
        if group := environment.get(variable.decode("ascii")):
            return name_of_kubernetes(group.partition(".")[0])
    return None


def _step(job_id: str, environment: Mapping[str, str]) -> str | None:
    """Returns the Slurm step that the environment of a process names. It serves cgroup paths without a step."""
    text = environment.get("SLURM_STEP_ID", "")
    is_step = len(text) <= 20 and text.isascii() and text.isdigit()
    return text if is_step and environment.get("SLURM_JOB_ID") == job_id else None
