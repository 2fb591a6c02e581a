"""How much one process, one user and everybody together may have open, and how much work they may ask for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

_MOST_CONNECTIONS = 1024
_MOST_ATTACHMENTS = 4096
_FILES_OF_A_CONNECTION = 3  # the client's, ours to the server and the server's
_FILES_OF_AN_ATTACHMENT = 2  # the connection and the process


class Kind(Enum):
    """What can be open; the value is what it is called to those who have too many."""

    CONNECTION = "connections"
    CALL = "calls"
    HISTORY = "readers of the past"
    ATTACHMENT = "connections to the attach socket"


@dataclass(frozen=True, slots=True)
class Most:
    """How many may be open at a time."""

    by_process: int  # on the network by address
    by_user: int  # on the network by the name of the certificate
    together: int


@dataclass(frozen=True, slots=True)
class Pace:
    """Work a second, and how much of it at once. The unit is one call with a small request."""

    per_second: float
    at_once: float


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one daemon."""

    open: dict[Kind, Most]
    process_pace: Pace = Pace(1000.0, 500.0)
    user_pace: Pace = Pace(2000.0, 1000.0)


def limits_for(most_files: int) -> Limits:
    """Limits that leave no process without a descriptor, for a daemon that may have so many files open.

    A user gets half of what there is and a process a quarter at most, so that nobody can take it all.
    """
    connections = min(_MOST_CONNECTIONS, most_files // (2 * _FILES_OF_A_CONNECTION))
    attachments = min(_MOST_ATTACHMENTS, most_files // (4 * _FILES_OF_AN_ATTACHMENT))
    return Limits(
        {
            Kind.CONNECTION: _shared(connections, by_process=64),
            Kind.CALL: Most(128, 2048, 4096),
            Kind.HISTORY: Most(4, 16, 64),
            Kind.ATTACHMENT: _shared(attachments, by_process=16),
        }
    )


def network_limits(most_files: int) -> Limits:
    """Limits for those who read over the network, for as many files of the daemon's.

    Many readers share an address: those on a login host, and those behind one that translates addresses.
    """
    connections = min(_MOST_CONNECTIONS, most_files // (2 * _FILES_OF_A_CONNECTION))
    return Limits(
        {
            Kind.CONNECTION: _shared(connections, by_process=128),
            Kind.CALL: Most(256, 2048, 4096),
            Kind.HISTORY: Most(4, 16, 64),
        }
    )


def _shared(together: int, by_process: int) -> Most:
    return Most(min(by_process, max(together // 4, 1)), max(together // 2, 1), max(together, 1))
