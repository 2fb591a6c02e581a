"""The API over TLS: who is let in, what each may see, certificates that change, floods; and our own readers of it."""

from __future__ import annotations

import resource
import select
import signal
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from neurond.service.network_api import HANDSHAKES_OF_AN_ADDRESS

from neurontools.client import Client
from neurontools.fleet.feed import DirectFeed
from neurontools.fleet.hosts import parse_hosts_option
from neurontools.fleet.states import HostLink
from neurontools.rpc import neuron_pb2, neuron_pb2_grpc
from neurontools.rpc.remote_address import remote_address
from neurontools.rpc.tunnel_registry import TunnelSet, client_tls
from tests.harness import raw_server
from tests.harness.certificates import Authority, needs_openssl
from tests.harness.connections import client_hello, is_closed
from tests.harness.network_daemon import ADMIN, VIEWER, Files, NetworkDaemon, received_until_close, summaries
from tests.harness.running_daemon import Attachment, StartDaemon, shared
from tests.harness.tls_server import plain_server, tls_server
from tests.harness.waiting import HANG_SECONDS, wait_until

pytestmark = needs_openssl

Start = Callable[..., NetworkDaemon]


@pytest.fixture
def start(start_daemon: StartDaemon, tmp_path: Path) -> Start:
    def begin(*flags: str, **keys: Any) -> NetworkDaemon:
        return NetworkDaemon(start_daemon, tmp_path, *flags, **keys)

    return begin


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkDaemon]:
    """One for all tests that leave it as it is."""
    with ExitStack() as stack:
        yield NetworkDaemon(lambda *flags: stack.enter_context(shared(*flags)), tmp_path_factory.mktemp("network"))


def refusal(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as refused:
        call()
    error: Any = refused.value
    return error.code(), error.details()


def test_a_name_with_the_role_full_sees_all_and_changes_nothing(network: NetworkDaemon) -> None:
    with network.calls(network.admin()) as (stub, channel):
        assert_sees_all(stub)
        past = stub.ListHistory(neuron_pb2.ListHistoryRequest(duration_seconds=60), timeout=HANG_SECONDS)
        assert next(iter(past)).snapshot.sequence >= 0
        runtime = neuron_pb2_grpc.RuntimeServiceStub(channel)
        faults = neuron_pb2_grpc.FaultServiceStub(channel)
        for call in (
            lambda: runtime.Attach(neuron_pb2.AttachRequest(token="x" * 32, all_cores=True)),
            lambda: runtime.Report(neuron_pb2.ReportRequest()),
            lambda: faults.InjectFaults(neuron_pb2.InjectFaultsRequest()),
            lambda: faults.HealFaults(neuron_pb2.HealFaultsRequest()),
        ):
            assert refusal(call) == (
                grpc.StatusCode.PERMISSION_DENIED,
                "this call is served only on the host's own socket",
            )
        other: Any = channel.unary_unary("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        assert refusal(lambda: other(b""))[0] is grpc.StatusCode.UNIMPLEMENTED


def assert_sees_all(stub: neuron_pb2_grpc.MonitorServiceStub) -> None:
    snapshot = stub.GetSnapshot(neuron_pb2.GetSnapshotRequest(), timeout=HANG_SECONDS).snapshot
    assert snapshot.instance.instance_type == "trn1.2xlarge"
    assert summary_of(stub).instance_type == "trn1.2xlarge"


def summary_of(stub: neuron_pb2_grpc.MonitorServiceStub) -> neuron_pb2.HostSummary:
    return next(iter(stub.WatchHostSummary(neuron_pb2.WatchHostSummaryRequest()))).summary


def test_it_listens_on_ipv6_too(start: Start) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("there is no IPv6 here")
    network = start(host="[::1]")
    with network.calls(network.admin()) as (stub, _):
        assert_sees_all(stub)


def test_a_name_with_the_role_summary_sees_no_commands_and_no_users(network: NetworkDaemon) -> None:
    with network.calls(network.viewer()) as (stub, channel):
        assert summary_of(stub).instance_type == "trn1.2xlarge"
        asked: list[Callable[[], Any]] = [
            lambda: stub.GetSnapshot(neuron_pb2.GetSnapshotRequest()),
            lambda: next(iter(stub.WatchSnapshots(neuron_pb2.WatchSnapshotsRequest()))),
            lambda: next(iter(stub.ListHistory(neuron_pb2.ListHistoryRequest()))),
            lambda: next(iter(stub.ListEnded(neuron_pb2.ListEndedRequest()))),
            lambda: stub.RenderDeviceList(neuron_pb2.RenderDeviceListRequest()),
        ]
        assert len(asked) + 1 == len(neuron_pb2.DESCRIPTOR.services_by_name["MonitorService"].methods)
        for call in asked:
            assert refusal(call) == (
                grpc.StatusCode.PERMISSION_DENIED,
                "this shows commands and users, which needs the role full; your certificate has summary",
            )
        health: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="neurontools.v1.MonitorService")
        assert health.Check(request, timeout=HANG_SECONDS).status == health_pb2.HealthCheckResponse.SERVING


def test_users_are_in_the_summaries_of_the_role_full_and_of_the_socket_alone(network: NetworkDaemon) -> None:
    with grpc.insecure_channel(f"unix:{network.daemon.socket}") as channel, closing(Attachment(network.daemon)) as job:
        job.attach(all_cores=True)
        (process,) = network.daemon.snapshot().processes
        user = process.user or str(process.uid)
        # All three read at the same time, so that each has what another's reading leaves behind.
        with network.calls(network.viewer()) as (viewer, _), network.calls(network.admin()) as (admin, _):
            local = neuron_pb2_grpc.MonitorServiceStub(channel)
            streams = [
                stub.WatchHostSummary(neuron_pb2.WatchHostSummaryRequest(), timeout=HANG_SECONDS)
                for stub in (viewer, admin, local)
            ]
            for _ in range(5):
                of_viewer, *of_others = (at_work(stream) for stream in streams)
                assert not of_viewer.further_users
                assert not of_viewer.HasField("user_count")
                assert [(list(each.users), each.HasField("user_count")) for each in of_viewer.jobs] == [([], False)]
                for summary in of_others:
                    assert summary.user_count == 1
                    assert [(list(each.users), each.user_count) for each in summary.jobs] == [([user], 1)]


def at_work(stream: Any) -> neuron_pb2.HostSummary:
    """The next summary that has the process."""
    summary: neuron_pb2.HostSummary = next(reply.summary for reply in stream if reply.summary.process_count)
    return summary


def test_certificates_that_are_missing_wrong_or_of_a_stranger_are_refused_noted_and_told_to_who_showed_them(
    start: Start, tmp_path: Path
) -> None:
    network = start()
    sign, now = network.authority.sign, time.time()
    of_another = Authority(tmp_path, "another").sign("admin-of-another", f"URI:{ADMIN}")
    expired = sign("expired", f"URI:{ADMIN}", begins_unix_seconds=now - 7200, ends_unix_seconds=now - 3600)
    early = sign("early", f"URI:{ADMIN}", begins_unix_seconds=now + 3600, ends_unix_seconds=now + 7200)
    stranger = sign("stranger", "DNS:other.example.org", f"URI:{ADMIN}/x")
    names = f"other.example.org, {ADMIN}/x"
    for files, told, why in (
        (
            stranger,
            f"no name of your certificate may read here ({names}); add it to tls.summary or tls.full",
            "no name is allowed",
        ),
        (
            of_another,
            "it does not trust the authority that signed this client's certificate; see its tls.client_ca",
            "unable to get local issuer certificate",
        ),
        (
            expired,
            "this client's certificate has expired; renew it, or see whether its clock is off",
            "certificate has expired",
        ),
        (
            early,
            "it refuses this client's certificate; its log says why (is a clock off?)",
            "certificate is not yet valid",
        ),
    ):
        assert troubles({"host": f"grpcs://127.0.0.1:{network.port}"}, options(network, files)) == {"host": told}
        wait_until(lambda: network.refusals()[-1:] and why in network.refusals()[-1]["why"])  # noqa: B023
    noted = network.refusals()[0]
    assert (noted["address"], noted["names"]) == ("127.0.0.1", names)
    assert "the API over TLS refused 127.0.0.1 other.example.org" in network.daemon.log
    told = r"(?i)certificate[ _]required"
    with pytest.raises(ssl.SSLError, match=told), network.watch(network.context(None)) as connection:
        connection.recv(1)
    wait_until(lambda: network.refusals()[-1]["why"] == "peer did not return a certificate")
    with network.watch(network.context(network.viewer())) as connection:
        summaries(connection, 1)


def test_the_metrics_count_what_became_of_connections(start: Start, port: int) -> None:
    network = start("--simulate", "trn1.2xlarge", "--metrics-listen", f"127.0.0.1:{port}")
    context = network.context(network.admin())

    def told() -> dict[str, str]:
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/metrics", context=context) as reply:
            lines = reply.read().decode("utf-8").splitlines()
        return dict(line.split(" ") for line in lines if line.startswith("neurontools_network_"))

    stranger = network.context(network.authority.sign("stranger"))
    with network.watch(context) as connection, network.watch(stranger) as other:
        summaries(connection, 1)
        why = b"no name of your certificate may read here (it has none); add it to tls.summary or tls.full"
        goaway = raw_server.frame(raw_server.GOAWAY, (2**31 - 1).to_bytes(4) + (11).to_bytes(4) + why)
        assert received_until_close(other) == raw_server.GREETING + goaway
        network.tcp().close()
        wait_until(lambda: told()['neurontools_network_connections_total{outcome="no_handshake"}'] == "1")
        found = told()
        assert found['neurontools_network_connections_total{outcome="admitted"}'] == "1"
        assert found['neurontools_network_connections_total{outcome="not_allowed"}'] == "1"
        wait_until(lambda: told()["neurontools_network_open_connections"] == "1")
    wait_until(lambda: told()["neurontools_network_open_connections"] == "0")


@pytest.mark.slow
def test_other_protocols_are_closed_and_tls_1_2_is_served(network: NetworkDaemon) -> None:
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(range(256)) * 64):
        with network.tcp() as connection:
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            received_until_close(connection)
    network.tcp().close()
    old = network.context(network.admin())
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    with network.watch(old) as connection:
        assert connection.version() == "TLSv1.2"
        summaries(connection, 1)


def test_a_renewed_certificate_ends_no_connection_and_names_or_authorities_taken_away_do(
    start: Start, tmp_path: Path
) -> None:
    network = start()
    context = network.context(network.viewer())
    with network.watch(context) as viewer, network.watch(network.context(network.admin())) as admin:
        summaries(viewer, 1)
        first = viewer.getpeercert(binary_form=True)
        certificate, key = network.authority.sign("renewed", "DNS:localhost")
        key.replace(network.server[1])
        certificate.replace(network.server[0])

        def is_renewed() -> bool:
            with network.watch(context) as now:
                summaries(now, 1)
                return now.getpeercert(binary_form=True) != first

        wait_until(is_renewed)
        summaries(viewer, 3)
        network.write(viewers="somebody.else")
        network.daemon.process.send_signal(signal.SIGHUP)
        received_until_close(viewer)
        wait_until(lambda: "changed: tls_summary" in network.daemon.log)
        with network.watch(context) as again:
            assert b"no name of your certificate may read here" in received_until_close(again)
        summaries(admin, 2)
        network.authority.file.write_bytes(Authority(tmp_path, "next").file.read_bytes())
        received_until_close(admin)
        with pytest.raises(ssl.SSLError, match=r"(?i)unknown[ _]ca"), network.watch(context) as again:
            again.recv(1)


def test_a_revoked_certificate_ends_its_connection_and_gets_no_other(start: Start) -> None:
    network = start()
    admin, viewer = network.context(network.admin()), network.context(network.viewer())
    with network.watch(admin) as connection:
        summaries(connection, 1)
        network.authority.revoke(network.admin()[0])
        network.authority.write_crl()
        received_until_close(connection)
    with pytest.raises(ssl.SSLError, match=r"(?i)revoked"), network.watch(admin) as again:
        again.recv(1)
    with network.watch(viewer) as other:
        summaries(other, 1)


@pytest.mark.slow  # three seconds and more
def test_a_connection_lasts_as_long_as_its_certificate(network: NetworkDaemon) -> None:
    seconds = 3.0
    while True:  # on a machine so slow that it has ended before it was shown, it lasts longer the next time
        ends = time.time() + seconds
        files = network.authority.sign("brief", f"DNS:{VIEWER}", ends_unix_seconds=ends)
        try:
            with network.watch(network.context(files)) as connection:
                summaries(connection, 1)
                received_until_close(connection)
        except (ssl.SSLError, AssertionError):
            seconds *= 2
            assert seconds < HANG_SECONDS
            continue
        assert time.time() >= int(ends) - 1
        return


def test_handshakes_that_stop_in_the_middle_are_few_and_slow_nobody(network: NetworkDaemon) -> None:
    context = network.context(network.viewer())
    hello = client_hello()
    with network.watch(context, "127.0.0.9") as reader, ExitStack() as stack:
        summaries(reader, 1)
        crowd = [stack.enter_context(network.tcp("127.0.0.2")) for _ in range(HANDSHAKES_OF_AN_ADDRESS + 4)]
        for member in crowd[::2]:
            member.sendall(hello)
        with network.watch(context) as other:
            summaries(other, 2)
        wait_until(lambda: sum(not is_closed(member) for member in crowd) <= HANDSHAKES_OF_AN_ADDRESS)
        assert network.daemon.snapshot().instance.instance_type == "trn1.2xlarge"
        summaries(reader, 2)


@pytest.mark.slow
def test_a_thousand_readers_at_a_time(start: Start) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 16_384:
        pytest.skip("this system allows too few files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384), hard))
    network = start("--simulate", "trn1.2xlarge", "--interval", "0.5")
    try:
        with ExitStack() as stack:
            contexts = [network.context(files) for files in (network.viewer(), network.admin())]
            readers: list[ssl.SSLSocket] = []
            while len(readers) < 1000:
                address = f"127.0.0.{1 + len(readers) % 10}"
                readers.append(stack.enter_context(network.watch(contexts[len(readers) % 2], address)))
                summaries(readers[-1], 1)
            for reader in readers:
                summaries(reader, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_an_address_has_its_share(start: Start) -> None:
    network = start()
    context = network.context(network.viewer())
    with ExitStack() as stack:
        for reader in [stack.enter_context(network.watch(context)) for _ in range(128)]:
            summaries(reader, 1)
        said = b""
        one_more = stack.enter_context(network.watch(context))
        while b"address 127.0.0.1 has 128 connections open, which is its limit" not in said:
            chunk = one_more.recv(2**14)
            assert chunk, said
            said += chunk
        summaries(stack.enter_context(network.watch(context, "127.0.0.2")), 1)


def options(network: NetworkDaemon, files: Files) -> dict[str, str]:
    return {"tls-cert": str(files[0]), "tls-key": str(files[1]), "tls-ca": str(network.authority.file)}


def troubles(addresses: dict[str, str], given: dict[str, str]) -> dict[str, str]:
    """What is told of each of these, "" of one that is live."""
    places = [place for name, address in addresses.items() for place in parse_hosts_option(f"{name} {address}").places]
    with DirectFeed(places, tunnels=TunnelSet(client_tls(given, {}))) as feed:
        feed.start()
        assert feed.wait_settled(HANG_SECONDS)
        return {state.place.name: "" if state.link is HostLink.LIVE else state.loss_reason for state in feed.states}


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
            "other": port(sign("other", "DNS:other.example.org")),
        }
        hosts = {name: f"grpcs://127.0.0.1:{number}" for name, number in addresses.items()}
        hosts["refused"] = f"grpcs://127.0.0.2:{network.port}"  # this host too, but it listens on 127.0.0.1 alone
        hosts["other"] = hosts["other"].replace("127.0.0.1", "localhost")
        found = troubles(hosts, options(network, network.viewer()))
    assert found == {
        "well": "",
        "refused": "connection refused; is its neurond started with --listen?",
        "late": "its certificate has expired; renew it, or see whether the clock here is off",
        "early": "its certificate is not valid yet; see whether the clock is off, here or there",
        "unknown": "the authority that signed its certificate is not trusted here; give that authority with --tls-ca",
        "page": "it speaks TLS but not gRPC; is this the port of neurond --listen?",
        "plain": "it does not speak TLS; is this the port of neurond --listen?",
        "closing": "it ended the TLS handshake; is this the port of neurond --listen?",
        "other": "its certificate is for other names; use one of them, or have this one added",
    }


def test_a_host_that_comes_back_is_live_again(start_daemon: StartDaemon, tmp_path: Path, port: int) -> None:
    network = NetworkDaemon(start_daemon, tmp_path, port=port)
    places = parse_hosts_option(f"host grpcs://127.0.0.1:{port}").places
    with DirectFeed(places, 0.1, TunnelSet(client_tls(options(network, network.viewer()), {}))) as feed:
        feed.start()
        wait_until(lambda: feed.states[0].link is HostLink.LIVE)
        network.daemon.stop()
        wait_until(lambda: feed.states[0].link is HostLink.LOST)
        start_daemon(
            *("--simulate", "trn1.2xlarge", "--config", str(tmp_path / "neurond.toml")),
            *("--listen", f"127.0.0.1:{port}"),
        )
        wait_until(lambda: feed.states[0].link is HostLink.LIVE)


def test_what_is_still_connecting_at_the_end_touches_nothing_that_is_opened_afterwards(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = map(str, authority.sign("viewer"))
    tls = client_tls({"tls-cert": certificate, "tls-key": key, "tls-ca": str(authority.file)}, {})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        before = set(threading.enumerate())
        tunnels = TunnelSet(tls)
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
    with TunnelSet(client_tls(options(network, network.admin()), {})) as tunnels:
        path = tunnels.open(remote_address(f"grpcs://127.0.0.1:{network.port}"))
        near, far = (
            Client(network.daemon.socket, timeout_seconds=HANG_SECONDS),
            Client(path, timeout_seconds=HANG_SECONDS),
        )
        wait_until(lambda: near.snapshot().sequence > 30)
        there = {snapshot.sequence: snapshot for snapshot in near.history(3600)}
        here = {snapshot.sequence: snapshot for snapshot in far.history(3600)}
        assert len(there.keys() & here.keys()) > 20
        assert all(there[sequence] == here[sequence] for sequence in there.keys() & here.keys())
    assert not Path(path).exists()
