"""The attach socket, where processes attach to the daemon and the kernel proves their identity.

A process connects, receives its token in one line, and keeps the connection open. Its lease ends when the connection
closes or the process ends. The daemon watches a pidfd too, because forked children may have inherited the connection.
The connection also carries profile requests and, on a simulated host, injected faults and their acknowledgements.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import stat
import time
from collections.abc import Callable, Iterable

from neurond.allocator import CoreAllocator
from neurond.faults import FaultInjector
from neurond.journal.accounts import ProcessOutcome
from neurond.journal.state_files import AuditLog
from neurond.peers.limits import (
    LimitReached,
    PeerCredentials,
    PeerLimiter,
    ResourceKind,
    open_pidfd,
    read_peer_credentials,
)
from neurond.system.clocks import SteadyClock
from neurond.system.processes import exit_status, has_ended
from neurontools.net.acceptor import Acceptor
from neurontools.rpc import profile_protocol
from neurontools.rpc.profile_protocol import (
    DENIED,
    UNABLE,
    UNKNOWN,
    encode_forwarded_request,
    read_request,
    receive_descriptor,
)
from neurontools.util.rate_limited_log import RateLimitedLogger

_READ_BYTES = 4096
_LONGEST_LINE_BYTES = 64
_LAST_READS = 16
_MOST_LINES = 64  # lines handled per read; further lines, which no well-behaved process sends, are dropped

_log = logging.getLogger(__name__)
_log_refusal = RateLimitedLogger(_log, logging.WARNING)


class AttachSocket:
    """The listening attach socket of a daemon.

    Calls `on_end` with the token and exit status of each process that held cores, within about a second of its end.
    `faults` is None on a host with real devices. `audit` records profile requests.
    """

    def __init__(
        self,
        allocator: CoreAllocator,
        peers: PeerLimiter,
        clock: SteadyClock,
        on_end: Callable[[str, ProcessOutcome], None],
        faults: FaultInjector | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self._allocator = allocator
        self._faults = faults
        self._audit = audit or AuditLog()
        if faults is not None:
            faults.effects.send = self.send_line
        self._clock = clock
        self._peers = peers
        self._on_end = on_end
        self._attached: dict[str, _Attached] = {}
        self._ending: dict[str, ExitWatch] = {}
        self._accepting: Acceptor | None = None

    def listen(self, listener: socket.socket) -> None:
        """Accepts processes on a listening Unix socket and takes ownership of the socket."""
        self._accepting = Acceptor(listener, self._accept, name="attaching", refuse=_refuse)

    def close(self) -> None:
        if self._accepting is not None:
            self._accepting.close()
        for attached in list(self._attached.values()):
            attached.close()
        for watch in self._ending.values():
            watch.close()
        self._ending.clear()

    def send_line(self, token: str, line: bytes) -> None:
        """Sends a line to the process with this token. Drops the line if the process is detached or doesn't read."""
        attached = self._attached.get(token)
        if attached is not None:
            attached.send_line(line)

    def _accept(self, connection: socket.socket, _address: object) -> None:
        try:
            attached = _Attached(
                connection, self._allocator, self._peers, self._clock.now(), self._on_detached, self._handle_line
            )
            self._attached[attached.token] = attached
        except _Refused as refused:
            _refuse(connection, str(refused))
            connection.close()

    def _handle_line(self, attached: _Attached, line: bytes) -> None:
        if line == profile_protocol.CAN_BE_PROFILED:
            attached.can_be_profiled = True
        elif profile_protocol.is_request(line):
            self._forward_profile_request(attached, line)
        elif self._faults is not None:
            self._faults.handle_line(attached.token, line)

    def _forward_profile_request(self, asker: _Attached, line: bytes) -> None:
        """Forwards a profile request with its socket to the target process. Sends the requester the outcome."""
        descriptor = asker.pop_descriptor()
        try:
            pid = _forward_profile_request(line, asker.peer, descriptor, self._attached.values(), self._allocator)
        except (ProfileRefused, OSError) as error:
            reason = error.reason if isinstance(error, ProfileRefused) else profile_protocol.UNABLE
            asker.send_line(profile_protocol.encode_refusal(reason, str(error)))
        else:
            asker.send_line(profile_protocol.PASSED + b"\n")
            fields = {"by_pid": asker.pid, "by_uid": asker.peer.uid, "pid": pid}
            self._audit.record("profile_asked_for", time.time(), fields)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _on_detached(self, left: _Attached, held_cores: bool) -> None:
        self._attached.pop(left.token, None)
        if self._faults is not None:
            self._faults.forget_process(left.token)
        if not held_cores:
            if left.pidfd >= 0:
                os.close(left.pidfd)
            return

        def report_outcome(outcome: ProcessOutcome) -> None:
            self._ending.pop(left.token, None)
            self._on_end(left.token, outcome)

        watch = ExitWatch(left.pidfd, left.pid, left.peer.uid, report_outcome)
        if not watch.is_done:
            self._ending[left.token] = watch


class _Refused(Exception):
    """The daemon refuses a process that wants to attach; the message has the reason."""


class _Attached:
    """The connection of one attached process, with its lease. The constructor raises _Refused if it may not attach.

    `on_end` is called after the connection has ended, with whether the process held cores; `on_end` has to close
    `pidfd`.
    """

    def __init__(
        self,
        connection: socket.socket,
        allocator: CoreAllocator,
        peers: PeerLimiter,
        now_unix_seconds: float,
        on_end: Callable[[_Attached, bool], None],
        on_line: Callable[[_Attached, bytes], None],
    ) -> None:
        self.can_be_profiled = False
        self._on_line = on_line
        self._line = b""
        self._descriptor: int | None = None
        self._connection = connection
        self._allocator = allocator
        self._peers = peers
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self.peer, self.pid, self.pidfd = _admit(connection, peers)
        self.token = secrets.token_hex(16)
        self._is_open = True
        allocator.enter(self.token, self.pid, self.peer.uid, now_unix_seconds)
        self._loop.add_reader(connection.fileno(), self._read)
        if self.pidfd >= 0:
            self._loop.add_reader(self.pidfd, self._on_process_end)
        with contextlib.suppress(OSError):  # the process closed the connection; the next read detects that
            connection.send(f"{self.token}\n".encode())

    def send_line(self, line: bytes, descriptor: int | None = None) -> bool:
        """Sends a line, and a file descriptor if one is given. Returns False when the process doesn't read."""
        try:
            if descriptor is None:
                return self._connection.send(line) == len(line)
            return socket.send_fds(self._connection, [line], [descriptor]) == len(line)
        except OSError:
            return False

    @property
    def holds_cores(self) -> bool:
        return self._allocator.find_lease(self.token).count > 0

    def pop_descriptor(self) -> int | None:
        """Returns the latest file descriptor that the process sent, if any. The caller has to close it."""
        descriptor, self._descriptor = self._descriptor, None
        return descriptor

    def close(self) -> None:
        """Closes the connection and ends the lease."""
        if not self._is_open:
            return
        self._is_open = False
        held_cores = self.holds_cores
        self._allocator.leave(self.token)
        self._loop.remove_reader(self._connection.fileno())
        self._connection.close()
        self._store_descriptor(None)
        if self.pidfd >= 0:
            self._loop.remove_reader(self.pidfd)
        self._peers.release(self.peer, ResourceKind.ATTACHMENT)
        self._on_end(self, held_cores)

    def _on_process_end(self) -> None:
        """Reads the last lines of the ended process, then closes the connection."""
        for _ in range(_LAST_READS):
            if not self._is_open or not self._read():
                break
        self.close()

    def _read(self) -> bool:
        """Reads lines from the process and handles them. Returns False when there was nothing to read."""
        try:
            received, descriptor = receive_descriptor(self._connection, _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            received, descriptor = b"", None
        if descriptor is not None:
            self._store_descriptor(descriptor)
        if not received:
            self.close()
            return False
        *lines, rest = (self._line + received).split(b"\n")
        self._line = rest[:_LONGEST_LINE_BYTES]
        for line in lines[:_MOST_LINES]:
            if self._is_open:
                self._on_line(self, line)
        return True

    def _store_descriptor(self, descriptor: int | None) -> None:
        """Stores the latest file descriptor from the process and closes the previous one."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = descriptor


def _admit(connection: socket.socket, peers: PeerLimiter) -> tuple[PeerCredentials, int, int]:
    """Counts a connection against the limits of its peer. Returns the peer's credentials, PID and pidfd.

    Raises _Refused at a limit, or if the process can't be identified or watched.
    """
    try:
        peer = read_peer_credentials(connection)
    except OSError as error:
        raise _Refused(f"the kernel gives no credentials of this process: {error.strerror}") from None
    if peer.pid is None:
        raise _Refused("the kernel gives no PID for this process: it is in a PID namespace that the daemon can't see")
    try:
        peers.take(peer, ResourceKind.ATTACHMENT)
    except LimitReached as limit:
        raise _Refused(str(limit)) from None
    try:
        return peer, peer.pid, open_pidfd(connection, peer.pid)
    except OSError as error:  # the process has already ended, or the daemon is out of file descriptors
        peers.release(peer, ResourceKind.ATTACHMENT)
        raise _Refused(f"PID {peer.pid} can't be watched: {error.strerror}") from None


def _refuse(connection: socket.socket, reason: str) -> None:
    _log_refusal("attach refused: %s", reason)
    with contextlib.suppress(OSError):
        connection.send(f"error: {reason}\n".encode())


# Pauses between checks of the exit status: a process closes its connection some time before it ends.
_CHECK_AFTER_SECONDS = (0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4)


class ExitWatch:
    """Calls `on_outcome` once with the exit status, within about a second. Owns `pidfd`, which may be -1 (none)."""

    def __init__(self, pidfd: int, pid: int, uid: int, on_outcome: Callable[[ProcessOutcome], None]) -> None:
        self._pidfd = pidfd
        self._pid = pid
        self._uid = uid
        self._on_outcome = on_outcome
        self._delays = iter(_CHECK_AFTER_SECONDS)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.is_done = False
        self._wait()

    def close(self) -> None:
        """Stops waiting for the exit status and does not call `on_outcome`. May be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _wait(self) -> None:
        after_seconds = next(self._delays, None)
        if after_seconds is None or self._pidfd < 0:
            self._report(ProcessOutcome(lives_on=self._pidfd >= 0 and not has_ended(self._pidfd)))
        else:
            self._timer = self._loop.call_later(after_seconds, self._check)

    def _check(self) -> None:
        status = exit_status(self._pidfd, self._pid, self._uid) if has_ended(self._pidfd) else None
        if status is None:
            self._wait()
        else:
            self._report(ProcessOutcome(status))

    def _report(self, outcome: ProcessOutcome) -> None:
        self.close()
        self.is_done = True
        self._on_outcome(outcome)


class ProfileRefused(Exception):
    """The daemon refuses a profile request. `reason` is a code of the protocol; the message names a remedy."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def _forward_profile_request(
    line: bytes, asker: PeerCredentials, descriptor: int | None, attached: Iterable[_Attached], allocator: CoreAllocator
) -> int:
    """Forwards a profile request to its target and returns the target's PID. The caller closes `descriptor`.

    Raises ProfileRefused with the reason.
    """
    try:
        pid, options = read_request(line)
    except ValueError:
        raise ProfileRefused(
            UNABLE, "the daemon doesn't understand the request; does it have another version?"
        ) from None
    if descriptor is None or not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        raise ProfileRefused(UNABLE, "no socket came with the request")
    target = next((each for each in attached if each.pid == pid and each.holds_cores), None)
    if target is None:
        if any(lease.pid == pid and lease.synthetic for lease in allocator.leases):
            raise ProfileRefused(UNABLE, f"PID {pid} belongs to the synthetic load and has nothing to profile")
        raise ProfileRefused(
            UNKNOWN, f"PID {pid} holds no NeuronCores of this daemon; neuron-ls shows the PIDs that do"
        )
    if asker.uid not in (target.peer.uid, 0):
        raise ProfileRefused(
            DENIED, f"PID {pid} belongs to user {target.peer.uid}, you are user {asker.uid}; use that account, or root"
        )
    if not target.can_be_profiled:
        version = allocator.find_lease(target.token).runtime_version or "unknown"
        raise ProfileRefused(
            UNABLE,
            f"the runtime of PID {pid} (version {version}) takes no profiles on request; start the script with "
            "neuron-run --profile DIR",
        )
    if not target.send_line(encode_forwarded_request(options), descriptor):
        raise ProfileRefused(UNABLE, f"PID {pid} doesn't read from the daemon; see whether it is stopped")
    return pid
