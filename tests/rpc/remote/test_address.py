"""Where a daemon serves over TLS."""

from __future__ import annotations

import pytest

from neurontools.rpc.remote.address import RemoteAddress, remote_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("grpcs://trn-1:8001", RemoteAddress("trn-1", 8001)),
        ("grpcs://10.0.0.1:1/", RemoteAddress("10.0.0.1", 1)),
        ("grpcs://[fe80::1%eth0]:65535", RemoteAddress("fe80::1%eth0", 65_535)),
    ],
)
def test_a_host_and_a_port(text: str, address: RemoteAddress) -> None:
    assert remote_address(text) == address
    assert remote_address(address.text) == address


@pytest.mark.parametrize(
    "text",
    [
        "trn-1:8001",
        "grpcs://trn-1",
        "grpcs://trn-1:0",
        "grpcs://trn-1:65536",
        "grpcs://trn-1:x",
        "grpcs://:1",
        "grpcs://-o:1",
        "grpcs://a b:1",
        "grpcs://::1:8001",
        "grpcs://a@b:1",
        "grpc://a:1",
        "grpcs://a:1/x",
        "grpcs://\x1b[2J:1",
    ],
)
def test_anything_else_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"^'[^\x1b]*' is no address; write grpcs://HOST:PORT"):
        remote_address(text)
