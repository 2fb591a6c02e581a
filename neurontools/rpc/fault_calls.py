"""Calls of the FaultService: inject, list and heal faults."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from neurontools.faults.requests import FaultRequest
from neurontools.model import InjectedFault
from neurontools.rpc import neuron_pb2
from neurontools.rpc.ask import ask
from neurontools.rpc.convert import from_message

TIMEOUT_SECONDS = 10.0
_SERVICE = "/neurontools.v1.FaultService/"


def inject(socket_path: str, requests: Sequence[FaultRequest]) -> tuple[InjectedFault, ...]:
    """Injects all faults, or none if it raises UserError. Waits until the affected processes have acknowledged."""
    message = neuron_pb2.InjectFaultsRequest()
    for request in requests:
        fault = message.faults.add(kind=request.kind, seed=request.seed)
        for field in neuron_pb2.FaultRequest.DESCRIPTOR.fields:
            if field.has_presence and (value := getattr(request, field.name)) is not None:
                setattr(fault, field.name, value)
    reply = ask(socket_path, f"{_SERVICE}InjectFaults", message.SerializeToString(), TIMEOUT_SECONDS)
    faults = neuron_pb2.InjectFaultsResponse.FromString(reply).faults
    return tuple(from_message(InjectedFault, each) for each in faults)


def heal(socket_path: str, numbers: Iterable[int] = ()) -> int:
    """Heals the faults with these numbers, by default all. Returns the number of healed faults. May raise UserError."""
    message = neuron_pb2.HealFaultsRequest(numbers=numbers)
    reply = ask(socket_path, f"{_SERVICE}HealFaults", message.SerializeToString(), TIMEOUT_SECONDS)
    return neuron_pb2.HealFaultsResponse.FromString(reply).healed


def list_faults(socket_path: str) -> tuple[InjectedFault, ...]:
    reply = ask(socket_path, "/neurontools.v1.MonitorService/GetSnapshot", b"", TIMEOUT_SECONDS)
    snapshot = neuron_pb2.GetSnapshotResponse.FromString(reply).snapshot
    return tuple(from_message(InjectedFault, fault) for fault in snapshot.injected_faults)
