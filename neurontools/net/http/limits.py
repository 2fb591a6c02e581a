"""How much a client may have of a server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Connections and times. Those that wait for a handshake or for a head count like all others."""

    connections: int = 256
    of_an_address: int = 64
    head_seconds: float = 5.0  # for a handshake and a head, or from the first byte of a later request to the end of it
    idle_seconds: float = 120.0  # between two requests
    write_seconds: float = 30.0  # for a client to take what is sent, piece by piece

    def with_files(self, most_files: int) -> Limits:
        """These for a process that may have so many files open: a quarter of them."""
        connections = max(2, min(self.connections, most_files // 4))
        share = min(self.of_an_address, connections // 2)
        return Limits(connections, share, self.head_seconds, self.idle_seconds, self.write_seconds)
