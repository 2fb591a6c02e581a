"""The two connections of a process to its daemon: the attach connection and the connection for calls."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from neurontools.driver.neuron_runtime import CoreRequest, NrtStatus
from neurontools.rpc import neuron_pb2
from neurontools.rpc.call import CallError, RpcError, Status, UnaryConnection
from neurontools.rpc.http2 import connect
from neurontools.rpc.profile_protocol import receive_descriptor
from neurontools.rpc.socket_path import attach_socket
from neurontools.runtime.reporting.process_counters import truncate_for_protobuf

_SERVICE = "/neurontools.v1.RuntimeService/"
_LONGEST_LINE_BYTES = 1024
_REFUSED_WITH = {
    Status.RESOURCE_EXHAUSTED: NrtStatus.RESOURCE,
    Status.INVALID_ARGUMENT: NrtStatus.INVALID,
    Status.OUT_OF_RANGE: NrtStatus.INVALID,
    Status.FAILED_PRECONDITION: NrtStatus.FAILURE,
}


class CoresUnavailable(RuntimeError):
    """The daemon refuses the NeuronCores that a process asks for; the text is the daemon's.

    `status` is what `nrt_init` of the original runtime returns in this case.
    """

    def __init__(self, text: str, status: NrtStatus) -> None:
        super().__init__(text)
        self.status = status


class DaemonUnavailable(Exception):
    """No daemon answers at a socket; the text says why."""


class DaemonConnection:
    """The connections to one daemon, for one thread. Making one does no I/O: `attach` does."""

    def __init__(self, socket_path: str) -> None:
        self.socket_path = socket_path
        self.is_attached = False
        self._token = ""
        self._proof = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # close-on-exec, as all that Python opens
        self._pid = os.getpid()
        self._calls: UnaryConnection | None = None

    def attach(self, request: neuron_pb2.AttachRequest, timeout_seconds: float) -> neuron_pb2.AttachResponse:
        """Takes the cores of `request`, whose token is set here. Raises CoresUnavailable or NoDaemon."""
        deadline = monotonic() + timeout_seconds
        try:
            self._token = self._read_token(timeout_seconds)
            request.token = self._token
            reply = self._call("Attach", request.SerializeToString(), deadline - monotonic())
        except RpcError as error:
            if error.code in _REFUSED_WITH:
                raise CoresUnavailable(error.details, _REFUSED_WITH[error.code]) from error
            raise DaemonUnavailable(str(error)) from error
        except CallError as error:
            raise DaemonUnavailable(str(error)) from error
        except OSError as error:
            raise DaemonUnavailable(error.strerror or f"no answer within {timeout_seconds:.3g} s") from error
        try:
            response = neuron_pb2.AttachResponse.FromString(reply)
        except Exception as error:  # google.protobuf's DecodeError, which only neurontools.rpc may import
            raise DaemonUnavailable("its answer is not an AttachResponse") from error
        if not response.cores:
            raise DaemonUnavailable("it granted no cores")
        self._proof.settimeout(None)
        self.is_attached = True
        return response

    def report(self, report: neuron_pb2.Report, timeout_seconds: float) -> None:
        """Sends a report. Raises CallError."""
        request = neuron_pb2.ReportRequest(token=self._token, report=report)
        self._call("Report", request.SerializeToString(), timeout_seconds)

    def is_ended(self) -> bool:
        """Whether the daemon has closed the attach connection, or ended; what it says there stays to be heard."""
        try:
            return self._proof.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def heard(self, *, waits: bool) -> tuple[bytes, int | None] | None:
        """What the daemon says on the attach connection, and a descriptor that came with it, which is the caller's.

        None at its end, and when it says nothing and nobody waits.
        """
        try:
            said, descriptor = receive_descriptor(self._proof, _LONGEST_LINE_BYTES, 0 if waits else socket.MSG_DONTWAIT)
        except OSError:
            return None
        return (said, descriptor) if said else None

    def say(self, line: bytes) -> None:
        """Writes a line on the attach connection; it is lost where the daemon doesn't read."""
        with suppress(OSError):
            self._proof.send(line, socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Gives the cores back. In a forked child: closes its copies, and the parent keeps the cores."""
        self.is_attached = False
        if os.getpid() == self._pid:
            with suppress(OSError):  # who waits for what the daemon says hears the end of it
                self._proof.shutdown(socket.SHUT_RDWR)
        self._proof.close()
        if self._calls is not None:
            self._calls.close()

    def _read_token(self, timeout_seconds: float) -> str:
        """Connects to the attach socket and reads the line that it begins with."""
        connect(self._proof, attach_socket(self.socket_path), max(timeout_seconds, 0.001))
        self._proof.settimeout(max(timeout_seconds, 0.001))
        line = b""
        while not line.endswith(b"\n"):
            received = self._proof.recv(_LONGEST_LINE_BYTES)
            line += received
            if not received or len(line) > _LONGEST_LINE_BYTES:
                raise DaemonUnavailable("it ended the connection")
        text = line.decode("ascii", errors="replace").strip()
        if text.startswith("error: "):
            raise DaemonUnavailable(text.removeprefix("error: "))
        return text

    def _call(self, method: str, request: bytes, timeout_seconds: float) -> bytes:
        """Calls on the open connection; on a new one if there is none, or if that one was closed in the meantime."""
        if self._calls is not None:
            try:
                return self._calls.call(_SERVICE + method, request, timeout_seconds=timeout_seconds)
            except RpcError as error:
                if error.code != Status.UNAVAILABLE:
                    raise
        self._calls = UnaryConnection(self.socket_path, timeout_seconds)
        return self._calls.call(_SERVICE + method, request, timeout_seconds=timeout_seconds)


_LONGEST_TAG, _LONGEST_VERSION = 255, 64


@dataclass(frozen=True, slots=True)
class Core:
    """A NeuronCore of this process; None is what no daemon has told."""

    local_index: int
    neuroncore_index: int | None = None  # logical, on the host
    device_index: int | None = None
    hbm_bytes: int | None = None  # that it can allocate from
    hbm_index: int | None = None  # its HBM stack on the device


def requested_cores(request: CoreRequest) -> tuple[Core, ...]:
    """The cores as far as the request tells; one when it asks for all, whose number only a daemon knows."""
    first = request.first
    return tuple(
        Core(local_index, None if first is None else first + local_index) for local_index in range(request.count or 1)
    )


def parse_granted_cores(response: neuron_pb2.AttachResponse) -> tuple[Core, ...]:
    """The cores that a daemon granted."""
    return tuple(
        Core(local_index, core.neuroncore_index, core.device_index, core.hbm_bytes, core.hbm_index)
        for local_index, core in enumerate(response.cores)
    )


def build_attach_request(request: CoreRequest, tag: str, runtime_version: str) -> neuron_pb2.AttachRequest:
    """The message that asks a daemon for the cores of a request."""
    message = neuron_pb2.AttachRequest(
        logical_neuroncore_config=request.logical_neuroncore_config or 0,
        tag=truncate_for_protobuf(tag, _LONGEST_TAG),
        runtime_version=truncate_for_protobuf(runtime_version, _LONGEST_VERSION),
    )
    if request.first is not None and request.count is not None:
        message.visible_cores.first = request.first
        message.visible_cores.count = request.count
    elif request.count is not None:
        message.core_count = request.count
    else:
        message.all_cores = True
    return message


def pin_granted_cores(request: neuron_pb2.AttachRequest, response: neuron_pb2.AttachResponse) -> None:
    """Makes the request one for the very cores that were granted."""
    request.logical_neuroncore_config = response.logical_neuroncore_config
    request.visible_cores.first = response.cores[0].neuroncore_index
    request.visible_cores.count = len(response.cores)
