"""The two connections of a process to its daemon, and the NeuronCores that the process requests and receives.

The attach connection proves the identity of the process by its peer credentials and holds its cores: the daemon frees
the cores when that connection closes. The other connection carries gRPC calls.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock
from time import monotonic

from neurontools.driver.neuron_runtime import CoreRequest, NrtStatus
from neurontools.rpc import neuron_pb2
from neurontools.rpc.call import CallError, RpcError, Status, UnaryConnection
from neurontools.rpc.http2 import connect
from neurontools.rpc.profile_protocol import receive_descriptor
from neurontools.rpc.report_limits import FINAL_REPORT, MOST_FINAL_REPORT_BYTES
from neurontools.rpc.socket_path import attach_socket
from neurontools.runtime.reporting.process_counters import truncate_for_protobuf

_SERVICE = "/neurontools.v1.RuntimeService/"
_MAX_LINE_BYTES = 1024
_MAX_TAG_CHARACTERS, _MAX_VERSION_CHARACTERS = 255, 64
_REFUSAL_STATUS = {
    Status.RESOURCE_EXHAUSTED: NrtStatus.RESOURCE,
    Status.INVALID_ARGUMENT: NrtStatus.INVALID,
    Status.OUT_OF_RANGE: NrtStatus.INVALID,
    Status.FAILED_PRECONDITION: NrtStatus.FAILURE,
}


class CoresUnavailable(RuntimeError):
    """The daemon refused the NeuronCores that a process requested; the message is the daemon's.

    `status` is what `nrt_init` of the original runtime returns in this case.
    """

    def __init__(self, text: str, status: NrtStatus) -> None:
        super().__init__(text)
        self.status = status


class DaemonUnavailable(Exception):
    """No daemon answers at a socket; the message gives the reason. `is_silent`: whether the wait for it timed out."""

    def __init__(self, text: str, *, is_silent: bool = False) -> None:
        super().__init__(text)
        self.is_silent = is_silent


class DaemonConnection:
    """Both connections to one daemon. Only one thread may make calls. `attach` connects, the constructor does not."""

    def __init__(self, socket_path: str) -> None:
        self.socket_path = socket_path
        self.is_attached = False
        self._token = ""
        self._attach_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # close-on-exec
        self._send_lock = RLock()  # a signal handler may send too
        self._pid = os.getpid()
        self._calls: UnaryConnection | None = None

    def attach(self, request: neuron_pb2.AttachRequest, timeout_seconds: float) -> neuron_pb2.AttachResponse:
        """Connects and requests cores. Stores the token in `request`.

        Raises CoresUnavailable if the daemon refuses the cores, DaemonUnavailable for any other failure.
        """
        deadline = monotonic() + timeout_seconds
        try:
            self._token = self._read_token(timeout_seconds)
            request.token = self._token
            reply = self._call("Attach", request.SerializeToString(), deadline - monotonic())
        except CallError as error:
            if isinstance(error, RpcError) and error.code in _REFUSAL_STATUS:
                raise CoresUnavailable(error.details, _REFUSAL_STATUS[error.code]) from error
            is_silent = isinstance(error, RpcError) and error.code == Status.DEADLINE_EXCEEDED
            raise DaemonUnavailable(str(error), is_silent=is_silent) from error
        except OSError as error:
            text = error.strerror or f"no answer within {timeout_seconds:.3g} s"
            raise DaemonUnavailable(text, is_silent=isinstance(error, TimeoutError)) from error
        try:
            response = neuron_pb2.AttachResponse.FromString(reply)
        except Exception as error:  # DecodeError; only neurontools.rpc may import its package google.protobuf
            raise DaemonUnavailable("its answer is not an AttachResponse") from error
        if not response.cores:
            raise DaemonUnavailable("it granted no cores")
        self._attach_socket.settimeout(None)
        self.is_attached = True
        return response

    def send_report(self, report: neuron_pb2.Report, timeout_seconds: float) -> None:
        """Sends a report. Raises CallError if the call fails."""
        request = neuron_pb2.ReportRequest(token=self._token, report=report)
        self._call("Report", request.SerializeToString(), timeout_seconds)

    def send_final_report(self, report: neuron_pb2.Report, timeout_seconds: float) -> None:
        """Writes the final report on the attach connection, and ends its sending direction.

        The daemon reads it even after this process has ended. So this waits only until the kernel has taken the report.
        Leaves the loaded models out of a report that is too large.
        """
        if report.ByteSize() > MOST_FINAL_REPORT_BYTES:
            report.ClearField("models")
        message = report.SerializeToString()
        with self._send_lock, suppress(OSError):
            self._attach_socket.settimeout(max(timeout_seconds, 0.001))
            self._attach_socket.sendall(b"%s %d\n%s" % (FINAL_REPORT, len(message), message))
            self._attach_socket.shutdown(socket.SHUT_WR)

    def is_closed_by_daemon(self) -> bool:
        """Returns whether the daemon has closed the attach connection or has ended. Consumes no lines."""
        try:
            return self._attach_socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def recv(self, *, waits: bool) -> tuple[bytes, int | None] | None:
        """Returns bytes that the daemon sent on the attach connection, and the descriptor sent with them or None.

        The caller must close the descriptor. Instead of a pair, returns None if the connection has ended. Without
        `waits`, also returns None if nothing has arrived.
        """
        try:
            data, descriptor = receive_descriptor(
                self._attach_socket, _MAX_LINE_BYTES, 0 if waits else socket.MSG_DONTWAIT
            )
        except OSError:
            return None
        return (data, descriptor) if data else None

    def send(self, line: bytes) -> None:
        """Writes a line on the attach connection. Drops the line if the daemon does not read its lines."""
        with self._send_lock, suppress(OSError):
            self._attach_socket.send(line, socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Closes the connections, so that the daemon frees the cores. A forked child closes only its own copies."""
        self.is_attached = False
        if os.getpid() == self._pid:
            with suppress(OSError):  # shutdown wakes the thread that reads the control channel
                self._attach_socket.shutdown(socket.SHUT_RDWR)
        else:
            self._send_lock = RLock()  # the thread that held it does not exist here
        self._attach_socket.close()
        if self._calls is not None:
            self._calls.close()

    def _read_token(self, timeout_seconds: float) -> str:
        """Connects to the attach socket and reads its first line, the token."""
        connect(self._attach_socket, attach_socket(self.socket_path), max(timeout_seconds, 0.001))
        self._attach_socket.settimeout(max(timeout_seconds, 0.001))
        line = b""
        while not line.endswith(b"\n"):
            received = self._attach_socket.recv(_MAX_LINE_BYTES)
            line += received
            if not received or len(line) > _MAX_LINE_BYTES:
                raise DaemonUnavailable("it ended the connection")
        text = line.decode("ascii", errors="replace").strip()
        if text.startswith("error: "):
            raise DaemonUnavailable(text.removeprefix("error: "))
        return text

    def _call(self, method: str, request: bytes, timeout_seconds: float) -> bytes:
        """Makes a gRPC call. Connects again if there is no connection or the daemon has closed it."""
        if self._calls is not None:
            try:
                return self._calls.call(_SERVICE + method, request, timeout_seconds=timeout_seconds)
            except RpcError as error:
                if error.code != Status.UNAVAILABLE:
                    raise
        self._calls = UnaryConnection(self.socket_path, timeout_seconds)
        return self._calls.call(_SERVICE + method, request, timeout_seconds=timeout_seconds)


@dataclass(frozen=True, slots=True)
class Core:
    """A NeuronCore of this process. A field is None until a daemon has sent its value."""

    local_index: int
    neuroncore_index: int | None = None  # index of the logical core on the host
    device_index: int | None = None
    hbm_bytes: int | None = None  # HBM available for allocation
    hbm_index: int | None = None  # index of the core's HBM stack on its device


def build_attach_request(request: CoreRequest, tag: str, runtime_version: str) -> neuron_pb2.AttachRequest:
    """Converts a request for cores to an AttachRequest message."""
    message = neuron_pb2.AttachRequest(
        logical_neuroncore_config=request.logical_neuroncore_config or 0,
        tag=truncate_for_protobuf(tag, _MAX_TAG_CHARACTERS),
        runtime_version=truncate_for_protobuf(runtime_version, _MAX_VERSION_CHARACTERS),
    )
    if request.first is not None and request.count is not None:
        message.visible_cores.first = request.first
        message.visible_cores.count = request.count
    elif request.count is not None:
        message.core_count = request.count
    else:
        message.all_cores = True
    return message
