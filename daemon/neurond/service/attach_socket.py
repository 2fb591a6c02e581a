"""The attach socket: where the kernel proves who a process is, and tells when it ends.

A process connects, is told its token in one line, and keeps the connection open. Its end, or the end of the process,
whichever comes first, ends its ownership: forked children may have inherited the connection, so the process is watched
too (pidfd). On a simulated host the connection carries injected faults to the process, and back what came of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass

from neurond.faults.faults import Faults
from neurond.journal.outcome import Outcome
from neurond.ownership.ledger import Ledger
from neurond.peers.credentials import Credentials, credentials, open_pidfd
from neurond.peers.limits import Kind
from neurond.peers.peers import AtLimit, Peers
from neurond.service.exit_watch import ExitWatch
from neurond.system.steady_clock import SteadyClock
from neurontools.sockets.acceptor import Acceptor
from neurontools.text.seldom import Seldom

_READ_BYTES = 4096
_LONGEST_LINE_BYTES = 64
_LAST_READS = 16
_MOST_LINES = 64  # of one read; more than a process that means it says at once

_tell_refusal = Seldom(logging.getLogger(__name__), logging.WARNING)


class AttachSocket:
    """The listening attach socket of a daemon. `on_end` is told how each process ended that held cores, by its token,
    within about a second. `faults` are those of a simulated host.
    """

    def __init__(
        self,
        ledger: Ledger,
        peers: Peers,
        clock: SteadyClock,
        on_end: Callable[[str, Outcome], None],
        faults: Faults | None = None,
    ) -> None:
        self._ledger = ledger
        self._faults = faults
        if faults is not None:
            faults.around.say = self.say
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
        heard = None if self._faults is None else self._faults.heard
        try:
            attached = _Attached(connection, self._ledger, self._peers, self._clock.now(), self._left, heard)
            self._attached[attached.token] = attached
        except _Refused as refused:
            _refuse(connection, str(refused))
            connection.close()

    def _left(self, left: _Left) -> None:
        self._attached.pop(left.token, None)
        if self._faults is not None:
            self._faults.left(left.token)
        if not left.held_cores:
            if left.pidfd >= 0:
                os.close(left.pidfd)
            return

        def known(outcome: Outcome) -> None:
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
    """One connection of a process, from which it is in the ledger until either ends; _Refused when it can't be."""

    def __init__(
        self,
        connection: socket.socket,
        ledger: Ledger,
        peers: Peers,
        now_unix_seconds: float,
        on_end: Callable[[_Left], None],
        heard: Callable[[str, bytes], None] | None,
    ) -> None:
        self._heard = heard
        self._line = b""
        self._connection = connection
        self._ledger = ledger
        self._peers = peers
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._who, self._pid, self._pidfd = _admitted(connection, peers)
        self.token = secrets.token_hex(16)
        self._is_open = True
        ledger.enter(self.token, self._pid, self._who.uid, now_unix_seconds)
        self._loop.add_reader(connection.fileno(), self._read)
        if self._pidfd >= 0:
            self._loop.add_reader(self._pidfd, self._ended)
        with contextlib.suppress(OSError):  # it is gone already, as reading will show
            connection.send(f"{self.token}\n".encode())

    def say(self, line: bytes) -> None:
        """Writes a line; it is lost where the process doesn't read."""
        with contextlib.suppress(OSError):
            self._connection.send(line)

    def close(self) -> None:
        """Ends the connection and lets the process go."""
        if not self._is_open:
            return
        token, self._is_open = self.token, False
        held_cores = self._ledger.known(token).count > 0
        self._ledger.leave(token)
        self._loop.remove_reader(self._connection.fileno())
        self._connection.close()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
        self._peers.give_back(self._who, Kind.ATTACHMENT)
        self._on_end(_Left(token, self._pid, self._who.uid, self._pidfd, held_cores))

    def _ended(self) -> None:
        """The process has ended: what it said last is heard before it goes."""
        for _ in range(_LAST_READS):
            if not self._is_open or not self._read():
                break
        self.close()

    def _read(self) -> bool:
        """Takes what a process says of injected faults, if anything; where devices are real it is dropped."""
        try:
            received = self._connection.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            received = b""
        if not received:
            self.close()
            return False
        if self._heard is not None:
            *lines, rest = (self._line + received).split(b"\n")
            self._line = rest[:_LONGEST_LINE_BYTES]
            for line in lines[:_MOST_LINES]:
                self._heard(self.token, line)
        return True


def _admitted(connection: socket.socket, peers: Peers) -> tuple[Credentials, int, int]:
    """Who connected, its PID and the descriptor that tells its end, counted among what it has open; or _Refused."""
    try:
        who = credentials(connection)
    except OSError as error:
        raise _Refused(f"the kernel doesn't tell who this is: {error.strerror}") from None
    if who.pid is None:
        raise _Refused("the kernel gives no PID for this process: it is in a PID namespace that the daemon can't see")
    try:
        peers.take(who, Kind.ATTACHMENT)
    except AtLimit as limit:
        raise _Refused(str(limit)) from None
    try:
        return who, who.pid, open_pidfd(connection, who.pid)
    except OSError as error:  # it has ended already, or the daemon is out of file descriptors
        peers.give_back(who, Kind.ATTACHMENT)
        raise _Refused(f"PID {who.pid} can't be watched: {error.strerror}") from None


def _refuse(connection: socket.socket, reason: str) -> None:
    _tell_refusal("attach refused: %s", reason)
    with contextlib.suppress(OSError):
        connection.send(f"error: {reason}\n".encode())
