"""How much one process, one user and everybody together may have open, and how much work they may ask for."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from neurontools.net.client_roles import Role

_MOST_CONNECTIONS = 1024
_MOST_ATTACHMENTS = 4096
_FILES_OF_A_CONNECTION = 3  # the client's, ours to the server and the server's
_FILES_OF_AN_ATTACHMENT = 2  # the connection and the process


class ResourceKind(Enum):
    """What can be open; the value is what it is called to those who have too many."""

    CONNECTION = "connections"
    CALL = "calls"
    HISTORY = "readers of the past"
    ATTACHMENT = "connections to the attach socket"


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """How many may be open at a time."""

    by_process: int  # on the network by address
    by_user: int  # on the network by the name of the certificate
    together: int


@dataclass(frozen=True, slots=True)
class WorkRate:
    """Work a second, and how much of it at once. The unit is one call with a small request."""

    per_second: float
    at_once: float


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """The limits of one daemon."""

    open: dict[ResourceKind, ResourceLimit]
    process_pace: WorkRate = WorkRate(1000.0, 500.0)
    user_pace: WorkRate = WorkRate(2000.0, 1000.0)


def limits_for(most_files: int) -> PeerLimits:
    """Limits that leave no process without a descriptor, for a daemon that may have so many files open.

    A user gets half of what there is and a process a quarter at most, so that nobody can take it all.
    """
    connections = min(_MOST_CONNECTIONS, most_files // (2 * _FILES_OF_A_CONNECTION))
    attachments = min(_MOST_ATTACHMENTS, most_files // (4 * _FILES_OF_AN_ATTACHMENT))
    return PeerLimits(
        {
            ResourceKind.CONNECTION: _shared(connections, by_process=64),
            ResourceKind.CALL: ResourceLimit(128, 2048, 4096),
            ResourceKind.HISTORY: ResourceLimit(4, 16, 64),
            ResourceKind.ATTACHMENT: _shared(attachments, by_process=16),
        }
    )


def network_limits(most_files: int) -> PeerLimits:
    """Limits for those who read over the network, for as many files of the daemon's.

    Many readers share an address: those on a login host, and those behind one that translates addresses.
    """
    connections = min(_MOST_CONNECTIONS, most_files // (2 * _FILES_OF_A_CONNECTION))
    return PeerLimits(
        {
            ResourceKind.CONNECTION: _shared(connections, by_process=128),
            ResourceKind.CALL: ResourceLimit(256, 2048, 4096),
            ResourceKind.HISTORY: ResourceLimit(4, 16, 64),
        }
    )


def _shared(together: int, by_process: int) -> ResourceLimit:
    return ResourceLimit(min(by_process, max(together // 4, 1)), max(together // 2, 1), max(together, 1))


_SWEEP_EVERY = 256  # new accounts


class Peer(Protocol):
    """Who is at the other end of a connection."""

    @property
    def accounts(self) -> tuple[tuple[str, Hashable] | None, tuple[str, Hashable]]:
        """What to call it and what tells it from others: itself, where that is known, and the many it is one of."""

    @property
    def role(self) -> Role:
        """How much it may see."""


class LimitReached(Exception):
    """Somebody has as much open as may be; the text says who, what and what to do."""


class _Account:
    """What one process or one user has open, and the work it may still ask for."""

    __slots__ = ("at_seconds", "left", "name", "open", "pace")

    def __init__(self, name: str, pace: WorkRate, now_seconds: float) -> None:
        self.name = name
        self.pace = pace
        self.open: Counter[ResourceKind] = Counter()
        self.left = pace.at_once
        self.at_seconds = now_seconds

    def spend(self, work: float, now_seconds: float) -> float:
        """Takes work off what is left, and never owes more than may be asked for at once; returns `wait_seconds`."""
        self.left = min(self.pace.at_once, self.left + (now_seconds - self.at_seconds) * self.pace.per_second)
        self.left = max(self.left - work, -self.pace.at_once)
        self.at_seconds = now_seconds
        return self.wait_seconds(now_seconds)

    def wait_seconds(self, now_seconds: float) -> float:
        """How long until nothing is owed."""
        return max(-self.left / self.pace.per_second - (now_seconds - self.at_seconds), 0.0)

    def is_forgotten(self, now_seconds: float) -> bool:
        """Whether nothing is open and nothing is owed: a new account would be the same."""
        if any(self.open.values()):
            return False
        return self.left + (now_seconds - self.at_seconds) * self.pace.per_second >= self.pace.at_once


class PeerLimiter:
    """Everybody at the daemon's sockets. Belongs to the event loop's thread; `clock` tells CLOCK_MONOTONIC."""

    def __init__(self, limits: PeerLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._clock = clock
        self._accounts: dict[tuple[str, Hashable], _Account] = {}
        self._together: Counter[ResourceKind] = Counter()
        self._until_sweep = _SWEEP_EVERY
        self.closed_total = 0

    def take(self, who: Peer, kind: ResourceKind) -> None:
        """Counts one more as open; AtLimit when there are as many as may be."""
        most = self.limits.open[kind]
        accounts = list(self._accounts_of(who))
        for account in accounts:
            allowed = most.by_user if account.pace is self.limits.user_pace else most.by_process
            if account.open[kind] >= allowed:
                raise LimitReached(
                    f"{account.name} has {allowed} {kind.value} open, as many as it may; end some of them"
                )
        if self._together[kind] >= most.together:
            raise LimitReached(f"the daemon has {most.together} {kind.value} open, as many as it can; end some of them")
        for account in accounts:
            account.open[kind] += 1
        self._together[kind] += 1

    def give_back(self, who: Peer, kind: ResourceKind) -> None:
        """Counts one less as open."""
        for account in self._accounts_of(who):
            account.open[kind] -= 1
        self._together[kind] -= 1
        self.closed_total += 1

    def spend(self, who: Peer, work: float) -> float:
        """Takes note of work that is asked for; returns the seconds that its peer has to wait before it asks again.

        What a process asks for while it has to wait is its own debt, and none of its user's.
        """
        now_seconds = self._clock()
        wait_seconds = 0.0
        for account in self._accounts_of(who):
            is_waiting = wait_seconds > 0
            wait_seconds = max(wait_seconds, account.wait_seconds(now_seconds))
            if not is_waiting:
                wait_seconds = max(wait_seconds, account.spend(work, now_seconds))
        return wait_seconds

    def _accounts_of(self, who: Peer) -> Iterator[_Account]:
        one, many = who.accounts
        if one is not None:
            yield self._account(one, self.limits.process_pace)
        yield self._account(many, self.limits.user_pace)

    def _account(self, key: tuple[str, Hashable], pace: WorkRate) -> _Account:
        account = self._accounts.get(key)
        if account is None:
            now_seconds = self._clock()
            self._until_sweep -= 1
            if self._until_sweep <= 0:
                self._until_sweep = max(_SWEEP_EVERY, len(self._accounts))
                forgotten = [old for old, each in self._accounts.items() if each.is_forgotten(now_seconds)]
                for old in forgotten:
                    del self._accounts[old]
            account = self._accounts[key] = _Account(f"{key[0]} {key[1]}", pace, now_seconds)
        return account


_UCRED = struct.Struct("iII")  # pid, uid, gid
_SO_PEERPIDFD = 77  # Linux 6.5; not in the socket module yet


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """A process and its user as they were when it connected.

    `pid` is None where the process is in a PID namespace that the daemon can't see.
    """

    pid: int | None
    uid: int

    @property
    def role(self) -> Role:
        """Who may use the socket may see all."""
        return Role.FULL

    @property
    def accounts(self) -> tuple[tuple[str, int] | None, tuple[str, int]]:
        """Whose limits hold for it: its process, where that is known, and its user."""
        return None if self.pid is None else ("PID", self.pid), ("user", self.uid)


def read_peer_credentials(connection: socket.socket) -> PeerCredentials:
    """Who connected; OSError when the kernel doesn't tell."""
    pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return PeerCredentials(pid or None, uid)


def open_pidfd(connection: socket.socket, pid: int) -> int:
    """A descriptor that becomes readable when the peer ends; -1 where the kernel offers none.

    OSError when the peer has ended already or no more files can be opened.
    """
    try:
        return int(struct.unpack("i", connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4))[0])
    except OSError as error:
        if error.errno not in (errno.ENOPROTOOPT, errno.EINVAL):
            raise
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
    return -1
