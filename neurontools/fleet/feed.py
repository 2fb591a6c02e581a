"""What a view of many hosts asks of the feed that knows them, whichever it is."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

from neurontools.fleet.jobs import FleetJob, fleet_jobs
from neurontools.fleet.states import HostState
from neurontools.util.signals import defer_signals


class FleetFeed(ABC):
    """A context with the hosts as they are known. All may be asked from any thread; `notify` is called in the feed's.

    It ends with `close`, and all that it opened with it.
    """

    interval_seconds: float

    def __init__(self) -> None:
        self._notify: Callable[[], None] = lambda: None
        self._are_users_wanted = False

    @property
    @abstractmethod
    def states(self) -> tuple[HostState, ...]:
        """How it stands with each host."""

    @property
    def jobs(self) -> tuple[FleetJob, ...]:
        """The jobs over these hosts, those with most cores first."""
        return fleet_jobs(self.states)

    def want_users(self) -> None:
        """Find out from here on whose the jobs are, where that has to be asked for."""
        self._are_users_wanted = True

    @property
    def notes(self) -> tuple[str, ...]:
        """What is wrong with the feed itself, in lines; of one host its state tells."""
        return ()

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether every host has answered, or is known not to."""

    @property
    @abstractmethod
    def longest_wait_seconds(self) -> float:
        """How long it may take to be settled."""

    @abstractmethod
    def socket_path(self, name: str) -> str | None:
        """Where the daemon of a host can be asked from here by now; None for one that was not reached yet."""

    def reached(self, name: str) -> str | None:
        """The same of a host that somebody wants to look at, which it may take some seconds to reach."""
        return self.socket_path(name)

    @abstractmethod
    def start(self, notify: Callable[[], None] = lambda: None) -> None:
        """Begin to ask."""

    @abstractmethod
    def close(self) -> None:
        """End all; may be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with defer_signals():
            self.close()

    def wait_settled(self, seconds: float | None = None) -> bool:
        """Wait until it is settled, so long at most; for `start` without `notify`."""
        settled = threading.Event()
        self._notify = lambda: settled.set() if self.is_settled else None
        self._notify()
        return settled.wait(self.longest_wait_seconds if seconds is None else seconds)
