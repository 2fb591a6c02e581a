"""The daemon: wires source, ledger, sampler, store and services together and runs them until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal

from neurond.attach_socket import MAX_CONNECTIONS, AttachSocket
from neurond.ledger import Ledger
from neurond.load import SyntheticLoad
from neurond.monitor_service import MonitorService
from neurond.runtime_service import RuntimeService
from neurond.sampler import Sampler
from neurond.server import announce_health, make_server
from neurond.settings import Settings
from neurond.socket_files import SocketFiles, closed_umask
from neurond.sources.simulated import SimulatedSource, shape_of
from neurond.store import Store
from neurond.supervisor import most_files, notify_ready
from neurontools import catalog, socket_path
from neurontools.errors import EXIT_USAGE, UserError

# Changes of ownership are published at once, but under a storm of them not more often than this.
_SETTLE_SECONDS = 0.02
_GRACE_SECONDS = 0.5

_log = logging.getLogger(__name__)


class Daemon:
    """One daemon. `run` serves until SIGTERM or SIGINT."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._dirty = False
        self._settling: asyncio.TimerHandle | None = None
        instance_type = _instance_type(settings)
        try:
            shape = shape_of(instance_type, settings.lnc)
        except ValueError as error:
            raise UserError(f"neurond: {error}", EXIT_USAGE) from None
        self._ledger = Ledger(shape, self._on_ownership_change)
        load = _load(settings, self._ledger, instance_type) if settings.load else None
        source = SimulatedSource(instance_type, self._ledger, load.ecc if load else None)
        self._sampler = Sampler(source, self._ledger, load, settings.interval_seconds)
        self._store = Store(settings.history_seconds, settings.history_bytes)
        self._monitor = MonitorService(self._store, self._settle)
        self._runtime = RuntimeService(self._ledger, instance_type.name, settings.interval_seconds)

    async def run(self) -> None:
        """Serves until a signal says to end; UserError when the sockets can't be had."""
        ending = _ending()  # first of all: a signal must never leave the sockets behind
        files = SocketFiles(self._settings.socket, self._settings.group)
        files.claim()
        # An attached process takes two files, its connection and itself. Half of all stay for readers.
        attach_socket = AttachSocket(self._ledger, min(MAX_CONNECTIONS, most_files() // 4))
        server, health = make_server(self._monitor, self._runtime)
        try:
            self._store.put(self._sampler.sample())
            with closed_umask():
                server.add_insecure_port(socket_path.grpc_target(files.path))
                await server.start()
            files.open_up(files.path)
            await attach_socket.listen(files.listen_for_attach())
            await announce_health(health)
            _log.info("serving %s on unix:%s", self._settings.simulate, files.path)
            notify_ready(self._settings.ready_fd)
            await self._tick_until(ending)
        finally:
            _log.info("ending")
            attach_socket.close()
            await server.stop(_GRACE_SECONDS)
            files.release()

    async def _tick_until(self, ending: asyncio.Event) -> None:
        """Takes a snapshot at every interval; ticks that were missed (a stopped process) are not made up for."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not ending.is_set():
            due = max(due + self._settings.interval_seconds, loop.time())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await ending.wait()
                    return
            self._dirty = False
            self._publish(whole=True)

    def _on_ownership_change(self) -> None:
        self._dirty = True
        if self._settling is None:
            loop = asyncio.get_running_loop()
            self._settling = loop.call_later(_SETTLE_SECONDS, self._settle)

    def _settle(self) -> None:
        """Publishes changes of ownership now, if there are any that no snapshot shows."""
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        if self._dirty:
            self._dirty = False
            self._publish(whole=False)

    def _publish(self, *, whole: bool) -> None:
        """Makes a snapshot of now the latest one. Whole ones, those of a tick, are the past of later ones."""
        try:
            self._store.put(self._sampler.sample(whole=whole), remember=whole)
        except Exception:
            # A fault in one snapshot must not end the daemon; the readers keep the one before.
            _log.exception("a snapshot could not be taken")


def _instance_type(settings: Settings) -> catalog.InstanceType:
    if settings.simulate is None:
        raise UserError(
            "neurond: no Neuron devices found on this host; simulate some with --simulate trn1.32xlarge "
            "(all types: --list-instance-types)"
        )
    try:
        return catalog.load(settings.simulate)
    except catalog.UnknownInstanceType as error:
        raise UserError(f"neurond: --simulate: {error}", EXIT_USAGE) from None


def _load(settings: Settings, ledger: Ledger, instance_type: catalog.InstanceType) -> SyntheticLoad:
    peak_flops = instance_type.family.peak_flops_per_physical_core("bf16") or 0.0
    return SyntheticLoad(
        ledger,
        settings.load or "idle",
        seed=settings.load_seed,
        neuroncores=settings.load_neuroncores,
        peak_flops_per_core=peak_flops,
    )


def _ending() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    return ending
