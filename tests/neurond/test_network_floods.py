"""Many readers of the API over TLS, and those that only keep it busy."""

from __future__ import annotations

import resource
import ssl
from pathlib import Path

import pytest
from neurond.peers.network_gate import HANDSHAKES_OF_AN_ADDRESS

from tests.harness.certificates import needs_openssl
from tests.harness.connections import is_closed
from tests.harness.network_daemon import NetworkDaemon, summaries
from tests.harness.running_daemon import StartDaemon
from tests.harness.waiting import wait_until

pytestmark = needs_openssl


def client_hello() -> bytes:
    """What a client begins a handshake with."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_handshakes_that_stop_in_the_middle_are_few_and_slow_nobody(start_daemon: StartDaemon, tmp_path: Path) -> None:
    network = NetworkDaemon(start_daemon, tmp_path)
    context = network.context(network.viewer())
    hello = client_hello()
    with network.watch(context, "127.0.0.9") as reader:
        summaries(reader, 1)
        crowd = [network.tcp("127.0.0.2") for _ in range(200)]
        for number, member in enumerate(crowd):
            if number % 2:
                member.sendall(hello)
        with network.watch(context) as other:
            summaries(other, 2)
        wait_until(lambda: sum(not is_closed(member) for member in crowd) <= HANDSHAKES_OF_AN_ADDRESS)
        assert network.daemon.snapshot().instance.instance_type == "trn1.2xlarge"
        summaries(reader, 2)
        for member in crowd:
            member.close()


def test_a_thousand_readers_at_a_time(start_daemon: StartDaemon, tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 16_384:
        pytest.skip("this system allows too few files")
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384), hard))
    readers: list[ssl.SSLSocket] = []
    network = NetworkDaemon(start_daemon, tmp_path, "--simulate", "trn1.2xlarge", "--interval", "0.5")
    try:
        contexts = [network.context(files) for files in (network.viewer(), network.admin())]
        while len(readers) < 1000:
            readers.append(network.watch(contexts[len(readers) % 2], f"127.0.0.{1 + len(readers) % 10}"))
            summaries(readers[-1], 1)
        for reader in readers:
            summaries(reader, 2)
    finally:
        for reader in readers:
            reader.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_address_has_its_share(start_daemon: StartDaemon, tmp_path: Path) -> None:
    network = NetworkDaemon(start_daemon, tmp_path)
    context = network.context(network.viewer())
    readers = [network.watch(context) for _ in range(128)]
    try:
        for reader in readers:
            summaries(reader, 1)
        with network.watch(context) as one_more:
            said = b""
            while b"as many as it may" not in said:
                chunk = one_more.recv(2**14)
                assert chunk, said
                said += chunk
        assert b"address 127.0.0.1 has 128 connections open" in said
        with network.watch(context, "127.0.0.2") as other:
            summaries(other, 1)
    finally:
        for reader in readers:
            reader.close()
