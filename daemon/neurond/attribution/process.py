"""Whose work a process is: container, pod and Slurm job, from its cgroup, its environment and the kubelet.

That a process is in a pod or a job is the word of its cgroup, which it can't write; the environment, which it can, only
refines that: names for the pod where the kubelet has none, the step of the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from neurond.attribution.names import name_of_kubernetes
from neurond.system.launchers import run_id
from neurond.system.process_environment import content, environment
from neurontools.model import Attribution, Job, PodAllocation, Process, Snapshot

MAX_CGROUP_BYTES = 64 * 2**10

# A container's directory: docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope, libpod-ID.scope, or the ID alone.
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)
# Pod UIDs have dashes, and underscores where systemd names the slice.
_POD_UID = r"[0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12}"
_POD = re.compile(rf"pod({_POD_UID})(?:\.slice)?(?:/|$)", re.MULTILINE)
# What systemd hands to users: below it they make and name the cgroups themselves.
_OF_USERS = re.compile(r"\d+:[^:]*:(?:/\.\.)*/user\.slice(?:/|$)")
# /slurm/uid_1000/job_1 (v1; with the node's name where a host has several), /system.slice/slurmstepd.scope/job_1 (v2),
# from the root on: in a cgroup of its own a service makes what it likes. A daemon in a container sees "/.." first.
_SLURM = re.compile(
    r"^\d+:[^:]*:(?:/\.\.)*(?:/slurm(?:_[^/]+)?/uid_\d+|/[^/]+\.slice/(?:[^/]+_)?slurmstepd\.scope)"
    r"/job_(\d+)(?:/step_([A-Za-z0-9]+))?(?:/|$)",
    re.MULTILINE,
)

_NOTHING = Attribution()
_Key = tuple[int, float | None, float | None]


class Attributions:
    """Remembers what each process runs in; a process is looked at when it is first seen and again while it is young.

    Belongs to the event loop's thread. `proc` is where the /proc file system is.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = Path(proc)
        self._known: dict[_Key, tuple[int, Attribution]] = {}
        self.allocations: tuple[PodAllocation, ...] = ()

    def take_allocations(self, allocations: tuple[PodAllocation, ...]) -> None:
        """Takes what the kubelet has given; it is in the snapshots from the next on."""
        self.allocations = allocations

    def attribute(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the attribution of its processes, and with what the kubelet has given."""
        keys = {_key(process) for process in snapshot.processes}
        for gone in self._known.keys() - keys:
            del self._known[gone]
        processes = tuple(self._attributed(process, snapshot) for process in snapshot.processes)
        if processes == snapshot.processes and not self.allocations:
            return snapshot
        return replace(snapshot, processes=processes, pod_allocations=self.allocations)

    def _attributed(self, process: Process, snapshot: Snapshot) -> Process:
        if process.synthetic:
            return process
        found = self._of(process)
        if self.allocations:
            found = _with_pod(found, process, self.allocations, snapshot.instance.logical_neuroncore_config)
        return process if found == _NOTHING else replace(process, attribution=found, job=_job(process, found))

    def _of(self, process: Process) -> Attribution:
        """What is read of a process: three times, for a job's starter moves it into its cgroup when it runs already."""
        key = _key(process)
        looks, found = self._known.get(key, (0, _NOTHING))
        if looks < _LOOKS:
            found = read_attribution(self._proc / str(process.pid))
            self._known[key] = (looks + 1, found)
        return found


_LOOKS = 3


def _key(process: Process) -> _Key:
    """One process, and not the next one with its PID."""
    return process.pid, process.started_at_unix_seconds, process.attached_at_unix_seconds


def read_attribution(directory: Path) -> Attribution:
    """What a /proc/PID directory tells; what can't be read (other users' environments) is None."""
    return attribution_from(
        content(directory / "cgroup", MAX_CGROUP_BYTES).decode("utf-8", "replace"),
        {
            name.decode("ascii", "replace"): value.decode("utf-8", "replace")
            for name, value in environment(directory, _VARIABLES).items()
        },
    )


def attribution_from(cgroup: str, environment: Mapping[str, str]) -> Attribution:
    """What the text of /proc/PID/cgroup and an environment tell."""
    cgroup = "\n".join(line for line in cgroup.splitlines() if not _OF_USERS.match(line))
    containers = _CONTAINER.findall(cgroup)
    pod = _POD.search(cgroup)
    slurm = _SLURM.search(cgroup)
    found = Attribution(
        container_id=containers[-1] if containers else None,  # the innermost
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
    """With the names that the kubelet has for the holder of the process's cores.

    Nobody else may use what it has given, so whoever holds it is in that pod. A process outside of all containers that
    helps itself to it is not.
    """
    if found.container_id is None and found.pod_uid is None:
        return found
    cores = {core // host_lnc for core in process.core_indices}
    is_user = bool(process.core_indices) or process.runtime_version is not None  # a monitor has devices open too
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
    """The job under the name that Slurm or Kubernetes has for it, where they do.

    Steps and runs within a job of Slurm are told apart by their run; a pod is a run of its own host, if its launcher
    does not tell more.
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


# A JobSet's name, a Job's and the address of a LeaderWorkerSet's leader, as their pods are mostly told them.
_POD_GROUPS = (b"JOBSET_NAME", b"JOB_NAME", b"LWS_LEADER_ADDRESS")
_ONLY_STEPS = (None, "0", "batch", "extern")  # mostly a job has no other that trains
_VARIABLES = frozenset(
    (
        b"CONTAINER_NAME",
        *_POD_GROUPS,
        b"POD_NAME",
        b"POD_NAMESPACE",
        b"SLURM_JOB_ID",
        b"SLURM_STEP_ID",
    )
)


def _pod_group(environment: Mapping[str, str]) -> str | None:
    """What the pods of a job have in common, by the first of the variables that tell it."""
    for variable in _POD_GROUPS:
        if told := environment.get(variable.decode("ascii")):
            return name_of_kubernetes(told.partition(".")[0])
    return None


def _step(job_id: str, environment: Mapping[str, str]) -> str | None:
    """The step of a job whose cgroup has no steps."""
    text = environment.get("SLURM_STEP_ID", "")
    is_step = len(text) <= 20 and text.isascii() and text.isdigit()
    return text if is_step and environment.get("SLURM_JOB_ID") == job_id else None
