"""What the daemon tells engines that exist: the HTTP listener for Prometheus and the OTLP sender, where asked for."""

from __future__ import annotations

from typing import Protocol

from neurond.exports.metrics import Metrics, MetricsListener
from neurond.exports.metrics_access import MetricsAccess
from neurond.settings import Settings
from neurond.snapshots.store import Store
from neurontools.errors import EXIT_FAILURE, UserError
from neurontools.health import Thresholds
from neurontools.model import Snapshot


class _Sender(Protocol):
    def observe(self, snapshot: Snapshot) -> None: ...

    def close(self) -> None: ...


class Exports:
    """The exports that the settings ask for; without any it does nothing and has loaded nothing more."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._metrics = Metrics(store, Thresholds(**settings.health_thresholds))  # type: ignore[arg-type]
        self._listener: MetricsListener | None = None
        self._sender: _Sender | None = None

    async def start(self) -> None:
        """Begins to listen and to send; UserError when that can't be had."""
        if self._settings.metrics_listen is not None:
            self._listener = MetricsListener(self._metrics, MetricsAccess(self._settings))
            try:
                await self._listener.listen(self._settings.metrics_listen)
            except (OSError, OverflowError) as error:
                cause = error.strerror or str(error) if isinstance(error, OSError) else str(error)
                raise UserError(
                    f"neurond: --metrics-listen {self._settings.metrics_listen}: {cause}; give another address",
                    EXIT_FAILURE,
                ) from None
        if self._settings.otlp_endpoint is not None:
            from neurond.exports.otlp import OtlpSender

            self._sender = OtlpSender(
                self._settings.otlp_endpoint,
                self._settings.otlp_interval_seconds,
                self._metrics.verdicts,
                self._store.latest.snapshot,
            )

    def observe(self, snapshot: Snapshot) -> None:
        """Takes note of the snapshot of a tick."""
        if self._listener is not None or self._sender is not None:
            self._metrics.observe(snapshot)
        if self._listener is not None:
            self._listener.access.renew()
        if self._sender is not None:
            self._sender.observe(snapshot)

    def close(self) -> None:
        """Stops listening and sending."""
        if self._listener is not None:
            self._listener.close()
        if self._sender is not None:
            self._sender.close()
