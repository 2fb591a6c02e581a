"""Whose work it is: the container, pod and job that a process or a device belongs to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attribution:
    """What a process runs in, from its cgroup and environment and from the kubelet; None where there is none.

    The pod's name and namespace are known where the kubelet tells them, or the process's environment does.
    """

    container_id: str | None = None  # 64 hexadecimal digits, as the container runtime has it
    container_name: str | None = None
    pod_uid: str | None = None
    pod_name: str | None = None
    pod_namespace: str | None = None
    slurm_job_id: str | None = None
    slurm_step_id: str | None = None
    pod_group: str | None = None  # the JobSet, Job or leader of pods that work together, where their environment has it


@dataclass(frozen=True, slots=True)
class Job:
    """The job that a process is part of: processes that work together, here or on several hosts."""

    name: str
    """Its name on this host: "Slurm job 17", "pod default/train-0", "torchrun exp1", "job of PID 4711",
    "process group 4711", "synthetic load steady"."""

    rank: int | None = None
    world_size: int | None = None  # ranks on all hosts
    run_id: str | None = None
    """12 hexadecimal digits that are the same on all hosts of one run, and of no other; None: it is of this host alone,
    as far as its launcher tells."""

    first_rank_here: int | None = None  # of those that its launcher started on this host, in a row
    ranks_here: int | None = None  # how many these are


@dataclass(frozen=True, slots=True)
class PodAllocation:
    """What the kubelet has given to a container of a pod, used or not."""

    pod_name: str
    pod_namespace: str
    container_name: str
    device_indices: tuple[int, ...] = ()
    neuroncore_indices: tuple[int, ...] = ()  # logical, under the LNC of the host
