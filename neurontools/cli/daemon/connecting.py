"""The daemon that a command stays with: the one that is asked, or one of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from neurontools.cli.line.choice import first_answer, named_or_simulated
from neurontools.rpc import socket_path

T = TypeVar("T")


def connected(
    ask: Callable[[str], T],
    given: dict[str, str],
    stack: ExitStack,
    *,
    interval_seconds: float | None = None,
    load: str | None = None,
) -> T:
    """What `ask` answers for the socket of the daemon that is asked, as `first_answer` has it.

    A daemon of the command's own, which takes snapshots at this interval, is left to the stack: one that simulates, or
    where none runs but there are devices one that reads them. NoDaemon when there is nothing to ask.
    """
    named, instance_type = named_or_simulated(given, os.environ)
    if named is not None:
        return ask(named)
    if instance_type is None:
        answer = first_answer(ask, os.environ)
        if answer is not None:
            return answer
        from neurontools.driver.environment import Roots

        if not Roots.from_environment(os.environ).has_devices:
            return ask(socket_path.candidate_sockets(os.environ)[0])  # which says what is missing
    from neurontools.cli.daemon.private import PrivateDaemon

    own = PrivateDaemon(instance_type, interval_seconds=interval_seconds, load=load)
    return ask(stack.enter_context(own).socket_path)
