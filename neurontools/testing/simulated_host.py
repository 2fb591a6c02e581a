"""A simulated Neuron host for tests of what training software does when hardware fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neurontools.faults.request import FaultRequest
from neurontools.model import InjectedFault, Snapshot
from neurontools.rpc import fault_calls, neuron_pb2
from neurontools.rpc.ask import ask
from neurontools.rpc.convert import from_message
from neurontools.rpc.socket_path import VARIABLE
from neurontools.testing.simulated_driver import SimulatedDriver


class SimulatedHost(SimulatedDriver):
    """A context with a monitor daemon that simulates an instance, whose devices break when they are told to.

    Processes that get `environment` train on it. The driver's tree and `kernel_log` show what happens, for node agents.
    Methods that ask the daemon raise UserError when it refuses, in one line.
    """

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which training processes and our own commands find the host."""
        return {VARIABLE: self.socket}

    @property
    def kernel_log(self) -> Path:
        """The kernel log of the host, in the form of /dev/kmsg; NEURON_HW_ERR lines are added to it."""
        return Path(self.directory) / "dev/kmsg"

    @contextmanager
    def fault(self, kind: str, **asked: Any) -> Iterator[InjectedFault]:
        """A fault that is there within the context, and healed at its end.

        `asked`: one of `device`, `core` and `pid`, and as wanted `after_executions`, `after_seconds`, `for_seconds`,
        `probability`, `amount`, `part` and `seed`, as of neuron-fault(1). ImpossibleFault (a ValueError) for rubbish.
        """
        fault = self.inject(kind, **asked)
        try:
            yield fault
        finally:
            if any(each.number == fault.number for each in self.faults):
                self.heal(fault.number)

    def inject(self, kind: str, *, device: int | None = None, core: int | None = None, **asked: Any) -> InjectedFault:
        """As `fault`, until it is healed. Processes that are to meet it know of it when this returns."""
        request = FaultRequest(kind, device_index=device, neuroncore_index=core, **asked)
        return fault_calls.inject(self.socket, [request])[0]

    def heal(self, *numbers: int) -> int:
        """Takes faults back, all without numbers; how many there were."""
        return fault_calls.heal(self.socket, numbers)

    @property
    def faults(self) -> tuple[InjectedFault, ...]:
        """The faults that are there: how far each has come, and how often executions met it."""
        return fault_calls.listed(self.socket)

    @property
    def snapshot(self) -> Snapshot:
        """The state of the host now."""
        reply = ask(self.socket, "/neurontools.v1.MonitorService/GetSnapshot", b"", fault_calls.TIMEOUT_SECONDS)
        return from_message(Snapshot, neuron_pb2.GetSnapshotResponse.FromString(reply).snapshot)
