"""Who is at the other end of a connection over the network, by the word of its certificate."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.net.tls.subjects import Role


@dataclass(frozen=True, slots=True)
class NetworkPeer:
    """A reader. Its limits are those of its address and those of its name."""

    address: str  # that one host has to itself
    name: str  # in its certificate, by which it has its role
    role: Role

    @property
    def accounts(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Whose limits hold for it."""
        return ("address", self.address), ("subject", self.name)
