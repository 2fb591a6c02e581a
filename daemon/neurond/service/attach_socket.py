"""The attach socket, where processes attach to the daemon and the kernel proves their identity.

A process connects, receives its token in one line, and keeps the connection open. Its lease ends when the connection
closes or the process ends. The daemon watches a pidfd too, because forked children may have inherited the connection.
The connection also carries profile requests and, on a simulated host, injected faults and their acknowledgements. The
last that a process sends on it is its final report, which the daemon reads before the end of the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
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
from neurontools.driver.processes import user_name
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
from neurontools.rpc.report_limits import FINAL_REPORT, MOST_FINAL_REPORT_BYTES
from neurontools.util.rate_limited_log import RateLimitedLogger

_READ_BYTES = 2**16
_LONGEST_LINE_BYTES = 64
_LAST_READS = 16  # more than a Unix socket holds
_MOST_LINES = 64  # lines handled per read; further lines, which no well-behaved process sends, are dropped

_log = logging.getLogger(__name__)
_log_refusal = RateLimitedLogger(_log, logging.WARNING)


class AttachSocket:
    """The listening attach socket of a daemon.

    Calls `on_final_report` with the token and the serialized final report of a process. Calls `on_end` with the token
    and exit status of each process that held cores, within about a second of its end. If the process still runs a
    second after it detached, calls `on_end` with this fact too. `faults` is None on a host with real devices. `audit`
    records profile requests.
    """

    def __init__(
        self,
        allocator: CoreAllocator,
        peers: PeerLimiter,
        clock: SteadyClock,
        on_final_report: Callable[[str, bytes], None],
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
        self._on_final_report = on_final_report
        self._on_end = on_end
        self._attached: dict[str, _Attached] = {}
        self._watches: set[ExitWatch] = set()
        self._accepting: Acceptor | None = None

    def listen(self, listener: socket.socket) -> None:
        """Accepts processes on a listening Unix socket and takes ownership of the socket."""
        self._accepting = Acceptor(listener, self._accept, name="attaching", refuse=_refuse)

    def close(self) -> None:
        if self._accepting is not None:
            self._accepting.close()
        for attached in list(self._attached.values()):
            attached.close()
        for watch in list(self._watches):
            watch.close()

    def send_line(self, token: str, line: bytes) -> None:
        """Sends a line to the process with this token. Drops the line if the process is detached or doesn't read."""
        attached = self._attached.get(token)
        if attached is not None:
            attached.send_line(line)

    def _accept(self, connection: socket.socket, _address: object) -> None:
        try:
            attached = _Attached(
                connection,
                self._allocator,
                self._peers,
                self._clock.now(),
                self._on_detached,
                self._handle_line,
                self._on_final_report,
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

        watch = next((each for each in self._watches if each.pid == left.pid and each.is_of_living_process()), None)
        if watch is None:
            watch = ExitWatch(left.pidfd, left.pid, left.peer, self._peers, self._on_end, self._watches.discard)
            self._watches.add(watch)
        elif left.pidfd >= 0:
            os.close(left.pidfd)
        watch.add(left.token)


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
        on_final_report: Callable[[str, bytes], None],
    ) -> None:
        self.can_be_profiled = False
        self._on_line = on_line
        self._on_final_report = on_final_report
        self._unread = b""  # an incomplete line, or an incomplete final report
        self._final_report_bytes: int | None = None  # size of the announced final report
        self._descriptor: int | None = None
        self._connection = connection
        self._allocator = allocator
        self._peers = peers
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self.peer, self.pid, self.pidfd = _admit(connection, peers)
        self.token = secrets.token_hex(16)
        self._is_open = True
        allocator.enter(self.token, self.pid, self.peer.uid, now_unix_seconds, user=user_name(self.peer.uid))
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
        self._handle(self._unread + received)
        return True

    def _handle(self, data: bytes) -> None:
        """Handles complete lines or a complete final report, and keeps the rest."""
        if self._final_report_bytes is None:
            for count in itertools.count():
                line, end, rest = data.partition(b"\n")
                if not end:
                    break
                data = rest
                if line.startswith(FINAL_REPORT + b" ") and self.holds_cores:
                    self._final_report_bytes = _final_report_size(line)
                    break
                if count < _MOST_LINES and self._is_open:
                    self._on_line(self, line)
        size = self._final_report_bytes
        if size is None:
            self._unread = data[:_LONGEST_LINE_BYTES]
        elif len(data) < size:
            self._unread = data
        else:
            if size:
                self._on_final_report(self.token, data[:size])
            self._unread, self._final_report_bytes = b"", 0  # nothing follows a final report

    def _store_descriptor(self, descriptor: int | None) -> None:
        """Stores the latest file descriptor from the process and closes the previous one."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = descriptor


def _final_report_size(line: bytes) -> int:
    """Returns the size in a line that announces a final report; 0 if it is invalid."""
    text = line[len(FINAL_REPORT) + 1 :]
    return int(text) if text.isdigit() and len(text) <= 9 and int(text) <= MOST_FINAL_REPORT_BYTES else 0


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


# Pauses between checks of the exit status: without the right to trace a process, its status is known only after its
# parent has waited for it.
_CHECK_AFTER_SECONDS = (0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4)
_LIVES_ON_AFTER_SECONDS = 1.0
_MOST_TOKENS = 64  # attachments of one living process that wait for its end


class ExitWatch:
    """Waits until a process has ended, and calls `on_end` with its exit status for each added token.

    A process may live for long after it detached: the teardown of torch takes seconds. If the process still lives
    _LIVES_ON_AFTER_SECONDS after `add`, or adds more than _MOST_TOKENS, calls `on_end` with this fact too. At the
    limits of its user, the watch ends then. Owns `pidfd`, which may be -1 (none); the end of the process then stays
    unknown.
    """

    def __init__(
        self,
        pidfd: int,
        pid: int,
        peer: PeerCredentials,
        peers: PeerLimiter,
        on_end: Callable[[str, ProcessOutcome], None],
        on_close: Callable[[ExitWatch], None],
    ) -> None:
        self._pidfd = pidfd
        self.pid = pid
        self._peer = peer
        self._peers = peers
        self._on_end = on_end
        self._on_close = on_close
        self._timers: dict[str, asyncio.TimerHandle | None] = {}  # by token; None after the timer
        self._delays = iter(_CHECK_AFTER_SECONDS)
        self._check_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._is_counted = False
        if pidfd >= 0:
            self._loop.add_reader(pidfd, self._on_process_end)
            with contextlib.suppress(LimitReached):
                peers.take(peer, ResourceKind.EXIT_WATCH)
                self._is_counted = True

    def add(self, token: str) -> None:
        """Adds an attachment of the process that has ended."""
        if self._pidfd < 0:
            self._finish({token: None}, ProcessOutcome())
            return
        self._timers[token] = self._loop.call_later(_LIVES_ON_AFTER_SECONDS, self._lives_on, token)
        if len(self._timers) > _MOST_TOKENS:
            oldest = next(iter(self._timers))
            timer = self._timers.pop(oldest)
            if timer is not None:
                timer.cancel()
                self._on_end(oldest, ProcessOutcome(lives_on=True))

    def is_of_living_process(self) -> bool:
        return self._pidfd >= 0 and not has_ended(self._pidfd)

    def close(self) -> None:
        """Stops waiting and does not call `on_end`. May be called twice."""
        for timer in (*self._timers.values(), self._check_timer):
            self._cancel(timer)
        self._timers.clear()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._is_counted:
            self._is_counted = False
            self._peers.release(self._peer, ResourceKind.EXIT_WATCH)
        self._on_close(self)

    def _lives_on(self, token: str) -> None:
        if has_ended(self._pidfd):  # `_check` reports the exit status
            return
        self._timers[token] = None
        self._on_end(token, ProcessOutcome(lives_on=True))
        if not self._is_counted and not any(self._timers.values()):
            self.close()

    def _on_process_end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._check()

    def _check(self) -> None:
        status = exit_status(self._pidfd, self.pid, self._peer.uid)
        delay_seconds = next(self._delays, None)
        if status is None and delay_seconds is not None:
            self._check_timer = self._loop.call_later(delay_seconds, self._check)
        else:
            self._finish(self._timers.copy(), ProcessOutcome(status))

    def _finish(self, tokens: Iterable[str], outcome: ProcessOutcome) -> None:
        self.close()
        for token in tokens:
            self._on_end(token, outcome)

    @staticmethod
    def _cancel(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


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
