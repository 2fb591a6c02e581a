"""Who shares a share: addresses that one host has to itself count as one."""

from __future__ import annotations

import ipaddress


def neighbourhood(address: str) -> str:
    """An IPv4 address as it is; of IPv6 the first 64 bits. `address` is one as `accept` tells it."""
    host = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(host, ipaddress.IPv4Address):
        return str(host)
    if host.ipv4_mapped is not None:
        return str(host.ipv4_mapped)
    return str(ipaddress.ip_network((host, 64), strict=False))
