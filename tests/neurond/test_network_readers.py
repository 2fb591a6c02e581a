"""Our own readers of the API over TLS: one host, many hosts, and whatever is wrong with one."""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from neurontools.client import Client
from neurontools.fleet.direct_feed import DirectFeed
from neurontools.fleet.hosts import named_hosts
from neurontools.fleet.states import Link
from neurontools.rpc.remote.address import remote_address
from neurontools.rpc.remote.certificates import client_tls
from neurontools.rpc.remote.tunnels import Tunnels
from tests.harness.certificates import Authority, needs_openssl
from tests.harness.network_daemon import VIEWER, NetworkDaemon
from tests.harness.running_daemon import StartDaemon
from tests.harness.tls_server import plain_server, tls_server
from tests.harness.waiting import HANG_SECONDS, wait_until

pytestmark = needs_openssl
Files = tuple[Path, Path]


@pytest.fixture
def network(start_daemon: StartDaemon, tmp_path: Path) -> NetworkDaemon:
    return NetworkDaemon(start_daemon, tmp_path)


def options(network: NetworkDaemon, files: Files) -> dict[str, str]:
    return {"tls-cert": str(files[0]), "tls-key": str(files[1]), "tls-ca": str(network.authority.file)}


def troubles(addresses: dict[str, str], given: dict[str, str]) -> dict[str, str]:
    """What is told of each of these, "" of one that is live."""
    places = [place for name, address in addresses.items() for place in named_hosts(f"{name} {address}").places]
    with DirectFeed(places, tunnels=Tunnels(client_tls(given, {}))) as feed:
        feed.start()
        assert feed.wait_settled(HANG_SECONDS)
        return {state.place.name: "" if state.link is Link.LIVE else state.trouble for state in feed.states}


def test_the_certificate_of_the_client_is_told_to_be_wrong(network: NetworkDaemon, tmp_path: Path) -> None:
    at = f"grpcs://127.0.0.1:{network.port}"
    now = time.time()
    sign = network.authority.sign
    stranger = sign("stranger", "DNS:other")
    late = sign("late", f"DNS:{VIEWER}", begins_unix_seconds=now - 7200, ends_unix_seconds=now - 3600)
    early = sign("early", f"DNS:{VIEWER}", begins_unix_seconds=now + 3600, ends_unix_seconds=now + 7200)
    unknown = Authority(tmp_path, "unknown").sign("of-unknown", f"DNS:{VIEWER}")
    for files, told in (
        (network.viewer(), ""),
        (stranger, "no name of your certificate may read here (other); add it to tls.summary or tls.full"),
        (late, "the certificate shown here has expired; renew it, or see whether its clock is off"),
        (early, "it refuses the certificate shown here; its log says why (is a clock off?)"),
        (unknown, "it doesn't trust who signed the certificate shown here; see its tls.client_ca"),
    ):
        assert troubles({"host": at}, options(network, files)) == {"host": told}


def test_each_host_tells_what_is_wrong_with_it(network: NetworkDaemon, tmp_path: Path) -> None:
    now = time.time()
    sign = network.authority.sign
    unknown = Authority(tmp_path, "unknown")
    with ExitStack() as stack:

        def port(files: Files, *protocols: str) -> int:
            return stack.enter_context(tls_server(files, protocols=protocols or ("h2",)))

        late = sign("late", begins_unix_seconds=now - 7200, ends_unix_seconds=now - 3600)
        early = sign("early", begins_unix_seconds=now + 3600, ends_unix_seconds=now + 7200)
        addresses = {
            "well": network.port,
            "late": port(late),
            "early": port(early),
            "unknown": port(unknown.sign("of-unknown")),
            "page": port(network.server, "http/1.1"),
            "plain": stack.enter_context(plain_server(b"HTTP/1.1 400 Bad Request\r\n\r\n")),
            "closing": stack.enter_context(plain_server(b"")),
        }
        hosts = {name: f"grpcs://127.0.0.1:{number}" for name, number in addresses.items()}
        hosts["refused"] = f"grpcs://127.0.0.2:{network.port}"  # this host too, but it listens on 127.0.0.1 alone
        found = troubles(hosts, options(network, network.viewer()))
    assert found == {
        "well": "",
        "refused": "connection refused; is its neurond started with --listen?",
        "late": "its certificate has expired; renew it, or see whether the clock here is off",
        "early": "its certificate is not valid yet; see whether the clock is off, here or there",
        "unknown": "who signed its certificate is not trusted here; give that authority with --tls-ca",
        "page": "it speaks TLS, but no gRPC; is this the port of neurond --listen?",
        "plain": "it speaks no TLS; is this the port of neurond --listen?",
        "closing": "it ended the TLS handshake; is this the port of neurond --listen?",
    }


def test_the_name_of_the_server_is_checked(network: NetworkDaemon) -> None:
    given = options(network, network.viewer())
    files = network.authority.sign("other", "DNS:other.example.org")
    with tls_server(files) as port:
        found = troubles({"host": f"grpcs://localhost:{port}"}, given)
    assert found == {"host": "its certificate is for other names; ask by one of them, or have this one added"}


def test_a_host_that_comes_back_is_live_again(
    network: NetworkDaemon, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    places = named_hosts(f"host grpcs://127.0.0.1:{network.port}").places
    with DirectFeed(places, 0.1, Tunnels(client_tls(options(network, network.viewer()), {}))) as feed:
        feed.start()
        wait_until(lambda: feed.states[0].link is Link.LIVE)
        network.daemon.stop()
        wait_until(lambda: feed.states[0].link is Link.LOST)
        start_daemon(
            *("--simulate", "trn1.2xlarge", "--config", str(tmp_path / "neurond.toml")),
            *("--listen", f"127.0.0.1:{network.port}"),
        )
        wait_until(lambda: feed.states[0].link is Link.LIVE)


def test_what_is_still_connecting_at_the_end_touches_nothing_that_is_opened_afterwards(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = map(str, authority.sign("viewer"))
    tls = client_tls({"tls-cert": certificate, "tls-key": key, "tls-ca": str(authority.file)}, {})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        before = set(threading.enumerate())
        tunnels = Tunnels(tls)
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(tunnels.open(remote_address(f"grpcs://127.0.0.1:{silent.getsockname()[1]}")))
            connection, _ = silent.accept()
            (connecting,) = (thread for thread in set(threading.enumerate()) - before if thread.name == "connecting")
            tunnels.close()
            pairs = [socket.socketpair() for _ in range(8)]  # they get the numbers that are free again
            connection.close()
            connecting.join()
            asking.settimeout(HANG_SECONDS)
            assert asking.recv(1) == b"", "who asked is let go"
    ends = [end for pair in pairs for end in pair]
    assert select.select(ends, [], [], 0)[0] == []
    for end in ends:
        end.close()


def test_much_goes_through_as_it_is(network: NetworkDaemon) -> None:
    with Tunnels(client_tls(options(network, network.admin()), {})) as tunnels:
        path = tunnels.open(remote_address(f"grpcs://127.0.0.1:{network.port}"))
        near, far = Client(network.daemon.socket), Client(path)
        wait_until(lambda: near.snapshot().sequence > 100)
        there = {snapshot.sequence: snapshot for snapshot in near.history(3600)}
        here = {snapshot.sequence: snapshot for snapshot in far.history(3600)}
        assert len(there.keys() & here.keys()) > 50
        assert all(there[sequence] == here[sequence] for sequence in there.keys() & here.keys())
    assert not Path(path).exists()
