"""What each process and each user has open, and the pace of what they ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Protocol

from neurond.peers.limits import Kind, Limits, Pace
from neurontools.net.tls.subjects import Role

_SWEEP_EVERY = 256  # new accounts


class Peer(Protocol):
    """Who is at the other end of a connection."""

    @property
    def accounts(self) -> tuple[tuple[str, Hashable] | None, tuple[str, Hashable]]:
        """What to call it and what tells it from others: itself, where that is known, and the many it is one of."""

    @property
    def role(self) -> Role:
        """How much it may see."""


class AtLimit(Exception):
    """Somebody has as much open as may be; the text says who, what and what to do."""


class _Account:
    """What one process or one user has open, and the work it may still ask for."""

    __slots__ = ("at_seconds", "left", "name", "open", "pace")

    def __init__(self, name: str, pace: Pace, now_seconds: float) -> None:
        self.name = name
        self.pace = pace
        self.open: Counter[Kind] = Counter()
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


class Peers:
    """Everybody at the daemon's sockets. Belongs to the event loop's thread; `clock` tells CLOCK_MONOTONIC."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._clock = clock
        self._accounts: dict[tuple[str, Hashable], _Account] = {}
        self._together: Counter[Kind] = Counter()
        self._until_sweep = _SWEEP_EVERY
        self.closed_total = 0

    def take(self, who: Peer, kind: Kind) -> None:
        """Counts one more as open; AtLimit when there are as many as may be."""
        most = self.limits.open[kind]
        accounts = list(self._accounts_of(who))
        for account in accounts:
            allowed = most.by_user if account.pace is self.limits.user_pace else most.by_process
            if account.open[kind] >= allowed:
                raise AtLimit(f"{account.name} has {allowed} {kind.value} open, as many as it may; end some of them")
        if self._together[kind] >= most.together:
            raise AtLimit(f"the daemon has {most.together} {kind.value} open, as many as it can; end some of them")
        for account in accounts:
            account.open[kind] += 1
        self._together[kind] += 1

    def give_back(self, who: Peer, kind: Kind) -> None:
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

    def _account(self, key: tuple[str, Hashable], pace: Pace) -> _Account:
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
