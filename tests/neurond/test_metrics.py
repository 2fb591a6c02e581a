"""What a daemon exports: the HTTP listener for scrapers, who may have it, settings that are refused, and OTLP."""

from __future__ import annotations

import contextlib
import gzip
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from neurond.exports.otlp import OtlpSender, host_attributes, metrics_url

from neurontools.model import Finding, Process, Severity, SourceKind
from neurontools.model.finding import FindingKind
from tests.harness.answering_server import Reply, answering
from tests.harness.certificates import Authority, needs_openssl
from tests.harness.full_host import full_host
from tests.harness.original_families import HELP, helps
from tests.harness.pictures import is_as_stored
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon
from tests.harness.scenario_host import ScenarioHost
from tests.harness.secret_file import TOKEN, write_secret
from tests.harness.waiting import HANG_SECONDS, wait_until
from tests.harness.web_site import Site

GOLDEN = Path(__file__).parent / "golden/otlp.txt"
Serve = Callable[..., RunningDaemon]


@pytest.fixture
def serve(start_daemon: StartDaemon, tmp_path: Path, port: int) -> Serve:
    """Starts a daemon with these lines in its table of metrics, and these of other tables."""

    def start(*lines: str, tables: str = "", interval: str = "0.05", flags: tuple[str, ...] = ()) -> RunningDaemon:
        file = tmp_path / "neurond.toml"
        file.write_text("\n".join(["[metrics]", f'listen = "127.0.0.1:{port}"', *lines, tables]), "utf-8")
        return start_daemon("--simulate", "trn1.2xlarge", "--interval", interval, "--config", str(file), *flags)

    return start


def scrape(port: int, path: str = "/metrics", **headers: str) -> tuple[int, str, str]:
    status, told, text = Site(port).ask(path, headers)
    assert status != 401 or told["WWW-Authenticate"] == "Bearer"
    return status, told["Content-Type"], text


def test_formats_and_processes_that_come_and_go(serve: Serve, port: int) -> None:
    daemon = serve(flags=("--load", "steady", "--load-neuroncores", "1"))
    assert scrape(port, "/")[::2] == (200, "neurond: metrics are at /metrics\n")
    assert scrape(port, "/other")[::2] == (404, "metrics are at /metrics\n")
    assert scrape(port, "/top/overview")[0] == 404, "pages for browsers are there only if asked for"
    assert scrape(port, "/", Accept="text/html")[0] == 200
    status, kind, text = scrape(port)
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "# TYPE neurontools_neuroncore_held gauge" in text
    status, kind, text = scrape(port, Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.1")
    assert (status, kind) == (200, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert text.endswith("# EOF\n")
    wait_until(lambda: helps(scrape(port)[2]) == HELP)
    assert "mine" not in scrape(port)[2]
    with contextlib.closing(Attachment(daemon)) as attachment:
        attachment.attach(core_count=1, tag="mine")
        held = 'neurontools_neuroncore_held{neuron_device_index="0",neuroncore="1"} 1'
        text = wait_until(lambda: next((found for found in [scrape(port)[2]] if "mine" in found), None))
        assert held in text
        assert re.search(r'neurontools_neuroncore_owner_info\{.*pid="\d+".*runtime_tag="mine".*\} 1', text)
        assert re.search(r'execution_status_total\{.*runtime_tag="mine".*\} 0', text)
    wait_until(lambda: "mine" not in scrape(port)[2])


def test_a_text_is_made_once_a_snapshot(serve: Serve, port: int) -> None:
    serve(interval="3600")
    first = scrape(port)[2]
    assert "neurontools_process_info" not in first
    assert scrape(port)[2] == first
    assert "neurontools_scrape_duration_seconds" not in first
    with contextlib.closing(Site(port).connect()) as client:
        client.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
        reply = client.getresponse()
        assert reply.headers.get_all("Vary") == ["Accept", "Accept-Encoding"]
        assert gzip.decompress(reply.read()).decode() == first
    openmetrics = scrape(port, Accept="application/openmetrics-text")[2]
    assert re.search(r"neurontools_scrape_duration_seconds \d\S*", openmetrics)
    assert "neurontools_scrapes_total 3\n" in openmetrics
    of_fleet = scrape(port, "/metrics/fleet")[2]
    lines = [line for line in of_fleet.splitlines() if not line.startswith("#")]
    assert set(lines) <= set(first.splitlines())
    assert {line.partition("{")[0].partition(" ")[0] for line in lines} > {"neurontools_neuroncores", "instance_info"}
    assert not any(re.match("neurontools_(neuroncore|process)_|.*_created", line) for line in lines), (
        "no series of single cores or processes, and no start times of counters"
    )


def test_an_address_that_is_taken_is_told(serve: Serve, port: int) -> None:
    told = rf"127\.0\.0\.1:{port}: Address already in use; give another"
    with socket.create_server(("127.0.0.1", port)), pytest.raises(AssertionError, match=told):
        serve()


@needs_openssl
def test_scrapers_with_a_certificate_read_over_tls_and_a_renewed_one_is_served(
    serve: Serve, tmp_path: Path, port: int
) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    certificate, key = old.sign("server")
    daemon = serve(
        f'tls_certificate = "{certificate}"\ntls_key = "{key}"\ntls_client_ca = "{old.file}"'
        f'\ntls_client_crl = "{old.write_crl()}"'
    )

    def secured(context: ssl.SSLContext) -> int:
        """The status that a scraper with these certificates gets."""
        status, _, text = Site(port, context).ask("/metrics")
        assert "neurontools_neuroncore_held" in text
        return status

    with pytest.raises(OSError, match=r"(?i)certificate|reset|eof|closed"):
        secured(ssl.create_default_context(cafile=str(old.file)))
    with pytest.raises(OSError):  # plain HTTP gets no answer at all
        scrape(port)
    reader = old.sign("reader")
    scraper = ssl.create_default_context(cafile=str(old.file))
    scraper.load_cert_chain(*reader)
    assert secured(scraper) == 200
    renewed, renewed_key = new.sign("renewed")
    renewed_key.replace(key)
    wait_until(lambda: "the old contents stay in use" in daemon.log)
    assert secured(scraper) == 200, "a key that doesn't fit the certificate yet changes nothing"
    renewed.replace(certificate)
    later = ssl.create_default_context(cafile=str(new.file))
    later.load_cert_chain(*reader)

    def is_served() -> bool:
        with contextlib.suppress(OSError):
            return secured(later) == 200
        return False

    wait_until(is_served)
    with contextlib.closing(Site(port, later).connect()) as kept:
        kept.request("GET", "/metrics")
        kept.getresponse().read()
        old.revoke(reader[0])
        old.write_crl()
        assert kept.sock.recv(1) == b"", "a connection from before the revocation ends"
    assert not is_served()


@needs_openssl
def test_a_token_lets_in_also_where_metrics_stay_plain_on_loopback(serve: Serve, tmp_path: Path, port: int) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    write_secret(tmp_path / "token")
    serve(
        f'tls = false\nbearer_token_file = "{tmp_path}/token"',
        tables=f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n'
        f'client_ca = "{authority.file}"\nfull = ["a.example.org"]\n',
    )
    for given, status in (
        (f"Bearer {TOKEN}", 200),
        (f"bearer  {TOKEN}", 200),
        (f"Bearer {TOKEN[:-1]}", 401),
        ("Bearer ", 401),
        (f"Basic {TOKEN}", 401),
        ("Bearer gehe\xefm", 401),
    ):
        assert scrape(port, Authorization=given)[0] == status
    assert scrape(port)[0] == scrape(port, "/metrics?x", Authorization="Bearer x")[0] == 401


def attributes_text(attributes: Iterable[Any]) -> str:
    values = {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
    return " ".join(f"{name}={value}" for name, value in sorted(values.items()))


def points_text(metric: Any) -> Iterator[str]:
    kind = metric.WhichOneof("data")
    yield f"{metric.name} {metric.unit} {kind}: {metric.description}"
    assert kind == "gauge" or (metric.sum.is_monotonic and metric.sum.aggregation_temporality == 2), "a total"
    for point in getattr(metric, kind).data_points:
        text = f"  {getattr(point, point.WhichOneof('value')):.10g} {attributes_text(point.attributes)}"
        if not text.startswith("  0 category="):  # most categories are empty
            yield text


@pytest.mark.filterwarnings("default")
async def test_what_a_collector_gets() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra `otlp`")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    _, now = full_host()
    assert now.health is not None
    stuck = Finding(FindingKind.STUCK, Severity.CRITICAL, "it hangs", "restart it", 1_767_323_050.0, synthetic=True)
    now = replace(
        now,
        cores=(replace(now.cores[0], inferred_fields=("owner_pid",)), replace(now.cores[1], owner_pid=7)),
        processes=(*now.processes, Process(7, None, None, "", "7", None, None, None, False, 1, (1,), (1,), (0,))),
        health=replace(now.health, findings=(*now.health.findings, stuck)),
    )
    with answering(Reply()) as (url, arrived):
        sender = OtlpSender(url, 3600.0, now)
        sender.observe(now)
        await sender.close()
        wait_until(lambda: arrived or None)
    assert (arrived[-1].path, arrived[-1].headers["Content-Encoding"]) == ("/v1/metrics", "gzip")
    (told,) = ExportMetricsServiceRequest.FromString(gzip.decompress(arrived[-1].body)).resource_metrics
    resource = [each for each in told.resource.attributes if each.key.startswith(("cloud.", "host.", "service."))]
    (scope,) = told.scope_metrics
    lines = [attributes_text(resource).replace(socket.gethostname(), "this-host"), scope.scope.name]
    lines += [line for metric in scope.metrics for line in points_text(metric)]
    assert is_as_stored("\n".join(lines) + "\n", GOLDEN), "otlp.txt differs; UPDATE_GOLDEN=1 writes it anew"


def test_endpoints_and_where_a_real_host_is() -> None:
    for endpoint, url in (
        ("http://c:4318", "http://c:4318/v1/metrics"),
        ("http://c:4318/", "http://c:4318/v1/metrics"),
        ("https://c/otlp/v1/metrics", "https://c/otlp/v1/metrics"),
    ):
        assert metrics_url(endpoint) == url
    now = replace(ScenarioHost("inf2.xlarge").at(1), source=SourceKind.SYSFS)
    told = host_attributes(replace(now, instance=replace(now.instance, availability_zone=None)))
    cloud = {name: value for name, value in told.items() if name.startswith("cloud.")}
    assert cloud == {"cloud.provider": "aws", "cloud.platform": "aws_ec2", "cloud.region": "us-east-1"}


def sending_to(url: str, start_daemon: StartDaemon, directory: Path) -> RunningDaemon:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra `otlp`")
    file = directory / "neurond.toml"
    file.write_text(f'[metrics]\notlp_endpoint = "{url}"\notlp_interval_seconds = 1.0\n', "utf-8")
    return start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.1", "--config", str(file))


@pytest.mark.slow
def test_a_stop_does_not_wait_for_a_collector_that_hangs(start_daemon: StartDaemon, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(HANG_SECONDS)
        daemon = sending_to(f"http://127.0.0.1:{server.getsockname()[1]}", start_daemon, tmp_path)
        asked, _ = server.accept()
        with asked:
            assert asked.recv(1), "the daemon waits for an answer to this"
            assert daemon.stop() == 0
    assert "can't be sent" not in daemon.log, "it ended before the request had timed out"


@pytest.mark.slow  # two intervals, which are of seconds
def test_a_collector_that_is_away_is_told_once(start_daemon: StartDaemon, tmp_path: Path) -> None:
    with answering(Reply(status=500)) as (url, arrived):
        daemon = sending_to(url, start_daemon, tmp_path)
        wait_until(lambda: len(arrived) >= 2)
        daemon.stop()
    (line,) = [line for line in daemon.log.splitlines() if "INFO" not in line]
    assert line.startswith(f"neurond: ERROR: metrics can't be sent to {url}/v1/metrics: "), line
