"""The server behind a gate: this process alone reaches it, over connections each of which has a name.

By that name handlers know whose call it is; what a client sends is weighed on its way.
"""

from __future__ import annotations

import os
import socket
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from neurond.peers.limits import Kind
from neurond.peers.peers import Peer, Peers
from neurond.peers.relay import Relay

P = TypeVar("P", bound=Peer)
R = TypeVar("R", bound=Relay)


class InnerServer(Generic[P]):
    """A server on a Unix socket, and the connections to it. Belongs to the event loop's thread."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._descriptor = -1
        self._relays: dict[Relay, str] = {}
        self._names: dict[str, P] = {}

    def __len__(self) -> int:
        return len(self._relays)

    def open(self, path: str) -> None:
        """The server listens on this path, which nobody finds any more afterwards: a descriptor alone leads to it."""
        self._descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        Path(path).unlink()

    def who(self, peer_name: str) -> P | None:
        """Whose call it is, by what grpcio calls the peer; None when the connection has ended."""
        return self._names.get(peer_name)

    def relays(self) -> list[tuple[Relay, P]]:
        """The open connections, and whose each is."""
        return [(relay, self._names[name]) for relay, name in self._relays.items()]

    def connect(self, client: socket.socket, who: P, kind: type[R]) -> R:
        """Passes a client's bytes on from here on; its place among the connections is given back at the end.

        OSError when there can be no more connections; the client is still the caller's then, and so is its place.
        """
        server: socket.socket | None = None
        try:
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            server.bind("")  # the kernel gives it a name that nobody else has (unix(7), autobind)
            server.connect(f"/proc/self/fd/{self._descriptor}")
        except OSError:
            if server is not None:
                server.close()
            raise
        name = f"unix-abstract:{server.getsockname()[1:].decode('ascii')}"
        self._names[name] = who
        relay = kind(client, server, partial(self._peers.spend, who), self._ended)
        self._relays[relay] = name
        return relay

    def close(self) -> None:
        """Ends all connections, and there will be no more."""
        for relay in list(self._relays):
            relay.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _ended(self, relay: Relay) -> None:
        who = self._names.pop(self._relays.pop(relay))
        self._peers.give_back(who, Kind.CONNECTION)
