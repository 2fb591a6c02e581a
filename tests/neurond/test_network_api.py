"""The API over TLS: who is let in, what each may see, and certificates that change."""

from __future__ import annotations

import signal
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from neurond.startup.configuration import resolve

from neurontools.errors import EXIT_USAGE, UserError
from neurontools.rpc import neuron_pb2, neuron_pb2_grpc
from tests.harness.certificates import Authority, needs_openssl
from tests.harness.network_daemon import ADMIN, VIEWER, NetworkDaemon, said_until_the_end, summaries
from tests.harness.running_daemon import Attachment, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

pytestmark = needs_openssl

Start = Callable[..., NetworkDaemon]


@pytest.fixture
def start(start_daemon: StartDaemon, tmp_path: Path) -> Start:
    def begin(*flags: str, **keys: str) -> NetworkDaemon:
        return NetworkDaemon(start_daemon, tmp_path, *flags, **keys)

    return begin


@pytest.fixture
def network(start: Start) -> NetworkDaemon:
    return start()


def refusal(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as refused:
        call()
    error: Any = refused.value
    return error.code(), error.details()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_name_with_the_role_full_sees_all(start: Start, host: str) -> None:
    if ":" in host:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("there is no IPv6 here")
    network = start(host=host)
    with network.calls(network.admin()) as (stub, _):
        snapshot = stub.GetSnapshot(neuron_pb2.GetSnapshotRequest(), timeout=HANG_SECONDS).snapshot
        assert snapshot.instance.instance_type == "trn1.2xlarge"
        summary = next(iter(stub.WatchHostSummary(neuron_pb2.WatchHostSummaryRequest()))).summary
        assert summary.instance_type == "trn1.2xlarge"
        past = stub.ListHistory(neuron_pb2.ListHistoryRequest(duration_seconds=60), timeout=HANG_SECONDS)
        assert next(iter(past)).snapshot.sequence >= 0


def test_a_name_with_the_role_summary_sees_no_commands_and_no_users(network: NetworkDaemon) -> None:
    with network.calls(network.viewer()) as (stub, channel):
        summary = next(iter(stub.WatchHostSummary(neuron_pb2.WatchHostSummaryRequest()))).summary
        assert summary.instance_type == "trn1.2xlarge"
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
                "this shows commands and users, which takes the role full; your certificate has summary",
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


def test_nothing_that_changes_the_host_is_on_the_network(network: NetworkDaemon) -> None:
    with network.calls(network.admin()) as (_, channel):
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
                "this is served on the host's own socket alone",
            )
        other: Any = channel.unary_unary("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        assert refusal(lambda: other(b""))[0] is grpc.StatusCode.UNIMPLEMENTED


def test_who_has_no_name_that_is_allowed_is_told_so_and_noted(network: NetworkDaemon) -> None:
    stranger = network.authority.sign("stranger", "DNS:other.example.org", f"URI:{ADMIN}/x")
    with network.watch(network.context(stranger)) as connection:
        said = said_until_the_end(connection)
    told = f"no name of your certificate may read here (other.example.org, {ADMIN}/x)".encode()
    assert told in said
    wait_until(network.refusals)
    (noted,) = network.refusals()
    assert noted["address"] == "127.0.0.1"
    assert noted["names"] == f"other.example.org, {ADMIN}/x"
    assert noted["why"] == "no name is allowed"
    assert "the API over TLS refused 127.0.0.1 other.example.org" in network.daemon.log


def test_the_metrics_tell_what_became_of_connections(start: Start, port: int) -> None:
    network = start("--simulate", "trn1.2xlarge", "--metrics-listen", f"127.0.0.1:{port}")
    context = network.context(network.admin())

    def told() -> dict[str, str]:
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/metrics", context=context) as reply:
            lines = reply.read().decode("utf-8").splitlines()
        return dict(line.split(" ") for line in lines if line.startswith("neurontools_network_"))

    stranger = network.context(network.authority.sign("stranger"))
    with network.watch(context) as connection, network.watch(stranger) as other:
        summaries(connection, 1)
        assert b"(it has none)" in said_until_the_end(other)
        network.tcp().close()
        wait_until(lambda: told()['neurontools_network_connections_total{outcome="no_handshake"}'] == "1")
        found = told()
        assert found['neurontools_network_connections_total{outcome="admitted"}'] == "1"
        assert found['neurontools_network_connections_total{outcome="not_allowed"}'] == "1"
        wait_until(lambda: told()["neurontools_network_open_connections"] == "1")
    wait_until(lambda: told()["neurontools_network_open_connections"] == "0")


def test_a_certificate_that_is_missing_or_wrong_is_refused_and_noted(network: NetworkDaemon, tmp_path: Path) -> None:
    now = time.time()
    of_another = Authority(tmp_path, "another").sign("admin-of-another", f"URI:{ADMIN}")
    expired = network.authority.sign(
        "expired", f"URI:{ADMIN}", begins_unix_seconds=now - 7200, ends_unix_seconds=now - 3600
    )
    early = network.authority.sign(
        "early", f"URI:{ADMIN}", begins_unix_seconds=now + 3600, ends_unix_seconds=now + 7200
    )
    for files, told in (
        (None, r"(?i)certificate[ _]required"),
        (of_another, r"(?i)unknown[ _]ca"),
        (expired, r"(?i)certificate[ _]expired"),
        (early, r"(?i)bad[ _]certificate"),
    ):
        with (
            pytest.raises(ssl.SSLError, match=told),
            network.watch(network.context(files)) as connection,
        ):
            connection.recv(1)
    wait_until(lambda: len(network.refusals()) == 4)
    assert [noted["why"] for noted in network.refusals()] == [
        "peer did not return a certificate",
        "unable to get local issuer certificate",
        "certificate has expired",
        "certificate is not yet valid",
    ]
    with network.watch(network.context(network.viewer())) as connection:
        summaries(connection, 1)


def test_what_is_not_tls_of_today_is_closed(network: NetworkDaemon) -> None:
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(range(256)) * 64):
        with network.tcp() as connection:
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            said_until_the_end(connection)
    network.tcp().close()
    old = network.context(network.admin())
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    with network.watch(old) as connection:
        assert connection.version() == "TLSv1.2"
        summaries(connection, 1)


@pytest.mark.parametrize(
    ("keys", "missing"),
    [
        ({}, "tls.certificate and tls.key"),
        ({"certificate": "server.crt", "key": "server.key"}, "tls.client_ca"),
        (
            {"certificate": "server.crt", "key": "server.key", "client_ca": "authority.crt"},
            "tls.summary or tls.full",
        ),
    ],
)
def test_a_door_that_would_be_open_is_refused(keys: dict[str, str], missing: str, tmp_path: Path) -> None:
    Authority(tmp_path).sign("server")
    given = {key: str(tmp_path / name) for key, name in keys.items()}
    with pytest.raises(UserError) as refused:
        resolve({"daemon": {"listen": ":8001"}, "tls": given}, None, {"XDG_RUNTIME_DIR": "/r"})
    assert str(refused.value) == (
        "--listen :8001: the API is served over TLS alone, to certificates that are named; "
        f"set {missing} in the configuration file"
    )
    assert refused.value.exit_code == EXIT_USAGE


def test_a_certificate_that_is_renewed_ends_no_connection(network: NetworkDaemon) -> None:
    context = network.context(network.viewer())
    with network.watch(context) as before:
        summaries(before, 1)
        first = before.getpeercert(binary_form=True)
        certificate, key = network.authority.sign("renewed", "DNS:localhost")
        key.replace(network.server[1])
        certificate.replace(network.server[0])

        def is_renewed() -> bool:
            with network.watch(context) as now:
                summaries(now, 1)
                return now.getpeercert(binary_form=True) != first

        wait_until(is_renewed)
        summaries(before, 3)


def test_who_was_let_in_by_other_authorities_has_to_come_again(network: NetworkDaemon, tmp_path: Path) -> None:
    context = network.context(network.viewer())
    with network.watch(context) as connection:
        summaries(connection, 1)
        network.authority.file.write_bytes(Authority(tmp_path, "next").file.read_bytes())
        said_until_the_end(connection)
        with pytest.raises(ssl.SSLError, match=r"(?i)unknown[ _]ca"), network.watch(context) as again:
            again.recv(1)


def test_a_connection_lasts_as_long_as_its_certificate(network: NetworkDaemon) -> None:
    seconds = 3.0
    while True:  # on a machine so slow that it has ended before it was shown, it lasts longer the next time
        ends = time.time() + seconds
        files = network.authority.sign("brief", f"DNS:{VIEWER}", ends_unix_seconds=ends)
        try:
            with network.watch(network.context(files)) as connection:
                summaries(connection, 1)
                said_until_the_end(connection)
        except (ssl.SSLError, AssertionError):
            seconds *= 2
            assert seconds < HANG_SECONDS
            continue
        assert time.time() >= int(ends) - 1
        return


def test_names_that_are_taken_away_end_what_they_see(network: NetworkDaemon) -> None:
    with (
        network.watch(network.context(network.viewer())) as connection,
        network.watch(network.context(network.admin())) as other,
    ):
        summaries(connection, 1)
        network.write(viewers="somebody.else")
        network.daemon.process.send_signal(signal.SIGHUP)
        said_until_the_end(connection)
        wait_until(lambda: "changed: tls_summary" in network.daemon.log)
        with network.watch(network.context(network.viewer())) as again:
            assert b"no name of your certificate may read here" in said_until_the_end(again)
        summaries(other, 1)
