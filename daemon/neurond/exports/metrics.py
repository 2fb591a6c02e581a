"""Metrics of the daemon for Prometheus: rendered, and compressed, at most once per snapshot and format."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from neurond.settings import Settings
from neurond.snapshots.store import SnapshotStore
from neurond.system.lifecycle import turns
from neurontools import catalog
from neurontools.exporters.exposition import Definition, Exposition, Family, Kind, label_text
from neurontools.exporters.host_errors import HostErrors
from neurontools.exporters.process_families import process_families
from neurontools.exporters.prometheus import SnapshotMetrics
from neurontools.model import Snapshot
from neurontools.net.http_messages import CompressibleDocument

if TYPE_CHECKING:
    from neurond.exports.metrics_pages import MetricsPages
    from neurontools.net.client_roles import Subjects


BUILD = Definition("neurontools_build", Kind.INFO, "The daemon and where its numbers come from")
SNAPSHOTS = Definition("neurontools_daemon_snapshots", Kind.COUNTER, "Snapshots taken")
DAEMON_CPU = Definition("neurontools_daemon_cpu_seconds", Kind.COUNTER, "CPU time of the daemon")
LONGEST_TURN = Definition(
    "neurontools_daemon_longest_turn_cpu_seconds",
    Kind.GAUGE,
    "CPU time of the event loop's longest turn since the daemon began to serve, in which nobody else was answered",
)
SCRAPES = Definition("neurontools_scrapes", Kind.COUNTER, "Scrapes answered before this text was made")
SCRAPE_DURATION = Definition(
    "neurontools_scrape_duration_seconds", Kind.GAUGE, "Time that making the text took, the last time before this"
)
NETWORK_CONNECTIONS = Definition(
    "neurontools_network_connections", Kind.COUNTER, "Connections to the API over TLS that came to an outcome"
)
NETWORK_OPEN_CONNECTIONS = Definition(
    "neurontools_network_open_connections", Kind.GAUGE, "Connections to the API over TLS that are open"
)


class DaemonMetrics:
    """The text of the latest snapshot. Belongs to the event loop's thread."""

    def __init__(self, store: SnapshotStore, *, untagged_together: bool = False) -> None:
        self._store = store
        started_at_unix_seconds = time.time()
        self._metrics = SnapshotMetrics(started_at_unix_seconds, untagged_together=untagged_together)
        self._errors = HostErrors(started_at_unix_seconds)
        self._before: Snapshot | None = None
        self._latest: Snapshot | None = None
        self._texts: dict[bool, tuple[int, CompressibleDocument]] = {}
        self._expositions = {kind: Exposition(openmetrics=kind) for kind in (False, True)}
        self._scrapes = 0
        self._duration_seconds: float | None = None
        self.others: list[Callable[[], Iterable[Family]]] = []  # families of other parts of the daemon

    def observe(self, snapshot: Snapshot) -> None:
        """Takes note of a tick: what a later one is compared with."""
        self._before, self._latest = self._latest, snapshot
        self._errors.observe(snapshot)

    def text(self, *, openmetrics: bool) -> CompressibleDocument:
        """The metrics in a format; made anew only for a snapshot that is new."""
        snapshot = self._store.latest.snapshot
        known = self._texts.get(openmetrics)
        if known is None or known[0] != snapshot.sequence:
            started = time.perf_counter()
            text = self._expositions[openmetrics].document(self._families(snapshot))
            known = self._texts[openmetrics] = (snapshot.sequence, text)
            self._duration_seconds = time.perf_counter() - started
        self._scrapes += 1
        return known[1]

    def _families(self, snapshot: Snapshot) -> Iterator[Family]:
        peak_flops = catalog.peak_flops_per_core(snapshot.instance.instance_type)
        yield from self._metrics.families(snapshot, self._before, peak_flops)
        yield self._errors.family()
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
        if turns.longest_cpu_seconds is not None:
            yield Family(LONGEST_TURN, [("", turns.longest_cpu_seconds)])
        yield Family(SCRAPES, [("", self._scrapes)])
        yield Family(SCRAPE_DURATION, [] if self._duration_seconds is None else [("", self._duration_seconds)])
        for families in self.others:
            yield from families()
        yield from process_families()


class NetworkConnections(Protocol):
    """The counters of the API over TLS."""

    outcomes: Counter[Any]

    @property
    def open_count(self) -> int: ...


def _network_families(connections: NetworkConnections) -> Iterator[Family]:
    outcomes = [(label_text([("outcome", outcome)]), count) for outcome, count in connections.outcomes.items()]
    yield Family(NETWORK_CONNECTIONS, outcomes)
    yield Family(NETWORK_OPEN_CONNECTIONS, [("", connections.open_count)])


class _Sender(Protocol):
    def observe(self, snapshot: Snapshot) -> None: ...

    async def close(self) -> None: ...


class Exporters:
    """The exports that the settings ask for; without any it does nothing and has loaded nothing more."""

    def __init__(self, settings: Settings, store: SnapshotStore) -> None:
        self._settings = settings
        self._store = store
        self._metrics = DaemonMetrics(store, untagged_together=settings.metrics_untagged_together)
        self._pages: MetricsPages | None = None
        self._sender: _Sender | None = None

    async def start(self) -> None:
        """Begins to listen and to send; UserError when that can't be had."""
        if self._settings.metrics_listen is not None:
            from neurond.exports.metrics_pages import MetricsPages

            self._pages = MetricsPages(self._settings, self._metrics, self._store)
            await self._pages.listen(self._settings.metrics_listen)
        if self._settings.otlp_endpoint is not None:
            from neurond.exports.otlp import OtlpSender

            self._sender = OtlpSender(
                self._settings.otlp_endpoint,
                self._settings.otlp_interval_seconds,
                self._store.latest.snapshot,
            )

    def add_network_connections(self, connections: NetworkConnections) -> None:
        """Adds the metrics of the API over TLS."""
        self._metrics.others.append(partial(_network_families, connections))

    def allow(self, subjects: Subjects) -> None:
        """Goes by these names of certificates from the next connection on."""
        if self._pages is not None:
            self._pages.access.allow(subjects)

    def observe(self, snapshot: Snapshot) -> None:
        """Takes note of the snapshot of a tick."""
        if self._pages is not None or self._sender is not None:
            self._metrics.observe(snapshot)
        if self._pages is not None:
            self._pages.observe()
        if self._sender is not None:
            self._sender.observe(snapshot)

    async def close(self) -> None:
        """Stops listening and sending; takes a second at most."""
        if self._pages is not None:
            self._pages.close()
        if self._sender is not None:
            await self._sender.close()
