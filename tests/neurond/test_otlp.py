"""The OTLP sender against a real HTTP server that decodes what arrives."""

from __future__ import annotations

import gzip
import socket
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from neurond.exports.otlp import OtlpSender, host_attributes, metrics_url

from neurontools.model import Attribution, SourceKind
from tests.harness.running_daemon import StartDaemon
from tests.harness.scenario_host import ScenarioHost
from tests.harness.waiting import HANG_SECONDS, wait_until


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://c:4318", "http://c:4318/v1/metrics"),
        ("http://c:4318/", "http://c:4318/v1/metrics"),
        ("https://c/otlp/v1/metrics", "https://c/otlp/v1/metrics"),
    ],
)
def test_endpoints(endpoint: str, url: str) -> None:
    assert metrics_url(endpoint) == url


def point_attributes(point: Any) -> dict[str, Any]:
    """The attributes of a data point."""
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value")) for attribute in point.attributes
    }


@pytest.mark.filterwarnings("default")
async def test_what_a_collector_gets() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra `otlp`")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    arrived: list[bytes] = []
    encodings: set[str | None] = set()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            encodings.add(self.headers.get("Content-Encoding"))
            arrived.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            assert self.path == "/v1/metrics"
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        host = ScenarioHost("inf2.xlarge")
        sender = OtlpSender(f"http://127.0.0.1:{server.server_port}", 3600.0, host.at(10))
        now = host.at(11)
        of = Attribution(pod_name="trainer-0", pod_namespace="ml", slurm_job_id="77")
        now = replace(now, processes=(replace(now.processes[0], attribution=of), *now.processes[1:]))
        sender.observe(now)
        await sender.close()
        wait_until(lambda: arrived or None)
        server.shutdown()
        thread.join()
    request = ExportMetricsServiceRequest.FromString(arrived[-1])
    told = {
        attribute.key: attribute.value.string_value for attribute in request.resource_metrics[0].resource.attributes
    }
    assert told["host.name"] == told["service.instance.id"] == socket.gethostname()
    assert (told["host.id"], told["host.type"]) == ("i-0123456789abcdef0", "inf2.xlarge")
    assert "cloud.provider" not in told, "a simulated host is not in the cloud"
    (scope,) = request.resource_metrics[0].scope_metrics
    metrics = {metric.name: metric for metric in scope.metrics}
    limit = metrics["hw.gpu.memory.limit"]
    assert limit.unit == "By"
    assert limit.gauge.data_points[0].as_int == now.devices[0].memory_bytes
    errors = metrics["hw.errors"].sum
    assert errors.is_monotonic
    kinds = {point_attributes(point)["error.type"] for point in errors.data_points}
    assert kinds == {
        *("memory_ecc_corrected", "memory_ecc_uncorrected", "memory_ecc_repairable_uncorrected"),
        *("sram_ecc_corrected", "sram_ecc_uncorrected"),
    }
    memory = {
        (labels["neuroncore"], labels["category"]): point.as_int
        for point in metrics["neurontools.neuroncore.memory"].gauge.data_points
        if (labels := point_attributes(point))
    }
    assert memory[0, "tensors"] == now.cores[0].memory.tensors_bytes
    assert {category for _, category in memory} >= {"tensors", "constants", "model_code", "runtime_memory"}
    owners = [point_attributes(point) for point in metrics["neurontools.neuroncore.owner"].gauge.data_points]
    assert [(owner["neuroncore"], owner["process.pid"], owner["neuron.runtime_tag"]) for owner in owners] == [
        (core.index, core.owner_pid, f"synthetic-{core.index}") for core in now.cores
    ]
    pods = [(owner["k8s.pod.name"], owner["k8s.namespace.name"], owner["slurm.job.id"]) for owner in owners[:1]]
    assert pods == [("trainer-0", "ml", "77")]
    assert "k8s.pod.name" not in owners[1], "what isn't known is left out"
    used = metrics["neurontools.process.device_memory"].gauge.data_points
    assert [point_attributes(point)["neuron.runtime_tag"] for point in used] == ["synthetic-0", "synthetic-1"]
    assert encodings == {"gzip"}
    states = {
        attribute.value.string_value: point.as_int
        for point in metrics["hw.status"].gauge.data_points
        for attribute in point.attributes
        if attribute.key == "hw.state"
    }
    assert states == {"ok": 1, "degraded": 0, "failed": 0}
    assert len(metrics["neurontools.neuroncore.utilization"].gauge.data_points) == 2


def test_a_real_host_tells_where_it_is() -> None:
    now = replace(ScenarioHost("inf2.xlarge").at(1), source=SourceKind.SYSFS)
    told = host_attributes(replace(now, instance=replace(now.instance, availability_zone=None)))
    assert (told["cloud.provider"], told["cloud.region"]) == ("aws", "us-east-1")
    assert "cloud.availability_zone" not in told


def test_a_stop_does_not_wait_for_a_collector_that_hangs(start_daemon: StartDaemon, tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra `otlp`")
    file = tmp_path / "neurond.toml"
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        file.write_text(f'[metrics]\notlp_endpoint = "{url}"\notlp_interval_seconds = 1.0\n', "utf-8")
        daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.1", "--config", str(file))
        server.settimeout(HANG_SECONDS)
        asked, _ = server.accept()
        with asked:
            assert asked.recv(1), "the daemon waits for an answer to this"
            assert daemon.stop() == 0
    assert "can't be sent" not in daemon.log, "it ended before the request had timed out"


def test_a_collector_that_is_away_is_told_once(start_daemon: StartDaemon, tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra `otlp`")
    asked: list[int] = []

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(1)
            self.send_error(500)

        def log_message(self, *_: object) -> None:
            pass

    file = tmp_path / "neurond.toml"
    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        file.write_text(f'[metrics]\notlp_endpoint = "{url}"\notlp_interval_seconds = 1.0\n', "utf-8")
        daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.1", "--config", str(file))
        wait_until(lambda: len(asked) >= 2)
        daemon.stop()
        server.shutdown()
        thread.join()
    (line,) = [line for line in daemon.log.splitlines() if "INFO" not in line]
    assert line.startswith(f"neurond: ERROR: metrics can't be sent to {url}/v1/metrics: "), line
