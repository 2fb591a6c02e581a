"""Addresses to listen on, as Prometheus's own tools write them: ":8000", "127.0.0.1:8000", "[::1]:8000"."""

from __future__ import annotations


def listen_address(text: str) -> tuple[str | None, int]:
    """Host and port; no host, None, means all. ValueError says what is wrong."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ValueError(
            f"{text[:60]!r} has no port from 0 to 65535; write HOST:PORT, such as 127.0.0.1:8000, "
            "or :8000 for all addresses"
        )
    if ":" in bare and bare == host:
        raise ValueError(f"{text[:60]!r}: put an IPv6 address into brackets, such as [::1]:8000")
    return bare or None, int(port)
