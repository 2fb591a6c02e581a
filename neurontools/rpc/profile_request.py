"""Requests a profile of a running process through the daemon.

The daemon checks the peer credentials of the client, and passes one end of the client's socket pair to the process. The
process sends the profile directly to the client, even if the daemon ends meanwhile.
"""

from __future__ import annotations

import contextlib
import select
import socket
from time import monotonic

from neurontools.rpc import profile_protocol
from neurontools.rpc.ask import NoDaemon, ask_error
from neurontools.rpc.call import Unreachable
from neurontools.rpc.http2 import connect
from neurontools.rpc.socket_path import attach_socket
from neurontools.util.errors import (
    EXIT_FAILURE,
    EXIT_NO_DAEMON,
    EXIT_NOT_FOUND,
    EXIT_PERMISSION,
    EXIT_TIMED_OUT,
    UserError,
)

_LONGEST_LINE_BYTES = 4096
_PART_BYTES = 1 << 16
_DAEMON_SECONDS = 10.0
_LAST_WORD_SECONDS = 2.0
_EXIT_CODES = {
    profile_protocol.UNKNOWN: EXIT_NOT_FOUND,
    profile_protocol.DENIED: EXIT_PERMISSION,
    profile_protocol.UNABLE: EXIT_FAILURE,
}


class RequestedProfile:
    """The connection over which a process sends its profile. A context manager, for one thread."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel
        self._read = b""
        self._has_ended = False

    @classmethod
    def request(cls, socket_path: str, pid: int, seconds: float, steps: int | None) -> RequestedProfile:
        """Sends the request to the daemon at a socket. Raises UserError if the daemon refuses or can't forward it."""
        ours, theirs = socket.socketpair()
        requested = cls(pid, ours)
        try:
            with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                deadline = monotonic() + _DAEMON_SECONDS
                _connect(connection, socket_path)
                line = _line(connection, deadline)
                if line is None or line.startswith(b"error: "):
                    reason = b"" if line is None else line.removeprefix(b"error: ")
                    why = "ended the connection" if line is None else f"refuses: {reason.decode('utf-8', 'replace')}"
                    problem = f"the monitor daemon at unix:{socket_path} {why}"
                    raise NoDaemon(problem, EXIT_NO_DAEMON, is_absent=False)
                request = profile_protocol.encode_request(pid, profile_protocol.ProfileOptions(seconds, steps))
                socket.send_fds(connection, [request], [theirs.fileno()])
                theirs.close()  # the daemon has its own copy of this descriptor
                requested._await_answer(connection, socket_path, deadline)
        except BaseException as error:
            requested.close()
            if isinstance(error, TimeoutError):
                problem = f"the monitor daemon at unix:{socket_path} gave no answer in time; see its log, or restart it"
                raise UserError(problem, EXIT_TIMED_OUT) from None
            raise
        return requested

    def wait_accepted(self, timeout_seconds: float) -> None:
        """Waits until the process has accepted the request.

        Raises UserError if the process does not answer, can't make a profile, or has ended.
        """
        deadline = monotonic() + timeout_seconds
        while b"\n" not in self._read:
            left = deadline - monotonic()
            if left <= 0 or not _is_readable(self.channel, left):
                problem = (
                    f"PID {self.pid} does not answer; look whether it is stopped, or in a long operator, and try again"
                )
                raise UserError(problem, EXIT_TIMED_OUT)
            self._receive()
            if self._has_ended:
                raise UserError(f"PID {self.pid} ended before its profile had begun; see its own output")
            if len(self._read) > _PART_BYTES + _LONGEST_LINE_BYTES:
                raise UserError(f"PID {self.pid} sends something else than a profile; see its own output")
        line, _, self._read = self._read.partition(b"\n")
        if line != profile_protocol.ACCEPTED:
            self._fail(line)

    def read(self, timeout_seconds: float) -> bytes:
        """Returns the next part of the profile; b"" at its end.

        Raises TimeoutError if no data arrives in time, UserError if the process reports a failure.
        """
        if not self._read and not self._has_ended:
            if not _is_readable(self.channel, timeout_seconds):
                raise TimeoutError
            self._receive()
        part, self._read = self._read, b""
        if profile_protocol.is_failure(part):
            self._fail(part.partition(b"\n")[0])
        return part

    @property
    def has_more(self) -> bool:
        """Whether `read` would return buffered data without waiting for the socket."""
        return bool(self._read)

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> RequestedProfile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _await_answer(self, connection: socket.socket, socket_path: str, deadline: float) -> None:
        """Waits for the daemon's answer, or for the first data from the process.

        An older daemon, which has no profile requests, sends nothing and closes the passed descriptor.
        """
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        poll.register(self.channel, select.POLLIN)
        if not poll.poll(max(0.0, deadline - monotonic()) * 1e3):
            raise TimeoutError
        if not _is_readable(connection, 0) and self.channel.recv(1, socket.MSG_PEEK):
            return
        if not _is_readable(connection, _LAST_WORD_SECONDS):
            problem = (
                f"the monitor daemon at unix:{socket_path} is of a version that passes on no such requests; update it"
            )
            raise UserError(problem)
        line = _line(connection, deadline)
        if line is None:
            raise NoDaemon(f"the monitor daemon at unix:{socket_path} ended; retry", EXIT_NO_DAEMON, is_absent=False)
        if line != profile_protocol.PASSED:
            reason, text = profile_protocol.decode_refusal(line)
            raise UserError(text, _EXIT_CODES.get(reason, EXIT_FAILURE))

    def _receive(self) -> None:
        try:
            part = self.channel.recv(_PART_BYTES)
        except OSError:
            part = b""
        self._read += part
        self._has_ended = not part

    def _fail(self, line: bytes) -> None:
        raise UserError(f"PID {self.pid}: {profile_protocol.decode_failure(line)[:_LONGEST_LINE_BYTES]}")


def _connect(connection: socket.socket, socket_path: str) -> None:
    try:
        connect(connection, attach_socket(socket_path), _DAEMON_SECONDS)
    except TimeoutError:
        raise
    except OSError as error:
        unreachable = Unreachable(error.strerror or str(error))
        unreachable.__cause__ = error
        raise ask_error(socket_path, unreachable) from error


def _line(connection: socket.socket, deadline: float) -> bytes | None:
    """Returns the next line from the daemon; None if the connection ends or the line is too long.

    Raises TimeoutError after the deadline.
    """
    line = b""
    while not line.endswith(b"\n"):
        connection.settimeout(max(deadline - monotonic(), 0.001))
        received = b""
        with contextlib.suppress(ConnectionError):
            received = connection.recv(1)  # byte by byte, to read no more than this line
        line += received
        if not received or len(line) > _LONGEST_LINE_BYTES:
            return None
    return line.rstrip(b"\n")


def _is_readable(connection: socket.socket, timeout_seconds: float) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(timeout_seconds * 1e3))
