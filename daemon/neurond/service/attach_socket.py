"""The attach socket: where the kernel proves who a process is, and tells when it ends.

A process connects, is told its token in one line, and keeps the connection open. Its end, or the end of the process,
whichever comes first, ends its ownership: forked children may have inherited the connection, so the process is watched
too (pidfd). On a simulated host the connection carries injected faults to the process, and back what came of them.
Requests for profiles go over such connections too, from who asks and to the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from neurond.allocator import CoreAllocator, UnknownToken
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
    ProfileOptions,
    forward_request,
    read_request,
    receive_descriptor,
)
from neurontools.util.rate_limited_log import RateLimitedLogger

_READ_BYTES = 4096
_LONGEST_LINE_BYTES = 64
_LAST_READS = 16
_MOST_LINES = 64  # of one read; more than a process that means it says at once

_log = logging.getLogger(__name__)
_tell_refusal = RateLimitedLogger(_log, logging.WARNING)


class AttachSocket:
    """The listening attach socket of a daemon. `on_end` is told how each process ended that held cores, by its token,
    within about a second. `faults` are those of a simulated host; `audit` notes who asked for profiles of whom.
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
            faults.effects.send = self.say
        self._clock = clock
        self._peers = peers
        self._on_end = on_end
        self._attached: dict[str, _Attached] = {}
        self._ending: dict[str, ExitWatch] = {}
        self._accepting: Acceptor | None = None

    def listen(self, listener: socket.socket) -> None:
        """Serves on a listening Unix socket, which belongs to this object from here on."""
        self._accepting = Acceptor(listener, self._take, name="attaching", refuse=_refuse)

    def close(self) -> None:
        """Stops listening and ends all connections."""
        if self._accepting is not None:
            self._accepting.close()
        for attached in list(self._attached.values()):
            attached.close()
        for watch in self._ending.values():
            watch.close()
        self._ending.clear()

    def say(self, token: str, line: bytes) -> None:
        """Writes a line to the process with a token, if it is there and reads."""
        attached = self._attached.get(token)
        if attached is not None:
            attached.say(line)

    def _take(self, connection: socket.socket, _address: object) -> None:
        try:
            attached = _Attached(connection, self._allocator, self._peers, self._clock.now(), self._left, self._heard)
            self._attached[attached.token] = attached
        except _Refused as refused:
            _refuse(connection, str(refused))
            connection.close()

    def _heard(self, attached: _Attached, line: bytes) -> None:
        """Takes a line of a process; one that nobody takes is passed over."""
        if line == profile_protocol.CAN_BE_PROFILED:
            attached.can_be_profiled = True
        elif profile_protocol.is_request(line):
            self._pass_on(attached, line)
        elif self._faults is not None:
            self._faults.handle_line(attached.token, line)

    def _pass_on(self, asker: _Attached, line: bytes) -> None:
        """Passes a request for a profile on, and answers who asked before the descriptor is closed here."""
        descriptor = asker.take_descriptor()
        try:
            pid, wanted = parse_profile_request(line)
            forward_profile_request(pid, wanted, asker.who, descriptor, self._attached.values(), self._allocator)
        except (ProfileRefused, OSError) as error:
            reason = error.reason if isinstance(error, ProfileRefused) else profile_protocol.UNABLE
            asker.say(profile_protocol.refusal_of(reason, str(error)))
        else:
            asker.say(profile_protocol.PASSED + b"\n")
            self._audit.record_profile_request(asker.pid, asker.who.uid, pid)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _left(self, left: _Left) -> None:
        self._attached.pop(left.token, None)
        if self._faults is not None:
            self._faults.forget_process(left.token)
        if not left.held_cores:
            if left.pidfd >= 0:
                os.close(left.pidfd)
            return

        def known(outcome: ProcessOutcome) -> None:
            self._ending.pop(left.token, None)
            self._on_end(left.token, outcome)

        watch = ExitWatch(left.pidfd, left.pid, left.uid, known)
        if not watch.is_done:
            self._ending[left.token] = watch


@dataclass(frozen=True, slots=True)
class _Left:
    """What remains of a connection that has ended. The descriptor belongs to who is told of it."""

    token: str
    pid: int
    uid: int
    pidfd: int
    held_cores: bool


class _Refused(Exception):
    """A process can't be taken in; the text says why."""


class _Attached:
    """One connection of a process, from which it is in the allocator until either ends; _Refused when it can't be."""

    def __init__(
        self,
        connection: socket.socket,
        allocator: CoreAllocator,
        peers: PeerLimiter,
        now_unix_seconds: float,
        on_end: Callable[[_Left], None],
        heard: Callable[[_Attached, bytes], None],
    ) -> None:
        self.can_be_profiled = False
        self._heard = heard
        self._line = b""
        self._descriptor: int | None = None
        self._connection = connection
        self._allocator = allocator
        self._peers = peers
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self.who, self.pid, self._pidfd = _admitted(connection, peers)
        self.token = secrets.token_hex(16)
        self._is_open = True
        allocator.enter(self.token, self.pid, self.who.uid, now_unix_seconds)
        self._loop.add_reader(connection.fileno(), self._read)
        if self._pidfd >= 0:
            self._loop.add_reader(self._pidfd, self._ended)
        with contextlib.suppress(OSError):  # it is gone already, as reading will show
            connection.send(f"{self.token}\n".encode())

    def say(self, line: bytes, descriptor: int | None = None) -> bool:
        """Writes a line, and a descriptor with it; it is lost where the process doesn't read."""
        try:
            if descriptor is None:
                return self._connection.send(line) == len(line)
            return socket.send_fds(self._connection, [line], [descriptor]) == len(line)
        except OSError:
            return False

    def take_descriptor(self) -> int | None:
        """The descriptor that came with what was said last; the caller's from here on."""
        descriptor, self._descriptor = self._descriptor, None
        return descriptor

    def close(self) -> None:
        """Ends the connection and lets the process go."""
        if not self._is_open:
            return
        token, self._is_open = self.token, False
        held_cores = self._allocator.known(token).count > 0
        self._allocator.leave(token)
        self._loop.remove_reader(self._connection.fileno())
        self._connection.close()
        self._take_over(None)
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
        self._peers.give_back(self.who, ResourceKind.ATTACHMENT)
        self._on_end(_Left(token, self.pid, self.who.uid, self._pidfd, held_cores))

    def _ended(self) -> None:
        """The process has ended: what it said last is heard before it goes."""
        for _ in range(_LAST_READS):
            if not self._is_open or not self._read():
                break
        self.close()

    def _read(self) -> bool:
        """Takes what a process says, if anything."""
        try:
            received, descriptor = receive_descriptor(self._connection, _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            received, descriptor = b"", None
        if descriptor is not None:
            self._take_over(descriptor)
        if not received:
            self.close()
            return False
        *lines, rest = (self._line + received).split(b"\n")
        self._line = rest[:_LONGEST_LINE_BYTES]
        for line in lines[:_MOST_LINES]:
            if self._is_open:
                self._heard(self, line)
        return True

    def _take_over(self, descriptor: int | None) -> None:
        """Keeps a descriptor for the line that it came with, and none before it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = descriptor


def _admitted(connection: socket.socket, peers: PeerLimiter) -> tuple[PeerCredentials, int, int]:
    """Who connected, its PID and the descriptor that tells its end, counted among what it has open; or _Refused."""
    try:
        who = read_peer_credentials(connection)
    except OSError as error:
        raise _Refused(f"the kernel doesn't tell who this is: {error.strerror}") from None
    if who.pid is None:
        raise _Refused("the kernel gives no PID for this process: it is in a PID namespace that the daemon can't see")
    try:
        peers.take(who, ResourceKind.ATTACHMENT)
    except LimitReached as limit:
        raise _Refused(str(limit)) from None
    try:
        return who, who.pid, open_pidfd(connection, who.pid)
    except OSError as error:  # it has ended already, or the daemon is out of file descriptors
        peers.give_back(who, ResourceKind.ATTACHMENT)
        raise _Refused(f"PID {who.pid} can't be watched: {error.strerror}") from None


def _refuse(connection: socket.socket, reason: str) -> None:
    _tell_refusal("attach refused: %s", reason)
    with contextlib.suppress(OSError):
        connection.send(f"error: {reason}\n".encode())


# A process closes its connection before it has ended, and its status is known when its parent has waited for it.
_LOOKS_AFTER_SECONDS = (0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4)


class ExitWatch:
    """Looks for the end of one process, about a second long, and tells it once, then `is_done`.

    `pidfd` belongs to it; -1: there is none.
    """

    def __init__(self, pidfd: int, pid: int, uid: int, on_known: Callable[[ProcessOutcome], None]) -> None:
        self._pidfd = pidfd
        self._pid = pid
        self._uid = uid
        self._on_known = on_known
        self._looks = iter(_LOOKS_AFTER_SECONDS)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.is_done = False
        self._wait()

    def close(self) -> None:
        """Ends it without a word; may be called again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _wait(self) -> None:
        after_seconds = next(self._looks, None)
        if after_seconds is None or self._pidfd < 0:
            self._tell(ProcessOutcome(lives_on=self._pidfd >= 0 and not has_ended(self._pidfd)))
        else:
            self._timer = self._loop.call_later(after_seconds, self._look)

    def _look(self) -> None:
        status = exit_status(self._pidfd, self._pid, self._uid) if has_ended(self._pidfd) else None
        if status is None:
            self._wait()
        else:
            self._tell(ProcessOutcome(status))

    def _tell(self, outcome: ProcessOutcome) -> None:
        self.close()
        self.is_done = True
        self._on_known(outcome)


class ProfileRefused(Exception):
    """It can't be passed on; `reason` is one of the words for it, the text says why and what to do."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class ProfileTarget(Protocol):
    """A process as this needs it."""

    token: str
    pid: int
    who: PeerCredentials
    can_be_profiled: bool

    def say(self, line: bytes, descriptor: int | None = None) -> bool:
        """Writes a line to it; False where it doesn't read."""


def parse_profile_request(line: bytes) -> tuple[int, ProfileOptions]:
    """The process that is asked, and for what; Refused for rubbish."""
    try:
        return read_request(line)
    except ValueError:
        raise ProfileRefused(
            UNABLE, "the daemon doesn't understand what is asked for; is it of another version?"
        ) from None


def forward_profile_request(
    pid: int,
    wanted: ProfileOptions,
    asker: PeerCredentials,
    descriptor: int | None,
    attached: Iterable[ProfileTarget],
    allocator: CoreAllocator,
) -> None:
    """Passes a request on to its process; Refused. The descriptor stays the caller's."""
    if descriptor is None or not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        raise ProfileRefused(UNABLE, "no socket came with the request")
    target = next((each for each in attached if each.pid == pid and _holds_cores(allocator, each.token)), None)
    if target is None:
        if any(lease.pid == pid and lease.synthetic for lease in allocator.leases):
            raise ProfileRefused(UNABLE, f"PID {pid} is invented by the synthetic load and has nothing to profile")
        raise ProfileRefused(
            UNKNOWN, f"PID {pid} holds no NeuronCores of this daemon; neuron-ls shows who does, and under which PID"
        )
    if asker.uid not in (target.who.uid, 0):
        raise ProfileRefused(
            DENIED, f"PID {pid} is of user {target.who.uid}, and you are user {asker.uid}; use that account, or root"
        )
    if not target.can_be_profiled:
        version = allocator.known(target.token).runtime_version or "unknown"
        raise ProfileRefused(
            UNABLE,
            f"the runtime of PID {pid} (version {version}) takes no profiles on request; start the script with "
            "neuron-run --profile DIR",
        )
    if not target.say(forward_request(wanted), descriptor):
        raise ProfileRefused(UNABLE, f"PID {pid} doesn't read what the daemon says; look whether it is stopped")


def _holds_cores(allocator: CoreAllocator, token: str) -> bool:
    try:
        return allocator.known(token).count > 0
    except UnknownToken:
        return False
