"""What a kubelet's pod-resources API says of Neuron devices and cores, from the bytes of its reply.

https://github.com/kubernetes/kubelet/blob/master/pkg/apis/podresources/v1/api.proto; the few fields of it that are
needed are decoded by hand. A container has devices from a device plugin, or from claims that the driver of dynamic
resource allocation (DRA) serves: https://awsdocs-neuron.readthedocs-hosted.com/en/latest/deploy/eks/dra.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from neurond.attribution.names import name_of_kubernetes
from neurontools.model import PodAllocation
from neurontools.rpc import wire

METHOD = "/v1.PodResourcesLister/List"

DEVICE_RESOURCES = frozenset(("aws.amazon.com/neuron", "aws.amazon.com/neurondevice"))
CORE_RESOURCES = frozenset(("aws.amazon.com/neuroncore",))
DRA_DRIVER = "neuron.aws.com"

# Fields of the messages.
_POD_RESOURCES = 1  # ListPodResourcesResponse
_POD_NAME, _POD_NAMESPACE, _POD_CONTAINERS = 1, 2, 3  # PodResources
_CONTAINER_NAME, _CONTAINER_DEVICES, _CONTAINER_DYNAMIC = 1, 2, 5  # ContainerResources
_RESOURCE_NAME, _DEVICE_IDS = 1, 2  # ContainerDevices
_CLAIM_RESOURCES = 4  # DynamicResource
_CLAIM_DRIVER, _CLAIM_DEVICE = 2, 4  # ClaimResource, since Kubernetes 1.31

_MOST_INDICES = 1024  # more than any host has
_INDEX = re.compile(r"[0-9]{1,4}$")
_DRA_DEVICE = re.compile(r"neuron-device-([0-9]{1,4})")

_Fields = dict[int, list[int | bytes]]


def read_allocations(reply: bytes) -> Iterator[PodAllocation]:
    """The containers that were given Neuron devices or cores, from a ListPodResourcesResponse.

    ValueError for bytes that are no such message, and where a container with devices has names that no pod can have:
    such a reply is garbled as a whole.
    """
    for pod in _messages(wire.decode(reply), _POD_RESOURCES):
        name, namespace = _text(pod, _POD_NAME), _text(pod, _POD_NAMESPACE)
        for container in _messages(pod, _POD_CONTAINERS):
            devices, cores = _given(container)
            if devices or cores:
                names = (name, namespace, _text(container, _CONTAINER_NAME))
                if not all(map(name_of_kubernetes, names)):
                    raise ValueError("it gives devices to a pod whose name can't be one")
                yield PodAllocation(*names, tuple(sorted(devices)), tuple(sorted(cores)))


def _given(container: _Fields) -> tuple[set[int], set[int]]:
    """Indices of devices and of logical cores."""
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
    """The indices that device plugins put at the end of their ids: "3", "neuron3", "neuron-core-3"."""
    for value in ids:
        match = _INDEX.search(value.decode("utf-8", "replace")) if isinstance(value, bytes) else None
        if match is not None and int(match[0]) < _MOST_INDICES:
            yield int(match[0])
