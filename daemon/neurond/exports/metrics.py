"""Prometheus metrics of the daemon, rendered once per snapshot and format. `Exporters` runs all exporters."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from neurond.settings import Settings
from neurond.snapshots.store import SnapshotStore
from neurond.system.lifecycle import turns
from neurontools import catalog
from neurontools.exporters.exposition import Exposition, FamilyDefinition, MetricFamily, MetricKind, label_text
from neurontools.exporters.process_families import process_families
from neurontools.exporters.snapshot_metrics import FLEET_FAMILIES, HostErrorTotals, SnapshotMetrics
from neurontools.model import Snapshot
from neurontools.net.http_site import CompressibleDocument

if TYPE_CHECKING:
    from neurond.exports.metrics_pages import MetricsPages
    from neurond.exports.otlp import OtlpSender
    from neurontools.net.tls import Subjects
    from neurontools.web.privacy_filter import PrivacyFilter


BUILD = FamilyDefinition("neurontools_build", MetricKind.INFO, "The daemon and where its numbers come from")
SNAPSHOTS = FamilyDefinition("neurontools_daemon_snapshots", MetricKind.COUNTER, "Snapshots taken")
DAEMON_CPU = FamilyDefinition("neurontools_daemon_cpu_seconds", MetricKind.COUNTER, "CPU time of the daemon")
LONGEST_TURN = FamilyDefinition(
    "neurontools_daemon_longest_turn_cpu_seconds",
    MetricKind.GAUGE,
    "CPU time of the event loop's longest turn since the daemon began to serve, in which nobody else was answered",
)
SCRAPES = FamilyDefinition("neurontools_scrapes", MetricKind.COUNTER, "Scrapes answered before this text was made")
SCRAPE_DURATION = FamilyDefinition(
    "neurontools_scrape_duration_seconds", MetricKind.GAUGE, "Time that making the text took, the last time before this"
)
NETWORK_CONNECTIONS = FamilyDefinition(
    "neurontools_network_connections", MetricKind.COUNTER, "Connections to the API over TLS that came to an outcome"
)
NETWORK_OPEN_CONNECTIONS = FamilyDefinition(
    "neurontools_network_open_connections", MetricKind.GAUGE, "Connections to the API over TLS that are open"
)


_Form = tuple[bool, bool]  # whether the text is OpenMetrics, and whether it has only the families for fleets


class DaemonMetrics:
    """Renders the Prometheus metrics of the latest snapshot. Belongs to the event loop's thread."""

    def __init__(
        self, store: SnapshotStore, *, untagged_together: bool = False, hiding: PrivacyFilter | None = None
    ) -> None:
        self._store = store
        self._hiding = hiding
        started_at_unix_seconds = time.time()
        self._metrics = SnapshotMetrics(started_at_unix_seconds, untagged_together=untagged_together)
        self._errors = HostErrorTotals(started_at_unix_seconds)
        self._before: Snapshot | None = None
        self._latest: Snapshot | None = None
        self._texts: dict[_Form, tuple[int, CompressibleDocument]] = {}
        self._expositions: dict[_Form, Exposition] = {}
        self._scrapes = 0
        self._duration_seconds: float | None = None
        self.others: list[Callable[[], Iterable[MetricFamily]]] = []  # functions that return further metric families

    def observe(self, snapshot: Snapshot) -> None:
        """Stores the snapshot of a tick, and adds its errors to the totals. Some metrics compare the last two ticks."""
        self._before, self._latest = self._latest, snapshot
        self._errors.add_snapshot(snapshot)

    def text(self, *, openmetrics: bool, fleet_only: bool = False) -> CompressibleDocument:
        """Returns the metrics as Prometheus or OpenMetrics text, rendered once per snapshot.

        With `fleet_only`, the text has only the metrics that views of many hosts and the alert rules read.
        """
        snapshot = self._store.latest.snapshot
        form = (openmetrics, fleet_only)
        cached = self._texts.get(form)
        if cached is None or cached[0] != snapshot.sequence:
            started = time.perf_counter()
            exposition = self._expositions.setdefault(form, Exposition(openmetrics=openmetrics))
            families = self._families(snapshot)
            if fleet_only:
                # No view or rule reads the start times of counters.
                families = (replace(each, created=()) for each in families if each.definition in FLEET_FAMILIES)
            text = exposition.document(families)
            cached = self._texts[form] = (snapshot.sequence, text)
            self._duration_seconds = time.perf_counter() - started
        self._scrapes += 1
        return cached[1]

    def _families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        peak_flops = catalog.peak_flops_per_core(snapshot.instance.instance_type)
        shown = snapshot if self._hiding is None else self._hiding.snapshot(snapshot)
        yield from self._metrics.families(shown, self._before, peak_flops)
        yield self._errors.family()
        build = label_text(
            [
                ("version", snapshot.daemon_version),
                ("source", snapshot.source.value),
                ("synthetic_load", snapshot.synthetic_load or ""),
            ]
        )
        times = os.times()
        yield MetricFamily(BUILD, [(build, 1)])
        yield MetricFamily(SNAPSHOTS, [("", snapshot.sequence)])
        yield MetricFamily(DAEMON_CPU, [("", times.user + times.system)])
        if turns.longest_cpu_seconds is not None:
            yield MetricFamily(LONGEST_TURN, [("", turns.longest_cpu_seconds)])
        yield MetricFamily(SCRAPES, [("", self._scrapes)])
        yield MetricFamily(SCRAPE_DURATION, [] if self._duration_seconds is None else [("", self._duration_seconds)])
        for families in self.others:
            yield from families()
        yield from process_families()


class NetworkConnections(Protocol):
    outcomes: Counter[Any]

    @property
    def open_count(self) -> int: ...


def _network_families(connections: NetworkConnections) -> Iterator[MetricFamily]:
    outcomes = [(label_text([("outcome", outcome)]), count) for outcome, count in connections.outcomes.items()]
    yield MetricFamily(NETWORK_CONNECTIONS, outcomes)
    yield MetricFamily(NETWORK_OPEN_CONNECTIONS, [("", connections.open_count)])


class Exporters:
    """Runs the exporters that the settings enable. Does not import the modules of disabled ones."""

    def __init__(self, settings: Settings, store: SnapshotStore) -> None:
        self._settings = settings
        self._store = store
        hiding = None
        if settings.web:  # the metrics are for the same viewers as the pages, so they show the same
            from neurontools.web.privacy_filter import PrivacyFilter

            hiding = PrivacyFilter(settings.web_shows_commands, settings.web_shows_users)
        self._metrics = DaemonMetrics(store, untagged_together=settings.metrics_untagged_together, hiding=hiding)
        self._pages: MetricsPages | None = None
        self._sender: OtlpSender | None = None

    async def start(self) -> None:
        """Starts the enabled exporters. Raises UserError if one of them can't start."""
        if self._settings.metrics_listen is not None:
            from neurond.exports.metrics_pages import MetricsPages

            self._pages = MetricsPages(self._settings, self._metrics.text, self._store)
            await self._pages.listen(self._settings.metrics_listen)
        if self._settings.otlp_endpoint is not None:
            from neurond.exports.otlp import OtlpSender

            self._sender = OtlpSender(
                self._settings.otlp_endpoint, self._settings.otlp_interval_seconds, self._store.latest.snapshot
            )

    def add_network_connections(self, connections: NetworkConnections) -> None:
        self._metrics.others.append(partial(_network_families, connections))

    def allow(self, subjects: Subjects) -> None:
        """Sets which client certificates may read, from the next connection on."""
        if self._pages is not None:
            self._pages.access.allow(subjects)

    def observe(self, snapshot: Snapshot) -> None:
        if self._pages is not None or self._sender is not None:
            self._metrics.observe(snapshot)
        if self._pages is not None:
            self._pages.observe()
        if self._sender is not None:
            self._sender.observe(snapshot)

    async def close(self) -> None:
        """Stops the exporters, within a second."""
        if self._pages is not None:
            self._pages.close()
        if self._sender is not None:
            await self._sender.close()
