"""The NeuronCores of a process: as its environment asks for them, and as a daemon grants them."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.driver.neuron_runtime import CoreRequest
from neurontools.rpc import neuron_pb2
from neurontools.runtime.reporting.accounts import sendable

_LONGEST_TAG, _LONGEST_VERSION = 255, 64


@dataclass(frozen=True, slots=True)
class Core:
    """A NeuronCore of this process; None is what no daemon has told."""

    local_index: int
    neuroncore_index: int | None = None  # logical, on the host
    device_index: int | None = None
    hbm_bytes: int | None = None  # that it can allocate from
    hbm_index: int | None = None  # its HBM stack on the device


def cores_asked_for(request: CoreRequest) -> tuple[Core, ...]:
    """The cores as far as the request tells; one when it asks for all, whose number only a daemon knows."""
    first = request.first
    return tuple(
        Core(local_index, None if first is None else first + local_index) for local_index in range(request.count or 1)
    )


def granted_cores(response: neuron_pb2.AttachResponse) -> tuple[Core, ...]:
    """The cores that a daemon granted."""
    return tuple(
        Core(local_index, core.neuroncore_index, core.device_index, core.hbm_bytes, core.hbm_index)
        for local_index, core in enumerate(response.cores)
    )


def attach_request(request: CoreRequest, tag: str, runtime_version: str) -> neuron_pb2.AttachRequest:
    """The message that asks a daemon for the cores of a request."""
    message = neuron_pb2.AttachRequest(
        logical_neuroncore_config=request.logical_neuroncore_config or 0,
        tag=sendable(tag, _LONGEST_TAG),
        runtime_version=sendable(runtime_version, _LONGEST_VERSION),
    )
    if request.first is not None and request.count is not None:
        message.visible_cores.first = request.first
        message.visible_cores.count = request.count
    elif request.count is not None:
        message.core_count = request.count
    else:
        message.all_cores = True
    return message


def ask_for_the_same(request: neuron_pb2.AttachRequest, response: neuron_pb2.AttachResponse) -> None:
    """Makes the request one for the very cores that were granted."""
    request.logical_neuroncore_config = response.logical_neuroncore_config
    request.visible_cores.first = response.cores[0].neuroncore_index
    request.visible_cores.count = len(response.cores)
