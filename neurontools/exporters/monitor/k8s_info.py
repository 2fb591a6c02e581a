"""neuron_k8s_info: which pod has which core and which device."""

from __future__ import annotations

from neurontools.exporters.monitor.period import Period
from neurontools.exporters.monitor.record_types import K8sUser, NeuronK8sInfo
from neurontools.model import Snapshot


def neuron_k8s_info(period: Period) -> NeuronK8sInfo:
    """The pods as the kubelet has given them cores and devices, and those whose processes hold some all the same."""
    cores: dict[int, K8sUser] = {}
    devices: dict[int, K8sUser] = {}
    snapshot = period.now
    per_device = snapshot.instance.physical_cores_per_device // snapshot.instance.logical_neuroncore_config
    for allocation in snapshot.pod_allocations:
        who = allocation.pod_name, allocation.pod_namespace, allocation.container_name
        given = {*allocation.neuroncore_indices}
        for device in allocation.device_indices:
            _add(devices, device, *who)
            given |= set(range(device * per_device, (device + 1) * per_device))
        for core in given:
            _add(cores, core, *who)
    _add_processes(snapshot, cores, devices)
    return {
        "period": period.seconds,
        "neuroncores_k8s_info": _by_text(cores),
        "neurondevices_k8s_info": _by_text(devices),
        "error": "",
    }


def _add_processes(snapshot: Snapshot, cores: dict[int, K8sUser], devices: dict[int, K8sUser]) -> None:
    lnc = snapshot.instance.logical_neuroncore_config
    for process in snapshot.processes:
        of = process.attribution
        if of is None or of.pod_name is None or not process.core_indices:
            continue
        who = of.pod_name, of.pod_namespace or "", of.container_name or ""
        for core in sorted({index // lnc for index in process.core_indices}):
            _add(cores, core, *who)
        for device in process.device_indices:
            _add(devices, device, *who)


def _add(users: dict[int, K8sUser], index: int, pod_name: str, namespace: str, container_name: str) -> None:
    """The first pod counts: a core has one; its containers are listed."""
    user = users.setdefault(index, {"pod_name": pod_name, "namespace": namespace, "container_name": []})
    is_same = user["pod_name"] == pod_name and user["namespace"] == namespace
    if is_same and container_name and container_name not in user["container_name"]:
        user["container_name"].append(container_name)


def _by_text(users: dict[int, K8sUser]) -> dict[str, K8sUser]:
    return dict(sorted((str(index), user) for index, user in users.items()))
