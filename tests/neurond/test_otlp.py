"""The OTLP sender against a real HTTP server that decodes what arrives."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from neurond.otlp import OtlpSender, metrics_url

from neurontools import health
from tests.conftest import wait_until
from tests.scenario_host import ScenarioHost


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


@pytest.mark.filterwarnings("default")
def test_what_a_collector_gets() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra `otlp`")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    arrived: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
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
        sender = OtlpSender(f"http://127.0.0.1:{server.server_port}", 3600.0, health.verdicts)
        host.at(10)
        now = host.at(11)
        sender.observe(now)
        sender.close()
        wait_until(lambda: arrived or None)
        server.shutdown()
        thread.join()
    request = ExportMetricsServiceRequest.FromString(arrived[-1])
    (scope,) = request.resource_metrics[0].scope_metrics
    metrics = {metric.name: metric for metric in scope.metrics}
    limit = metrics["hw.gpu.memory.limit"]
    assert limit.unit == "By"
    assert limit.gauge.data_points[0].as_int == now.devices[0].memory_bytes
    errors = metrics["hw.errors"].sum
    assert errors.is_monotonic
    assert len(errors.data_points) == 4
    states = {
        attribute.value.string_value: point.as_int
        for point in metrics["hw.status"].gauge.data_points
        for attribute in point.attributes
        if attribute.key == "hw.state"
    }
    assert states == {"ok": 1, "degraded": 0, "failed": 0}
    assert len(metrics["neurontools.neuroncore.utilization"].gauge.data_points) == 2
