"""TCP ports for servers that can't take whichever there is."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from random import SystemRandom

# Below the ports that the system gives to clients, and above 10080, which browsers refuse.
_FIRST, _END = 10_100, 32_000
_SHARES = 16


def _in_turn() -> Iterator[int]:
    """The ports of this test process, from anywhere on: none comes twice before all of them have."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    size = (_END - _FIRST) // _SHARES
    begin = SystemRandom().randrange(size)
    return (_FIRST + worker % _SHARES * size + (begin + number) % size for number in count())


_ports = _in_turn()


def free_port() -> int:
    """A port that nobody listens on, nor will before whoever is told of it does."""
    return free_ports(1)[0]


def free_ports(number: int) -> tuple[int, ...]:
    """So many of them in a row."""
    found: tuple[int, ...] = ()
    with ExitStack() as stack:
        while len(found) < number:
            port = next(_ports)
            try:
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                found = ()
            else:
                found = (*found, port) if found and found[-1] == port - 1 else (port,)
    return found
