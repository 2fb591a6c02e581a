"""Chooses the monitor daemon for a command, and registers the command with it as an observer."""

import _socket
import os

from neurontools.rpc import socket_path
from neurontools.rpc.socket_path import attach_socket

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, whose import takes several milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import ExitStack
    from typing import TypeVar

    T = TypeVar("T")


def choose_daemon(
    given: dict[str, str], environment: "Mapping[str, str]", *, reads_only: bool = True
) -> tuple[str | None, str | None]:
    """Returns the configured socket or the instance type to simulate. Options override environment variables.

    Returns (None, None) if neither is configured. Raises UserError if both are given as options, or the socket is
    invalid. If `reads_only` and the configured daemon serves over TLS, opens a tunnel and returns its local socket.
    """
    if given:  # without options, the import of the option parser is saved
        from neurontools.cli.line import exclude_each_other

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
        instance_type = environment.get(socket_path.SIMULATE_VARIABLE)
    return None, instance_type or None


def ask_first_daemon(ask: "Callable[[str], T]", environment: "Mapping[str, str]") -> "T | None":
    """Returns the answer of the first daemon of this host that answers; None if no daemon runs.

    `ask` receives a socket path, and raises NoDaemon if no daemon answers there. If daemons run but none answers,
    raises the NoDaemon that `ask` raised for the first of them.
    """
    failure = None
    for candidate in socket_path.candidate_sockets(environment):
        if _is_absent(candidate):
            continue  # without a socket, the import of rpc.ask is saved
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
        pass  # connecting to this socket will report the error
    return False


def ask_or_start_daemon(
    ask: "Callable[[str], T]",
    given: dict[str, str],
    stack: "ExitStack",
    *,
    interval_seconds: float | None = None,
    load: str | None = None,
) -> "T":
    """Returns the answer of the configured daemon, else of the first daemon of this host, else of a private daemon.

    If a simulation is configured, asks only a private daemon, which simulates. A private daemon takes a snapshot every
    `interval_seconds` and ends when `stack` closes. Raises NoDaemon if there is no daemon and no device.
    """
    named, instance_type = choose_daemon(given, os.environ)
    if named is not None:
        return ask(named)
    if instance_type is None:
        answer = ask_first_daemon(ask, os.environ)
        if answer is not None:
            return answer
        from neurontools.driver.environment import Roots

        if not Roots.from_environment(os.environ).has_devices:
            return ask(socket_path.candidate_sockets(os.environ)[0])  # this call raises NoDaemon with the reason
    from neurontools.cli.daemon.private import PrivateDaemon

    own = PrivateDaemon(instance_type, interval_seconds=interval_seconds, load=load)
    return ask(stack.enter_context(own).socket_path)


_LONGEST_TOKEN_BYTES = 4096
_PATIENCE_SECONDS = 1.0


def attach_observer(socket_path: str) -> _socket.socket | None:
    """Connects to the daemon's attach socket. While the connection is open, the daemon lists this process as an
    observer.

    Returns None if the connection fails; the command then works without being listed.
    """
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.settimeout(_PATIENCE_SECONDS)
        connection.connect(attach_socket(socket_path))
        # The daemon sends a line with a token once it has registered this process.
        token = b""
        while b"\n" not in token and len(token) < _LONGEST_TOKEN_BYTES:
            part = connection.recv(_LONGEST_TOKEN_BYTES)
            if not part:
                break
            token += part
    except OSError:
        connection.close()
        return None
    return connection
