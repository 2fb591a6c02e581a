"""Metrics of the daemon over HTTP: /metrics for Prometheus, rendered at most once per snapshot and format."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Iterator

from neurond.exports.metrics_access import MetricsAccess
from neurond.snapshots.store import Store
from neurontools import catalog, health
from neurontools.exporters.exposition import (
    OPENMETRICS_CONTENT_TYPE,
    TEXT_CONTENT_TYPE,
    Definition,
    Exposition,
    Family,
    Kind,
    label_text,
    wants_openmetrics,
)
from neurontools.exporters.listen_address import listen_address
from neurontools.exporters.process_families import process_families
from neurontools.exporters.prometheus import SnapshotMetrics
from neurontools.model import Snapshot

MAX_CONNECTIONS = 256
MAX_REQUEST_BYTES = 16 * 2**10
IDLE_SECONDS = 120.0
HANDSHAKE_SECONDS = 10.0
MFU_DTYPE = "bf16"
_ANCHORS = 6  # snapshots kept for what is judged by growth

_log = logging.getLogger(__name__)

BUILD = Definition("neurontools_build", Kind.INFO, "The daemon and where its numbers come from")
SNAPSHOTS = Definition("neurontools_daemon_snapshots", Kind.COUNTER, "Snapshots taken")
DAEMON_CPU = Definition("neurontools_daemon_cpu_seconds", Kind.COUNTER, "CPU time of the daemon")
SCRAPES = Definition("neurontools_scrapes", Kind.COUNTER, "Scrapes answered before this text was made")
SCRAPE_DURATION = Definition(
    "neurontools_scrape_duration_seconds", Kind.GAUGE, "Time that making the text took, the last time before this"
)


class Metrics:
    """The text of the latest snapshot. Belongs to the event loop's thread."""

    def __init__(self, store: Store, thresholds: health.Thresholds) -> None:
        self._store = store
        self._thresholds = thresholds
        self._metrics = SnapshotMetrics(time.time())
        self._before: Snapshot | None = None
        self._latest: Snapshot | None = None
        self._anchors: deque[Snapshot] = deque(maxlen=_ANCHORS)
        self._texts: dict[bool, tuple[int, bytes]] = {}
        self._expositions = {kind: Exposition(openmetrics=kind) for kind in (False, True)}
        self._peak_flops: float | None = None
        self._peak_of: str | None = None
        self._scrapes = 0
        self._duration_seconds: float | None = None

    def observe(self, snapshot: Snapshot) -> None:
        """Takes note of a tick: what a later one is compared with."""
        self._before, self._latest = self._latest, snapshot
        spacing_seconds = self._thresholds.window_seconds / (_ANCHORS - 1)
        if not self._anchors or snapshot.taken_at_seconds - self._anchors[-1].taken_at_seconds >= spacing_seconds:
            self._anchors.append(snapshot)

    def verdicts(self, snapshot: Snapshot) -> tuple[health.Verdict, ...]:
        """The health of the devices, growth judged since the window began."""
        return health.verdicts(snapshot, self._anchors[0] if self._anchors else None, self._thresholds)

    def text(self, *, openmetrics: bool) -> bytes:
        """The metrics in a format; made anew only for a snapshot that is new."""
        snapshot = self._store.latest.snapshot
        known = self._texts.get(openmetrics)
        if known is None or known[0] != snapshot.sequence:
            started = time.perf_counter()
            text = self._expositions[openmetrics].text(self._families(snapshot))
            known = self._texts[openmetrics] = (snapshot.sequence, text)
            self._duration_seconds = time.perf_counter() - started
        self._scrapes += 1
        return known[1]

    def _families(self, snapshot: Snapshot) -> Iterator[Family]:
        peak_flops = self._peak_flops_per_core(snapshot.instance.instance_type)
        yield from self._metrics.families(snapshot, self._before, self.verdicts(snapshot), peak_flops)
        build = label_text(
            [
                ("version", snapshot.daemon_version),
                ("source", snapshot.source.value),
                ("synthetic_load", snapshot.synthetic_load or ""),
            ]
        )
        times = os.times()
        yield Family(BUILD, [(build, 1)])
        yield Family(SNAPSHOTS, [("", snapshot.sequence)])
        yield Family(DAEMON_CPU, [("", times.user + times.system)])
        yield Family(SCRAPES, [("", self._scrapes)])
        yield Family(SCRAPE_DURATION, [] if self._duration_seconds is None else [("", self._duration_seconds)])
        yield from process_families()

    def _peak_flops_per_core(self, instance_type: str) -> float | None:
        if self._peak_of != instance_type:
            self._peak_of = instance_type
            try:
                self._peak_flops = catalog.load(instance_type).family.peak_flops_per_physical_core(MFU_DTYPE)
            except catalog.UnknownInstanceType:
                self._peak_flops = None
        return self._peak_flops


class MetricsListener:
    """Answers GET /metrics over HTTP/1.1, to whom `access` lets, and nothing else: nothing that changes anything."""

    def __init__(self, metrics: Metrics, access: MetricsAccess) -> None:
        self.access = access
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    async def listen(self, address: str) -> int:
        """Serves on an address such as ":8000"; returns the port. OSError when it can't be had."""
        host, port = listen_address(address)
        context = self.access.context
        self._server = await asyncio.start_server(
            *(self._serve, host, port),
            limit=MAX_REQUEST_BYTES,
            backlog=64,
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if context else None,
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        shown = f"[{host}]" if host and ":" in host else host or "*"
        _log.info("metrics on %s://%s:%d/metrics", "https" if context else "http", shown, bound)
        return bound

    def close(self) -> None:
        """Stops listening and drops the connections."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._connections):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        self._connections.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                while await self._answer_one(reader, writer):
                    pass
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Reads a request and answers it; False when the connection is to end."""
        async with asyncio.timeout(IDLE_SECONDS):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                writer.write(_response(431, "Request Header Fields Too Large", b"", TEXT_CONTENT_TYPE, keep=False))
                await writer.drain()
                return False
            request, headers = _parsed(head)
            method, _, rest = request.partition(" ")
            path = rest.partition(" ")[0].partition("?")[0]
            keep = (
                request.endswith("HTTP/1.1")
                and headers.get("connection", "").lower() != "close"
                and "content-length" not in headers
                and "transfer-encoding" not in headers
            )
            if path == "/metrics" and not self.access.admits(headers.get("authorization", "")):
                writer.write(_response(401, _UNAUTHORIZED, b"a bearer token is needed\n", "text/plain", keep=False))
                await writer.drain()
                return False
            writer.write(self._response(method, path, headers.get("accept", ""), keep))
            await writer.drain()
        return keep

    def _response(self, method: str, path: str, accept: str, keep: bool) -> bytes:
        if method not in ("GET", "HEAD"):
            return _response(405, "Method Not Allowed", b"only GET\n", "text/plain", keep=False)
        if path == "/metrics":
            openmetrics = wants_openmetrics(accept)
            kind = OPENMETRICS_CONTENT_TYPE if openmetrics else TEXT_CONTENT_TYPE
            try:
                body = self._metrics.text(openmetrics=openmetrics)
            except Exception:
                # A fault in the metrics must neither end the daemon nor pass for a host without devices.
                _log.exception("the metrics could not be made")
                return _response(500, "Internal Server Error", b"see the log of neurond\n", "text/plain", keep=False)
        elif path == "/":
            kind, body = "text/plain; charset=utf-8", b"neurond: metrics are at /metrics\n"
        else:
            return _response(404, "Not Found", b"metrics are at /metrics\n", "text/plain", keep=keep)
        return _response(200, "OK", body, kind, keep=keep, is_head=method == "HEAD")


_UNAUTHORIZED = "Unauthorized\r\nWWW-Authenticate: Bearer"


def _parsed(head: bytes) -> tuple[str, dict[str, str]]:
    """The request line, and the headers by lower-case name."""
    request, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return request, headers


def _response(status: int, reason: str, body: bytes, kind: str, *, keep: bool, is_head: bool = False) -> bytes:
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"Connection: {'keep-alive' if keep else 'close'}\r\n\r\n"
    )
    return head.encode() + (b"" if is_head else body)
