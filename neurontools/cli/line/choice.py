"""Which daemon a command asks: the one that was named, one that simulates, or whichever runs on this host."""

import os

from neurontools.rpc import socket_path

TYPE_CHECKING = False  # as typing has it, whose import takes too long for neuron-ls
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    T = TypeVar("T")

SIMULATE_VARIABLE = "NEURONTOOLS_SIMULATE"


def named_or_simulated(
    given: dict[str, str], environment: "Mapping[str, str]", *, reads_only: bool = True
) -> tuple[str | None, str | None]:
    """The socket that was named, or else the instance type to simulate; what was said by a flag goes first.

    Two times None where it is all the same which daemon it is. UserError when both were given, or no path of a socket.
    For who `reads_only`, a daemon that serves over TLS gets a socket here.
    """
    if given:  # else there is nothing to exclude, and neuron-ls has not loaded what reads options
        from neurontools.cli.line.options import exclude_each_other

        exclude_each_other(given, "simulate", "socket")
    instance_type = given.get("simulate")
    if instance_type is None:
        text = given.get("socket") or environment.get(socket_path.VARIABLE, "")
        if reads_only and text.startswith(socket_path.REMOTE_SCHEME):
            from neurontools.rpc.tunnel_registry import open_tunnel

            by = "--socket" if "socket" in given else socket_path.VARIABLE
            return open_tunnel(text, by, given, environment), None
        named = socket_path.configured_socket(given.get("socket"), environment)
        if named is not None:
            return named, None
        instance_type = environment.get(SIMULATE_VARIABLE)
    return None, instance_type or None


def first_answer(ask: "Callable[[str], T]", environment: "Mapping[str, str]") -> "T | None":
    """What `ask` answers for the first socket of this host that a daemon answers at; None where there is no daemon.

    `ask` gets the path of a socket, and raises NoDaemon. The first daemon that is there and can't be asked is told of
    (NoDaemon) only when no other answers.
    """
    failure = None
    for candidate in socket_path.candidate_sockets(environment):
        if _is_absent(candidate):
            continue  # before anything is imported to ask
        from neurontools.rpc.ask import NoDaemon

        try:
            return ask(candidate)
        except NoDaemon as error:
            if failure is None and not error.is_absent:
                failure = error
    if failure is not None:
        raise failure
    return None


def _is_absent(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        pass  # whoever asks will say what is wrong
    return False
