"""Limits per process, per user and in total: open connections and calls, and the rate of requests."""

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

from neurontools.net.tls import Role

_MOST_CONNECTIONS = 1024
_MOST_ATTACHMENTS = 4096
_FILES_PER_CONNECTION = 3  # file descriptors of a client's socket, and of both ends of the socket to the server
_FILES_PER_ATTACHMENT = 2  # file descriptors of a process's socket and its pidfd; an exit watch keeps the pidfd


class ResourceKind(Enum):
    """Resources with a limit. The value is the name in error messages."""

    CONNECTION = "connections"
    CALL = "calls"
    HISTORY = "history readers"
    ATTACHMENT = "connections to the attach socket"
    EXIT_WATCH = "processes that live on without cores"


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """How many of a resource may be open at the same time: per process, per user and in total."""

    by_process: int  # limit of one process; for network clients, of one address
    by_user: int  # limit of one user; for network clients, of one certificate name
    together: int


@dataclass(frozen=True, slots=True)
class WorkRate:
    """Refill rate and burst of a token bucket. One token pays for one call with a small request."""

    per_second: float
    burst: float


@dataclass(frozen=True, slots=True)
class PeerLimits:
    open: dict[ResourceKind, ResourceLimit]
    process_pace: WorkRate = WorkRate(1000.0, 500.0)
    user_pace: WorkRate = WorkRate(2000.0, 1000.0)


def limits_for(most_files: int) -> PeerLimits:
    """Returns limits for a daemon that may open `most_files` file descriptors.

    One user gets at most half of the descriptors and one process a quarter, so that nobody can take all of them.
    """
    connections = min(_MOST_CONNECTIONS, most_files // (2 * _FILES_PER_CONNECTION))
    attachments = min(_MOST_ATTACHMENTS, most_files // (4 * _FILES_PER_ATTACHMENT))
    return PeerLimits(
        {
            ResourceKind.CONNECTION: _split_limit(connections, by_process=64),
            ResourceKind.CALL: ResourceLimit(128, 2048, 4096),
            ResourceKind.HISTORY: ResourceLimit(4, 16, 64),
            ResourceKind.ATTACHMENT: _split_limit(attachments, by_process=16),
            ResourceKind.EXIT_WATCH: _split_limit(attachments // 4, by_process=2),
        }
    )


def network_limits(most_files: int) -> PeerLimits:
    """Returns limits for clients over the network, whose connections may use `most_files` file descriptors.

    The limits per address are high, because the readers on a login host or behind NAT share an address.
    """
    connections = min(_MOST_CONNECTIONS, most_files // (2 * _FILES_PER_CONNECTION))
    return PeerLimits(
        {
            ResourceKind.CONNECTION: _split_limit(connections, by_process=128),
            ResourceKind.CALL: ResourceLimit(256, 2048, 4096),
            ResourceKind.HISTORY: ResourceLimit(4, 16, 64),
        }
    )


def _split_limit(together: int, by_process: int) -> ResourceLimit:
    return ResourceLimit(min(by_process, max(together // 4, 1)), max(together // 2, 1), max(together, 1))


_SWEEP_EVERY = 256  # least number of new accounts before the accounts of idle peers are removed again


class Peer(Protocol):
    """A process or network client that uses the daemon."""

    @property
    def accounts(self) -> tuple[tuple[str, Hashable] | None, tuple[str, Hashable]]:
        """(kind, key) of two accounts: of the process or address (None: unknown), and of the user or certificate."""

    @property
    def role(self) -> Role:
        """The role, which decides what the peer may see."""


class LimitReached(Exception):
    """A limit is reached. The message names the process or user, the limit and the next step."""


class _Account:
    """Open resources and token bucket of one process or user."""

    __slots__ = ("at_seconds", "left", "name", "open", "pace")

    def __init__(self, name: str, pace: WorkRate, now_seconds: float) -> None:
        self.name = name
        self.pace = pace
        self.open: Counter[ResourceKind] = Counter()
        self.left = pace.burst
        self.at_seconds = now_seconds

    def spend(self, work: float, now_seconds: float) -> float:
        """Takes `work` tokens from the bucket, even into a debt of at most one burst. Returns the seconds to wait."""
        self.left = min(self.pace.burst, self.left + (now_seconds - self.at_seconds) * self.pace.per_second)
        self.left = max(self.left - work, -self.pace.burst)
        self.at_seconds = now_seconds
        return self.wait_seconds(now_seconds)

    def wait_seconds(self, now_seconds: float) -> float:
        """Returns the seconds until the refilled bucket is out of debt."""
        return max(-self.left / self.pace.per_second - (now_seconds - self.at_seconds), 0.0)

    def is_idle(self, now_seconds: float) -> bool:
        """Whether the account can be dropped: nothing is open and the bucket is full, as in a new account."""
        if any(self.open.values()):
            return False
        return self.left + (now_seconds - self.at_seconds) * self.pace.per_second >= self.pace.burst


class PeerLimiter:
    """Limits the open resources and the request rate of each peer. Belongs to the event loop's thread."""

    def __init__(self, limits: PeerLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._clock = clock
        self._accounts: dict[tuple[str, Hashable], _Account] = {}
        self._together: Counter[ResourceKind] = Counter()
        self._until_sweep = _SWEEP_EVERY
        self.closed_total = 0

    def take(self, peer: Peer, kind: ResourceKind) -> None:
        """Counts one more open resource of a peer. Raises LimitReached if a limit is reached."""
        most = self.limits.open[kind]
        accounts = list(self._accounts_of(peer))
        for account in accounts:
            allowed = most.by_user if account.pace is self.limits.user_pace else most.by_process
            if account.open[kind] >= allowed:
                raise LimitReached(
                    f"{account.name} has {allowed} {kind.value} open, which is its limit; end some of them"
                )
        if self._together[kind] >= most.together:
            raise LimitReached(
                f"the daemon has {most.together} {kind.value} open, which is its limit; end some of them"
            )
        for account in accounts:
            account.open[kind] += 1
        self._together[kind] += 1

    def release(self, peer: Peer, kind: ResourceKind) -> None:
        for account in self._accounts_of(peer):
            account.open[kind] -= 1
        self._together[kind] -= 1
        self.closed_total += 1

    def spend(self, peer: Peer, work: float) -> float:
        """Charges a peer for work. Returns how many seconds the peer has to wait before its next request.

        While the account of the process is in debt, the account of its user is not charged.
        """
        now_seconds = self._clock()
        wait_seconds = 0.0
        for account in self._accounts_of(peer):
            is_waiting = wait_seconds > 0
            wait_seconds = max(wait_seconds, account.wait_seconds(now_seconds))
            if not is_waiting:
                wait_seconds = max(wait_seconds, account.spend(work, now_seconds))
        return wait_seconds

    def _accounts_of(self, peer: Peer) -> Iterator[_Account]:
        one, many = peer.accounts
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
                self._accounts = {old: each for old, each in self._accounts.items() if not each.is_idle(now_seconds)}
            account = self._accounts[key] = _Account(f"{key[0]} {key[1]}", pace, now_seconds)
        return account


_UCRED = struct.Struct("iII")  # struct ucred: pid, uid, gid
_SO_PEERPIDFD = 77  # socket option since Linux 6.5; Python's socket module lacks it


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """Process and user of a Unix socket's peer. `pid` is None in a PID namespace that the daemon can't see."""

    pid: int | None
    uid: int

    @property
    def role(self) -> Role:
        """The role is always the full one, because the mode of the socket already limits who may connect."""
        return Role.FULL

    @property
    def accounts(self) -> tuple[tuple[str, int] | None, tuple[str, int]]:
        return None if self.pid is None else ("PID", self.pid), ("user", self.uid)


def read_peer_credentials(connection: socket.socket) -> PeerCredentials:
    """Reads the peer's credentials from SO_PEERCRED. Raises OSError if the kernel refuses."""
    pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return PeerCredentials(pid or None, uid)


def open_pidfd(connection: socket.socket, pid: int) -> int:
    """Opens a pidfd, which becomes readable when the peer's process ends. Returns -1 if the kernel has no pidfds.

    Raises OSError if the peer has already ended or no more files can be opened.
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
