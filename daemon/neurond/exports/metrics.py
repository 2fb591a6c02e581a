"""Metrics of the daemon for Prometheus: rendered, and compressed, at most once per snapshot and format."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator

from neurond.snapshots.store import Store
from neurond.system.event_loop import turns
from neurontools import catalog
from neurontools.exporters.exposition import (
    Definition,
    Exposition,
    Family,
    Kind,
    label_text,
)
from neurontools.exporters.host_errors import HostErrors
from neurontools.exporters.process_families import process_families
from neurontools.exporters.prometheus import SnapshotMetrics
from neurontools.model import Snapshot
from neurontools.net.http.compression import Document

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


class Metrics:
    """The text of the latest snapshot. Belongs to the event loop's thread."""

    def __init__(self, store: Store, *, untagged_together: bool = False) -> None:
        self._store = store
        started_at_unix_seconds = time.time()
        self._metrics = SnapshotMetrics(started_at_unix_seconds, untagged_together=untagged_together)
        self._errors = HostErrors(started_at_unix_seconds)
        self._before: Snapshot | None = None
        self._latest: Snapshot | None = None
        self._texts: dict[bool, tuple[int, Document]] = {}
        self._expositions = {kind: Exposition(openmetrics=kind) for kind in (False, True)}
        self._scrapes = 0
        self._duration_seconds: float | None = None
        self.others: list[Callable[[], Iterable[Family]]] = []  # families of other parts of the daemon

    def observe(self, snapshot: Snapshot) -> None:
        """Takes note of a tick: what a later one is compared with."""
        self._before, self._latest = self._latest, snapshot
        self._errors.observe(snapshot)

    def text(self, *, openmetrics: bool) -> Document:
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
