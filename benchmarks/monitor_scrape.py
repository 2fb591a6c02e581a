"""Measures the CPU of a scrape for 32 processes on trn1.32xlarge beside prometheus_client. Limit: 2 ms.

The limit of a compressed scrape is 3 ms. The first scrape of a snapshot renders and compresses the text; later ones
send it again. Sending is measured over a real connection.

The reference is `generate_latest` of prometheus_client (if installed) with the same samples in its gauges, without the
time to set them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from http.client import HTTPConnection

from neurontools.exporters.exposition import Exposition, metrics_page
from neurontools.exporters.snapshot_metrics import SnapshotMetrics
from neurontools.net.http_server import HttpLimits, HttpServer
from neurontools.net.http_site import CompressibleDocument, HttpAccess, HttpPage, Site
from tests.harness.scenario_host import ScenarioHost

SCRAPES = 200
PEAK_FLOPS = 95e12


def main() -> None:
    host = ScenarioHost("trn1.32xlarge")
    snapshots = [host.at(10 + second) for second in range(30)]
    metrics, exposition = SnapshotMetrics(0.0), Exposition(openmetrics=False)
    for warm in range(2):
        document = exposition.document(metrics.families(snapshots[warm], None, PEAK_FLOPS))
    making, compressing = Spent(), Spent()
    for number in range(SCRAPES):
        now, before = snapshots[number % 29 + 1], snapshots[number % 29]
        with making:
            document = exposition.document(metrics.families(now, before, PEAK_FLOPS))
        with compressing:
            gzipped = document.gzipped
    text = document.content
    spent = making.mean_seconds
    samples = [line for line in text.decode().splitlines() if not line.startswith("#")]
    theirs = [line for line in samples if not line.startswith("neurontools_")]
    print(f"a scrape of {len(samples)} samples ({len(theirs)} of them the original's), {len(text) / 1000:.0f} kB:")
    print(f"CPU, {making} (asked for: 2 ms)")
    print(f"compressed to {len(gzipped) / 1000:.0f} kB: {compressing}")
    whole, best = spent + compressing.mean_seconds, making.best_seconds + compressing.best_seconds
    print(f"made and compressed: mean {whole * 1e3:.2f} ms, undisturbed {best * 1e3:.2f} ms (asked for: 3 ms)")
    for encoding in ("identity", "gzip"):
        print(
            f"each further scrape, {encoding}: {sending_seconds(document, encoding) * 1e3:.2f} ms of CPU in the server"
        )
    try:
        reference = reference_seconds(text.decode())
    except ImportError:
        print("reference: prometheus_client is not installed")
        return
    print(f"reference, prometheus_client.generate_latest of the same samples: {reference * 1e3:.2f} ms")
    print(f"ratio: {spent / reference:.2f}")


class Spent:
    """A context manager that collects the CPU times of its blocks."""

    def __init__(self) -> None:
        self._taken: list[float] = []

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._taken.append(time.thread_time() - self._began)

    @property
    def mean_seconds(self) -> float:
        return sum(self._taken) / len(self._taken)

    @property
    def best_seconds(self) -> float:
        return min(self._taken)

    def __str__(self) -> str:
        return f"mean {self.mean_seconds * 1e3:.2f} ms, undisturbed {self.best_seconds * 1e3:.2f} ms"


class Finished:
    """A source of metrics whose text is rendered already."""

    def __init__(self, document: CompressibleDocument) -> None:
        self._document = document

    def text(self, *, openmetrics: bool) -> CompressibleDocument:
        del openmetrics
        return self._document


def sending_seconds(document: CompressibleDocument, encoding: str) -> float:
    """Returns the CPU time of the server's thread for one scrape over a persistent connection."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    site = Site({}, HttpPage(metrics_page(Finished(document).text), is_open=True), HttpAccess())

    async def listen() -> int:
        return await HttpServer(site, name="metrics", limits=HttpLimits()).listen("127.0.0.1", 0)

    async def cpu_seconds() -> float:
        return time.thread_time()

    port = asyncio.run_coroutine_threadsafe(listen(), loop).result()
    client = HTTPConnection("127.0.0.1", port)
    for scrape in range(SCRAPES + 1):
        if scrape == 1:  # the first scrape, which compresses, is not measured
            began = asyncio.run_coroutine_threadsafe(cpu_seconds(), loop).result()
        client.request("GET", "/metrics", headers={"Accept-Encoding": encoding})
        client.getresponse().read()
    return (asyncio.run_coroutine_threadsafe(cpu_seconds(), loop).result() - began) / SCRAPES


def reference_seconds(text: str) -> float:
    from prometheus_client import CollectorRegistry, Gauge, generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    registry = CollectorRegistry()
    for family in text_string_to_metric_families(text):
        by_name: dict[str, Gauge] = {}
        for sample in family.samples:
            gauge = by_name.get(sample.name)
            if gauge is None:
                gauge = by_name[sample.name] = Gauge(
                    sample.name, family.documentation, sorted(sample.labels), registry=registry
                )
            (gauge.labels(**sample.labels) if sample.labels else gauge).set(sample.value)
    began = time.process_time()
    for _ in range(20):
        generate_latest(registry)
    return (time.process_time() - began) / 20


if __name__ == "__main__":
    main()
