"""Addresses of daemons that serve over TLS: `grpcs://HOST:PORT`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from neurontools.util.terminal import excerpt

SCHEME = "grpcs://"
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})")
_IPV6 = re.compile(r"\[[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9._-]{1,32})?\]")


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """A host (name or IP address) and a TCP port."""

    host: str  # an IPv6 address is stored without brackets
    port: int

    @property
    def text(self) -> str:
        return f"{SCHEME}[{self.host}]:{self.port}" if ":" in self.host else f"{SCHEME}{self.host}:{self.port}"


def remote_address(text: str) -> RemoteAddress:
    """Parses `grpcs://HOST:PORT`. Raises ValueError with a message for the user."""
    host, colon, port = text.removeprefix(SCHEME).rstrip("/").rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536
    if not text.startswith(SCHEME) or not colon or not is_port or not (_HOST.fullmatch(host) or _IPV6.fullmatch(host)):
        raise ValueError(
            f"{excerpt(text, 60)!r} is not an address; write grpcs://HOST:PORT, such as grpcs://trn-1:8001"
        )
    return RemoteAddress(host.strip("[]"), int(port))
