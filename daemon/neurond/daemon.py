"""The daemon: wires source, allocator, sampler, store and services together and runs them until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from neurond.actions import ActionSettings, FindingActions
from neurond.attribution import KubeletWatcher, ProcessAttributor
from neurond.exports.metrics import Exporters
from neurond.faults import LoseHost
from neurond.host import open_host, open_kernel_log
from neurond.journal.accounts import ProcessAccounts
from neurond.journal.state_files import AuditLog, EndedFile, EndedLog, open_audit_file, open_state_file
from neurond.peers.connection_proxy import ConnectionProxy
from neurond.peers.limits import PeerLimiter, limits_for
from neurond.reloading import RELOADABLE, changes, reread
from neurond.service.attach_socket import AttachSocket
from neurond.service.monitor_service import FaultService, MonitorService
from neurond.service.runtime_service import RuntimeService
from neurond.service.server import (
    MemoryTrimmer,
    OpenCalls,
    announce_health,
    build_server,
    handle_loop_exception,
    is_out_of_memory,
    log_out_of_memory,
)
from neurond.service.socket_files import SocketFiles, closed_umask, group_id
from neurond.settings import Settings
from neurond.snapshots.sampler import Sampler
from neurond.snapshots.store import SnapshotStore, SourceRefresher, TickSchedule
from neurond.system.clocks import SteadyClock, by_wall_clock, ended_by_wall_clock, fault_by_wall_clock
from neurond.system.kernel_log import KernelLogWriter
from neurond.system.lifecycle import (
    finish_other_tasks,
    has_terminal,
    notify_ready,
    notify_systemd,
    raise_file_limit,
    set_log_level,
    termination_event,
    turns,
    watchdog_seconds,
)
from neurond.system.processes import is_alive
from neurond.verdicts.evidence import HealthThresholds
from neurond.verdicts.rule_evaluator import FindingDiff, FindingLogger, RuleEvaluator
from neurontools.driver.environment import Roots
from neurontools.faults.requests import FaultRequest
from neurontools.rpc import socket_path
from neurontools.util.errors import UserError
from neurontools.util.version import __version__

if TYPE_CHECKING:
    from neurond.exports.sysfs_export import SysfsExporter
    from neurond.service.network_api import NetworkApi
    from neurontools.model import InjectedFault, Snapshot

# Changes of ownership are published at once, but under a storm of them not more often than this.
_SETTLE_SECONDS = 0.02
_GRACE_SECONDS = 0.5
_FIRST_REFRESH_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Daemon:
    """One daemon. `run` serves until SIGTERM or SIGINT, or SIGHUP of its terminal; that of others has it reload.

    Where the host is simulated: `lose_host` is what losing it means, `faults` are there from the start.
    """

    def __init__(
        self, settings: Settings, lose_host: LoseHost | None = None, faults: Sequence[FaultRequest] = ()
    ) -> None:
        self._settings = settings
        self._dirty = False
        self._settling: asyncio.TimerHandle | None = None
        self._reloading: asyncio.Task[None] | None = None
        self._is_serving = self._is_reload_due = False
        self._clock = SteadyClock()
        host = open_host(settings, self._on_ownership_change, self._clock)
        self._allocator = host.allocator
        self._faults = host.faults
        self._fault_due: asyncio.TimerHandle | None = None
        if host.faults is not None:
            host.faults.effects.on_change = self._on_fault_change
            host.faults.effects.on_healed = self._on_healed
            host.faults.effects.lose_host = lose_host
        self._first_faults = faults
        self._ticks = TickSchedule(settings.interval_seconds, time.monotonic())
        roots = Roots(settings.sysfs_root, settings.proc_root, settings.dev_root)
        self._sampler = Sampler(host.source, host.allocator, host.load, settings.interval_seconds, roots, self._clock)
        self._refresher = SourceRefresher(host.source)
        self._export: SysfsExporter | None = None
        self._written_kernel_log: KernelLogWriter | None = None
        self._store = SnapshotStore(settings.history_seconds, settings.history_bytes)
        # The processes of a simulated host are those of this one.
        proc_root = "/proc" if settings.simulate else settings.proc_root
        self._attributions = ProcessAttributor(proc_root)
        self._rules = RuleEvaluator(HealthThresholds(**settings.health_thresholds))  # type: ignore[arg-type]
        self._kernel_log = open_kernel_log(settings)
        self._finding_log = FindingLogger()
        self._kubelet = KubeletWatcher(self._attributions.take_allocations, settings.pod_resources_socket)
        self._exports = Exporters(settings, self._store)
        self._accounts = ProcessAccounts(partial(is_alive, proc_root))
        group = None if settings.group is None else group_id(settings.group)
        self._ended = EndedLog(time.time(), open_state_file(settings.state_directory, group, "what ended", EndedFile))
        self._finding_diff = FindingDiff()
        self._audit = AuditLog(open_state_file(settings.state_directory, group, "the audit", open_audit_file))
        self._network: NetworkApi | None = None
        self._actions = (
            FindingActions(ActionSettings.from_table(settings.actions), self._audit) if settings.actions else None
        )
        self._monitor = MonitorService(self._store, self._ended, self._settle)
        self._runtime = RuntimeService(
            self._allocator, host.source.instance.instance_type, self._ticks, self._clock, host.faults
        )

    async def run(self, ending: asyncio.Event | None = None, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serves until `ending` is set, or without one until a signal says to end; calls `on_ready` once it serves.

        UserError when the sockets can't be had.
        """
        is_own_process = ending is None
        # Asked before anything can hang up: of a terminal that is gone nobody could tell that there was one.
        reloads = is_own_process and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and not has_terminal()
        # First of all: a signal must never leave the sockets behind.
        ending = ending or termination_event(by_hang_up=not reloads)
        if reloads:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        asyncio.get_running_loop().set_exception_handler(handle_loop_exception)
        files = SocketFiles(self._settings.socket, self._settings.group)
        files.claim()
        files_each = raise_file_limit() // (
            1 if self._settings.listen is None else 2
        )  # for the API on each of its sides
        peers = PeerLimiter(limits_for(files_each), time.monotonic)
        gate = ConnectionProxy(peers)
        calls = OpenCalls(peers, gate.who)
        attach_socket = AttachSocket(self._allocator, peers, self._clock, self._accounts.end, self._faults, self._audit)
        self._network = _network_api(self._settings, self._monitor, files_each, self._audit)
        server, health = build_server(self._monitor, self._runtime, FaultService(self._faults), calls)
        try:
            await self._refresher.refresh(_FIRST_REFRESH_SECONDS)
            first = self._store.put(
                self._rules.evaluate(self._sampler.sample(warnings=self._refresher.warnings))
            ).snapshot
            if self._settings.export_sysfs is not None:
                self._export = _export(self._settings, first)
            self._written_kernel_log = _written_kernel_log(self._settings, first)
            if self._written_kernel_log is not None and self._faults is not None:
                self._faults.effects.log_error = self._written_kernel_log.write
            with closed_umask():
                server.add_insecure_port(socket_path.grpc_target(files.inner_path))
                await server.start()
            gate.open(files.listen(files.path), files.inner_path)
            attach_socket.listen(files.listen(files.attach_path))
            await self._exports.start()
            if self._network is not None:
                await self._network.start(files)
                self._exports.add_network_connections(self._network.gate)
            self._kubelet.start()
            await announce_health(health)
            _log.info("serving %s on unix:%s", first.instance.instance_type, files.path)
            # What there is by now stays. To look through it for garbage takes 20 ms, in which nobody is answered.
            gc.freeze()
            turns.begin()
            if self._faults is not None and self._first_faults:
                self._faults.inject(self._first_faults)
            if not notify_ready(self._settings.ready_fd) and self._settings.exit_with_parent:
                ending.set()  # who started us was gone before we could ask the kernel to tell
            on_ready()
            if is_own_process:
                self._serve_supervisor()
            self._audit.record("daemon_begins", time.time(), {"pid": os.getpid(), "version": __version__})
            await self._tick_until(ending, peers)
        finally:
            _log.info("ending")
            await calls.end(_GRACE_SECONDS)
            gate.close()
            if self._network is not None:
                await self._network.close(_GRACE_SECONDS)
            attach_socket.close()
            await self._exports.close()
            await self._kubelet.close()
            if self._export is not None:
                self._export.close()
            if self._written_kernel_log is not None:
                self._written_kernel_log.close()
            await server.stop(_GRACE_SECONDS)
            await finish_other_tasks(_GRACE_SECONDS)
            if self._actions is not None:
                self._actions.close()
            self._audit.record("daemon_ends", time.time(), {"pid": os.getpid()})
            self._audit.close()
            self._ended.close()
            files.release()

    def _serve_supervisor(self) -> None:
        """Does what service managers ask for: signs of life, and reading the configuration again."""
        self._is_serving = True
        if self._is_reload_due:
            self._reload()
        loop = asyncio.get_running_loop()
        pause_seconds = watchdog_seconds()
        if pause_seconds is not None:

            def tell() -> None:
                notify_systemd("WATCHDOG=1")
                loop.call_later(pause_seconds, tell)

            tell()

    def _reload(self) -> None:
        self._is_reload_due = True
        if self._is_serving and (self._reloading is None or self._reloading.done()):
            self._reloading = asyncio.get_running_loop().create_task(self._reread_while_due())

    async def _reread_while_due(self) -> None:
        """Once more for all that asked meanwhile: what they mean may have been written after it was read."""
        while self._is_reload_due:
            self._is_reload_due = False
            await self._reread()

    async def _reread(self) -> None:
        """Takes over what has changed in the configuration and can change; all else stays until a restart."""
        notify_systemd(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            after = await reread(sys.argv[1:])
        except (UserError, OSError) as error:
            _log.error("the configuration stays as it was: %s", error)
        else:
            taken, left = changes(self._settings, after)
            self._take_over(after)
            _log.info("the configuration was read again; changed: %s", ", ".join(taken) or "nothing")
            if left:
                _log.warning("these settings change with a restart: %s", ", ".join(left))
            self._audit.record("configuration_read", time.time(), {"changed": taken, "left": left})
        finally:
            notify_systemd("READY=1")

    def _take_over(self, after: Settings) -> None:
        """Goes by the settings that can change from here on."""
        before = self._settings
        if after.log_level != before.log_level:
            set_log_level(after.log_level)
        if after.health_thresholds != before.health_thresholds:
            self._rules.set_thresholds(HealthThresholds(**after.health_thresholds))  # type: ignore[arg-type]
        if after.actions != before.actions:
            if self._actions is not None:
                self._actions.close()
            self._actions = (
                FindingActions(ActionSettings.from_table(after.actions), self._audit) if after.actions else None
            )
        if (after.tls_summary, after.tls_full) != (before.tls_summary, before.tls_full):
            from neurond.access import allowed_subjects

            self._exports.allow(allowed_subjects(after))
            if self._network is not None:
                self._network.gate.allow(allowed_subjects(after))
        self._settings = replace(before, **{name: getattr(after, name) for name in RELOADABLE})

    async def _tick_until(self, ending: asyncio.Event, peers: PeerLimiter) -> None:
        """Takes a snapshot at every interval; ticks that were missed (a stopped process) are not made up for."""
        loop = asyncio.get_running_loop()
        due = self._ticks.began_seconds
        memory_trimmer = MemoryTrimmer()
        while not ending.is_set():
            due = self._ticks.after(due, loop.time())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await ending.wait()
                    return
            await self._refresher.refresh(self._settings.interval_seconds)
            self._dirty = False
            self._publish(whole=True)
            memory_trimmer.update(peers.closed_total, loop.time())

    def _on_ownership_change(self) -> None:
        self._dirty = True
        if self._settling is None:
            loop = asyncio.get_running_loop()
            self._settling = loop.call_later(_SETTLE_SECONDS, self._settle)

    def _on_fault_change(self) -> None:
        """Publishes, and has faults go on when time alone changes them next."""
        self._on_ownership_change()
        if self._fault_due is not None:
            self._fault_due.cancel()
            self._fault_due = None
        due_seconds = self._faults.next_seconds if self._faults is not None else None
        if due_seconds is not None:
            self._fault_due = asyncio.get_running_loop().call_at(due_seconds, self._advance_faults)

    def _on_healed(self, faults: Sequence[InjectedFault], by_uid: int | None, by_pid: int | None) -> None:
        """Has it in the audit who took faults back."""
        moved_seconds = self._clock.moved_seconds()
        shown = (fault_by_wall_clock(fault, moved_seconds) for fault in faults)
        self._audit.record_healed(shown, by_uid, by_pid, self._clock.now() + moved_seconds)

    def _advance_faults(self) -> None:
        if self._faults is not None:
            self._faults.advance()
            self._on_fault_change()

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
            warnings = self._refresher.warnings + self._kubelet.warnings
            snapshot = self._sampler.sample(whole=whole, warnings=warnings)
            attributed = self._attributions.attribute(snapshot)
            if whole:
                logged = () if self._kernel_log is None else self._kernel_log.read()
                judged = self._rules.evaluate(attributed, self._sampler.ended, logged)
            else:
                judged = self._rules.carry_over(attributed)
            moved_seconds = self._clock.moved_seconds()
            self._note_ended(attributed, moved_seconds)
            self._audit.record_attaches(
                attributed, self._sampler.departures, attributed.taken_at_unix_seconds + moved_seconds
            )
            shown = self._with_ended(by_wall_clock(judged, moved_seconds))
            self._audit.record_faults(shown)
            entry = self._store.put(shown, remember=whole)
            if whole:
                self._finding_log.log_new(entry.snapshot)
                self._act(entry.snapshot)
                self._exports.observe(entry.snapshot)
                if self._network is not None:
                    self._network.gate.renew()
        except Exception as error:
            # A fault in one snapshot must not end the daemon; the readers keep the one before.
            if is_out_of_memory(error):
                log_out_of_memory("out of memory: a snapshot could not be taken; the one before stays")
            else:
                _log.exception("a snapshot could not be taken")
            return
        if self._export is not None:
            self._export.offer(snapshot)

    def _act(self, snapshot: Snapshot) -> None:
        """Has done what is to be done about findings that have begun or ended with this snapshot."""
        began, ended = self._finding_diff.update(snapshot.health)
        if began or ended:
            self._audit.record_findings(began, ended, snapshot.taken_at_unix_seconds)
            if self._actions is not None:
                self._actions.submit(began, ended, snapshot)

    def _note_ended(self, snapshot: Snapshot, moved_seconds: float) -> None:
        """Takes note of what has ended since the snapshot before, by the clock that the host shows now."""
        ended = self._accounts.observe(snapshot, self._sampler.departures)
        self._ended.add(ended_by_wall_clock(process, moved_seconds) for process in ended)

    def _with_ended(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with what has ended lately."""
        recent = self._ended.recent(snapshot.taken_at_unix_seconds)
        return replace(snapshot, ended=recent) if recent else snapshot


def _network_api(
    settings: Settings, monitor: MonitorService, raise_file_limit: int, audit: AuditLog
) -> NetworkApi | None:
    if settings.listen is None:
        return None
    from neurond.service.network_api import NetworkApi

    return NetworkApi(settings, monitor, raise_file_limit, audit.record)


def _export(settings: Settings, first: Snapshot) -> SysfsExporter:
    from neurond.exports.sysfs_export import SysfsExporter

    try:
        return SysfsExporter(settings.export_sysfs or "", first, settings.export_driver_version)
    except UserError as error:
        raise UserError(f"--export-sysfs: {error}", error.exit_code) from None


def _written_kernel_log(settings: Settings, first: Snapshot) -> KernelLogWriter | None:
    """Where injected faults make the kernel log their lines; None: nowhere."""
    path = settings.export_kernel_log
    if path is None and settings.export_sysfs is not None:
        from neurontools.driver.tree_export import KERNEL_LOG

        path = f"{settings.export_sysfs}/{KERNEL_LOG}"
    if path is None:
        return None
    serial_numbers = {device.index: device.serial_number for device in first.devices}
    return KernelLogWriter(path, first.instance.instance_id or "", serial_numbers)
