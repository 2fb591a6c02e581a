"""The tunnel of a command that asks one daemon: it stands until the command ends."""

from __future__ import annotations

from collections.abc import Mapping

from neurontools.rpc import socket_path
from neurontools.rpc.remote.address import remote_address
from neurontools.rpc.remote.certificates import client_tls
from neurontools.rpc.remote.tunnels import Tunnels
from neurontools.util.errors import EXIT_USAGE, UserError

_standing: list[Tunnels] = []


def standing_socket(text: str, given_by: str, given: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """The path of a socket that stands for the daemon at `grpcs://HOST:PORT`; UserError."""
    try:
        address = remote_address(text)
    except ValueError as error:
        raise UserError(f"{given_by}: {error}", EXIT_USAGE) from None
    tunnels = Tunnels(client_tls(given, environment))
    _standing.append(tunnels)
    path = tunnels.open(address)
    socket_path.stands_for(path, address.text)
    return path


def end_all() -> None:
    """End what stands."""
    while _standing:
        _standing.pop().close()
