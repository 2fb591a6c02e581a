"""What the daemon tells engines that exist: the HTTP listener for Prometheus and the OTLP sender, where asked for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from neurond.exports.metrics import Metrics
from neurond.settings import Settings
from neurond.snapshots.store import Store
from neurontools.model import Snapshot

if TYPE_CHECKING:
    from neurond.exports.metrics_pages import MetricsPages
    from neurond.peers.network_gate import NetworkGate
    from neurontools.net.tls.subjects import Subjects


class _Sender(Protocol):
    def observe(self, snapshot: Snapshot) -> None: ...

    async def close(self) -> None: ...


class Exports:
    """The exports that the settings ask for; without any it does nothing and has loaded nothing more."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._metrics = Metrics(store, untagged_together=settings.metrics_untagged_together)
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

    def tell_of(self, gate: NetworkGate) -> None:
        """Has the metrics tell of the connections of a gate."""
        from neurond.exports.network_families import network_families

        self._metrics.others.append(partial(network_families, gate))

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
