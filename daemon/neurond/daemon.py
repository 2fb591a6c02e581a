"""The daemon: connects the host, snapshots, sockets and services, and runs them until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from neurond.actions import ActionSettings, FindingActions
from neurond.attribution import KubeletWatcher, ProcessAttributor
from neurond.exports.metrics import Exporters
from neurond.faults import LoseHost, MetBy, UnusableState
from neurond.host import WatchedHost, open_host, open_kernel_log
from neurond.journal.accounts import ProcessAccounts
from neurond.journal.state_files import (
    AuditLog,
    EndedFile,
    EndedLog,
    FaultsFile,
    open_audit_file,
    open_state_file,
)
from neurond.peers.connection_proxy import ConnectionProxy
from neurond.peers.limits import PeerLimiter, limits_for
from neurond.reloading import ConfigurationReloader
from neurond.service.attach_socket import AttachSocket
from neurond.service.diagnosis_service import DiagnosisService
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
from neurond.snapshots.sampler import Sampler, longest_silence_seconds
from neurond.snapshots.store import SnapshotStore, SourceRefresher, TickSchedule
from neurond.system.clocks import SteadyClock, by_wall_clock, fault_by_wall_clock
from neurond.system.kernel_log import KernelLogWriter
from neurond.system.lifecycle import (
    finish_other_tasks,
    has_terminal,
    notify_ready,
    notify_systemd,
    raise_file_limit,
    termination_event,
    turns,
    watchdog_seconds,
)
from neurond.system.processes import is_alive
from neurond.verdicts.evidence import HealthThresholds
from neurond.verdicts.rule_evaluator import FindingDiff, FindingLogger, RuleEvaluator, evaluated_devices
from neurontools.driver.environment import Roots
from neurontools.driver.kernel_log import KERNEL_FACILITY, KernelRecord, parse_hardware_error
from neurontools.faults.requests import FaultRequest
from neurontools.model import Health, Snapshot
from neurontools.rpc import socket_path
from neurontools.util.errors import UserError
from neurontools.util.rate_limited_log import RateLimitedLogger
from neurontools.util.terminal import excerpt
from neurontools.util.version import __version__

if TYPE_CHECKING:
    from neurond.exports.sysfs_export import SysfsExporter
    from neurond.service.network_api import NetworkApi
    from neurontools.model import InjectedFault

# Delay between a lease change and its snapshot, so that one snapshot shows all changes of a burst.
_SETTLE_SECONDS = 0.02
_GRACE_SECONDS = 0.5
_FIRST_REFRESH_SECONDS = 5.0
_MOST_ERROR_CHARACTERS = 200

_log = logging.getLogger(__name__)
_log_ignored_record = RateLimitedLogger(_log, logging.WARNING)


class Daemon:
    """The daemon of one host.

    SIGTERM and SIGINT end the daemon. SIGHUP ends a daemon that has a terminal, and makes any other daemon reload the
    configuration. `lose_host` and `faults` are for simulated hosts; the daemon injects `faults` when it starts.
    """

    def __init__(
        self, settings: Settings, lose_host: LoseHost | None = None, faults: Sequence[FaultRequest] = ()
    ) -> None:
        self._settings = settings
        self._dirty = False
        self._pending_publish: asyncio.TimerHandle | None = None
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
        group = None if settings.group is None else group_id(settings.group)
        self._audit = AuditLog(open_state_file(settings.state_directory, group, "the audit", open_audit_file))
        self._faults_file: FaultsFile | None = None
        if host.faults is not None:
            self._faults_file = open_state_file(settings.state_directory, group, "the injected faults", FaultsFile)
        self._publisher = SnapshotPublisher(settings, host, self._clock, self._audit, group)
        self._reloader = ConfigurationReloader(settings, self._apply_settings, self._audit)
        self._written_kernel_log: KernelLogWriter | None = None
        self._network: NetworkApi | None = None
        self._monitor = MonitorService(self._publisher.store, self._publisher.ended, self._publish_pending)
        self._runtime = RuntimeService(
            self._allocator, host.source.instance.instance_type, self._ticks, self._clock, host.faults
        )

    async def run(self, ending: asyncio.Event | None = None, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serves until `ending` is set; if `ending` is None, until a signal arrives. Calls `on_ready` once it serves.

        Raises UserError if it can't claim the sockets.
        """
        is_own_process = ending is None
        # This checks for a terminal now, because after a hangup the terminal can no longer be found.
        reloads = is_own_process and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and not has_terminal()
        # The signal handlers come before the sockets, so that a signal never leaves socket files behind.
        ending = ending or termination_event(by_hang_up=not reloads)
        loop = asyncio.get_running_loop()
        if reloads:
            loop.add_signal_handler(signal.SIGHUP, self._reloader.request)
        loop.set_exception_handler(handle_loop_exception)
        publisher = self._publisher
        files = SocketFiles(self._settings.socket, self._settings.group)
        files.claim()
        # If the API over TLS is enabled, it gets half of the file descriptors.
        files_each = raise_file_limit() // (1 if self._settings.listen is None else 2)
        peers = PeerLimiter(limits_for(files_each), time.monotonic)
        proxy = ConnectionProxy(peers)
        calls = OpenCalls(peers, proxy.server.find_peer)
        attach_socket = AttachSocket(
            self._allocator,
            peers,
            self._clock,
            self._runtime.final_report,
            publisher.accounts.end,
            self._faults,
            self._audit,
        )
        if self._settings.listen is not None:
            from neurond.service.network_api import NetworkApi

            self._network = NetworkApi(self._settings, self._monitor, files_each, self._audit.record)
        server, health = build_server(
            self._monitor,
            self._runtime,
            FaultService(self._faults),
            DiagnosisService(publisher.store, publisher.rules.diagnosis),
            calls,
        )
        try:
            self._restore_faults()
            first = await publisher.publish_first()
            self._start_simulation_outputs(first)
            with closed_umask():
                server.add_insecure_port(socket_path.grpc_target(files.inner_path))
                await server.start()
            proxy.open(files.listen(files.path), files.inner_path)
            attach_socket.listen(files.listen(files.attach_path))
            await publisher.exporters.start()
            if self._network is not None:
                await self._network.start(files)
                publisher.exporters.add_network_connections(self._network.proxy)
                publisher.on_tick = self._network.proxy.renew
            publisher.kubelet.start()
            await announce_health(health)
            _log.info("serving %s on unix:%s", first.instance.instance_type, files.path)
            # Exempts all objects made so far from garbage collection, because they live as long as the daemon.
            # If garbage collections included these objects, each would block the daemon for 20 ms.
            gc.freeze()
            turns.begin()
            if self._faults is not None and self._first_faults:
                self._faults.inject(self._first_faults)
            if not notify_ready(self._settings.ready_fd) and self._settings.exit_with_parent:
                ending.set()  # the parent process ended before exit_with_parent took effect
            on_ready()
            if is_own_process:
                self._reloader.start()
                _start_watchdog(loop)
            self._audit.record("daemon_begins", time.time(), {"pid": os.getpid(), "version": __version__})
            await self._tick_until(ending, peers)
        finally:
            _log.info("ending")
            self._publish_pending()  # the processes that have left since the last snapshot
            publisher.ended.add(publisher.accounts.take_rest())
            await calls.end(_GRACE_SECONDS)
            proxy.close()
            if self._network is not None:
                await self._network.close(_GRACE_SECONDS)
            attach_socket.close()
            await publisher.close_inputs()
            if self._written_kernel_log is not None:
                self._written_kernel_log.close()
            await server.stop(_GRACE_SECONDS)
            await finish_other_tasks(_GRACE_SECONDS)
            publisher.close_outputs()
            if self._faults_file is not None:
                self._faults_file.close()
            self._audit.record("daemon_ends", time.time(), {"pid": os.getpid()})
            self._audit.close()
            files.release()

    def _start_simulation_outputs(self, first: Snapshot) -> None:
        if self._settings.export_sysfs is not None:
            self._publisher.sysfs_export = _sysfs_exporter(self._settings, first)
        self._written_kernel_log = _kernel_log_writer(self._settings, first)
        if self._written_kernel_log is not None and self._faults is not None:
            self._faults.effects.log_error = self._written_kernel_log.write

    def _apply_settings(self, before: Settings, after: Settings) -> None:
        if after.log_level != before.log_level:
            logging.getLogger().setLevel(after.log_level.upper())
        self._publisher.apply_settings(before, after)
        if (after.tls_summary, after.tls_full) != (before.tls_summary, before.tls_full):
            from neurond.access import allowed_subjects

            self._publisher.exporters.allow(allowed_subjects(after))
            if self._network is not None:
                self._network.proxy.allow(allowed_subjects(after))

    async def _tick_until(self, ending: asyncio.Event, peers: PeerLimiter) -> None:
        """Publishes a snapshot per interval until `ending` is set. Skips missed ticks."""
        loop = asyncio.get_running_loop()
        due = self._ticks.began_seconds
        memory_trimmer = MemoryTrimmer()
        while not ending.is_set():
            due = self._ticks.after(due, loop.time())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await ending.wait()
                    return
            await self._publisher.refresh(self._ticks.interval_seconds)
            self._dirty = False
            self._publisher.publish(whole=True)
            memory_trimmer.update(peers.closed_total, loop.time())

    def _on_ownership_change(self) -> None:
        self._dirty = True
        if self._pending_publish is None:
            loop = asyncio.get_running_loop()
            self._pending_publish = loop.call_later(_SETTLE_SECONDS, self._publish_pending)

    def _publish_pending(self) -> None:
        """Publishes lease changes that no snapshot contains yet."""
        if self._pending_publish is not None:
            self._pending_publish.cancel()
            self._pending_publish = None
        if self._dirty:
            self._dirty = False
            self._publisher.publish(whole=False)

    def _on_fault_change(self) -> None:
        """Publishes changed faults, and sets a timer for the next end of a fault's delay or duration."""
        self._on_ownership_change()
        if self._fault_due is not None:
            self._fault_due.cancel()
            self._fault_due = None
        due_seconds = self._faults.next_seconds if self._faults is not None else None
        if due_seconds is not None:
            self._fault_due = asyncio.get_running_loop().call_at(due_seconds, self._advance_faults)

    def _on_healed(
        self,
        faults: Sequence[InjectedFault],
        by_uid: int | None,
        by_pid: int | None,
        met_by: MetBy,
    ) -> None:
        self._publisher.rules.mark_healed(met_by, time.monotonic())
        moved_seconds = self._clock.moved_seconds()
        shown = (fault_by_wall_clock(fault, moved_seconds) for fault in faults)
        self._audit.record_healed(shown, by_uid, by_pid, self._clock.now() + moved_seconds)

    def _restore_faults(self) -> None:
        """Restores the faults of the last daemon, and saves each change from now on."""
        if self._faults is None or self._faults_file is None:
            return
        if self._faults_file.document is not None:
            try:
                self._faults.restore(self._faults_file.document)
            except UnusableState as error:
                _log.warning(
                    "%s: the faults in faults.json are not restored: %s", self._settings.state_directory, error
                )
        self._faults.effects.save = self._faults_file.write

    def _advance_faults(self) -> None:
        if self._faults is not None:
            self._faults.advance()
            self._on_fault_change()


def _start_watchdog(loop: asyncio.AbstractEventLoop) -> None:
    pause_seconds = watchdog_seconds()
    if pause_seconds is not None:

        def notify_watchdog() -> None:
            notify_systemd("WATCHDOG=1")
            loop.call_later(pause_seconds, notify_watchdog)

        notify_watchdog()


def _sysfs_exporter(settings: Settings, first: Snapshot) -> SysfsExporter:
    from neurond.exports.sysfs_export import SysfsExporter

    try:
        return SysfsExporter(settings.export_sysfs or "", first, settings.export_driver_version)
    except UserError as error:
        raise UserError(f"--export-sysfs: {error}", error.exit_code) from None


def _kernel_log_writer(settings: Settings, first: Snapshot) -> KernelLogWriter | None:
    """Returns the writer for the errors of injected faults; None if the settings name no file."""
    path = settings.export_kernel_log
    if path is None and settings.export_sysfs is not None:
        from neurontools.driver.tree_export import KERNEL_LOG

        path = f"{settings.export_sysfs}/{KERNEL_LOG}"
    if path is None:
        return None
    serial_numbers = {device.index: device.serial_number for device in first.devices}
    return KernelLogWriter(path, first.instance.instance_id or "", serial_numbers)


class SnapshotPublisher:
    """Publishes a snapshot per tick, and further ones when leases change. Belongs to the event loop's thread.

    `sysfs_export` gets every snapshot; `on_tick` is called after each tick's snapshot.
    """

    def __init__(
        self,
        settings: Settings,
        host: WatchedHost,
        clock: SteadyClock,
        audit: AuditLog,
        group: int | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        # The processes of a simulated host are real processes of this host, so they are read from /proc.
        proc_root = "/proc" if settings.simulate else settings.proc_root
        roots = Roots(settings.sysfs_root, settings.proc_root, settings.dev_root)
        self._interval_seconds = settings.interval_seconds
        self._clock = clock
        self._audit = audit
        self._sampler = Sampler(
            host.source,
            host.allocator,
            host.load,
            settings.interval_seconds,
            roots,
            clock,
            settings.device_max_watts,
        )
        self._monotonic = monotonic
        self._refresher = SourceRefresher(host.source, monotonic)
        self._attributor = ProcessAttributor(proc_root)
        self.rules = RuleEvaluator(HealthThresholds(**settings.health_thresholds))  # type: ignore[arg-type]
        self._kernel_log = open_kernel_log(settings)
        self._counts_user_records = settings.kmsg_user_records
        self._finding_log = FindingLogger()
        self._finding_diff = FindingDiff()
        self.kubelet = KubeletWatcher(self._attributor.set_allocations, settings.pod_resources_socket)
        self._actions = _finding_actions(settings, audit)
        self.accounts = ProcessAccounts(partial(is_alive, proc_root))
        self.ended = EndedLog(time.time(), open_state_file(settings.state_directory, group, "what ended", EndedFile))
        self.store = SnapshotStore(settings.history_seconds, settings.history_bytes)
        self.exporters = Exporters(settings, self.store)
        self.sysfs_export: SysfsExporter | None = None
        self.on_tick: Callable[[], None] = lambda: None
        self._last: Snapshot | None = None  # the last snapshot that could be taken
        self._failure = ""  # why the latest snapshot could not be taken; "" if it could
        self._known_at_seconds: float | None = None  # when the state of the devices was read that the rules judged last

    async def publish_first(self) -> Snapshot:
        """Publishes a snapshot without rates. If none can be taken, publishes one without devices."""
        await self._refresher.refresh(_FIRST_REFRESH_SECONDS)
        try:
            known_at_seconds = self._refresher.answered_at_seconds
            first = self._evaluate(self._sampler.sample(warnings=self._refresher.warnings))
            self._last = self.store.put(self._with_known_health(first, known_at_seconds)).snapshot
            self._known_at_seconds = known_at_seconds
        except Exception as error:
            # Clients have to learn why nothing is known, so the daemon starts anyway.
            self._log_failure(error)
            self._repeat_last()
        return self.store.latest.snapshot

    async def close_inputs(self) -> None:
        await self.exporters.close()
        await self.kubelet.close()
        if self.sysfs_export is not None:
            self.sysfs_export.close()

    def close_outputs(self) -> None:
        if self._actions is not None:
            self._actions.close()
        self.ended.close()

    def apply_settings(self, before: Settings, after: Settings) -> None:
        if after.health_thresholds != before.health_thresholds:
            self.rules.limits = HealthThresholds(**after.health_thresholds)  # type: ignore[arg-type]
        if after.actions != before.actions:
            if self._actions is not None:
                self._actions.close()
            self._actions = _finding_actions(after, self._audit)

    async def refresh(self, patience_seconds: float) -> None:
        """Reads the devices. Waits up to `patience_seconds` for their answer."""
        await self._refresher.refresh(patience_seconds)

    def publish(self, *, whole: bool) -> None:
        """Takes and publishes a snapshot. `whole` marks the snapshot of a tick; only these enter the history."""
        try:
            snapshot = self._publish(whole=whole)
        except Exception as error:
            # An error in one snapshot must not end the daemon.
            is_new = self._log_failure(error)
            try:
                self._repeat_last()
            except Exception:
                if is_new and not is_out_of_memory(error):
                    _log.exception("the last snapshot could not be published again")
            return
        if whole:
            self._failure = ""
        if self.sysfs_export is not None:
            self.sysfs_export.submit(snapshot)

    def _publish(self, *, whole: bool) -> Snapshot:
        known_at_seconds = self._refresher.answered_at_seconds  # read first, as the source may answer meanwhile
        warnings = self._refresher.warnings + self.kubelet.warnings
        snapshot = self._sampler.sample(whole=whole, warnings=warnings)
        attributed = self._attributor.attribute(snapshot)
        if whole:
            evaluated = self._evaluate(attributed, self._read_kernel_log(attributed.taken_at_unix_seconds))
        else:
            evaluated = self.rules.carry_over(attributed)
            known_at_seconds = self._known_at_seconds
        evaluated = self._with_known_health(evaluated, known_at_seconds)
        moved_seconds = self._clock.moved_seconds()
        departures = self._sampler.departures
        self.ended.add(self.accounts.observe(attributed, departures, moved_seconds))
        self._audit.record_attaches(attributed, departures, attributed.taken_at_unix_seconds + moved_seconds)
        published = by_wall_clock(evaluated, moved_seconds)
        if recent := self.ended.recent(published.taken_at_unix_seconds):
            published = replace(published, ended=recent)
        self._audit.record_faults(published)
        stored = self.store.put(published, remember=whole)
        self._last, self._known_at_seconds = stored.snapshot, known_at_seconds
        if whole:
            self._finding_log.log_new(stored.snapshot)
            self._act_on_findings(stored.snapshot)
            self.exporters.observe(stored.snapshot)
            self.on_tick()
        return snapshot

    def _read_kernel_log(self, at_unix_seconds: float) -> list[KernelRecord]:
        """Returns the new records that count: those of the kernel, and those of programs if a setting says so."""
        records = [] if self._kernel_log is None else self._kernel_log.read()
        counted = [each for each in records if self._counts_user_records or each.facility == KERNEL_FACILITY]
        if records:
            self._audit.record_kernel_records(records, counted, at_unix_seconds)
        if len(counted) < len(records) and any(parse_hardware_error(each.text) for each in records):
            _log_ignored_record(
                "the kernel log has a hardware error that a program wrote; it does not count (daemon.kmsg_user_records)"
            )
        return counted

    def _evaluate(self, snapshot: Snapshot, logged: Sequence[KernelRecord] = ()) -> Snapshot:
        return self.rules.evaluate(snapshot, self._sampler.ended, logged, self._sampler.unknown_health)

    def _with_known_health(self, snapshot: Snapshot, known_at_seconds: float | None) -> Snapshot:
        """Returns the snapshot. If the devices were read too long ago, their health becomes unknown.

        Findings stay: a fault does not end because the driver no longer answers.
        """
        limit_seconds = longest_silence_seconds(self._interval_seconds)
        if known_at_seconds is None:
            reason = "its devices were not read yet"
        elif self._monotonic() - known_at_seconds > limit_seconds:
            reason = f"the state of its devices is more than {limit_seconds:g} s old"
        else:
            return snapshot
        cause = self._failure or self._refresher.cause
        indices = evaluated_devices(snapshot) or tuple(range(snapshot.instance.device_count))
        health = snapshot.health or Health(indices)
        unknown = dict.fromkeys(health.device_indices, f"{reason}{cause and f', because {cause}'}")
        return replace(snapshot, health=health.with_unknown(unknown))

    def _log_failure(self, error: Exception) -> bool:
        """Logs why a snapshot could not be taken, unless the last one failed alike. Returns whether it logged."""
        before, name = self._failure, type(error).__name__
        self._failure = f"a snapshot could not be taken: {name}: {excerpt(str(error), _MOST_ERROR_CHARACTERS)}"
        if self._failure == before:
            return False
        if is_out_of_memory(error):
            log_out_of_memory("out of memory: a snapshot could not be taken; the one before stays")
        else:
            _log.error("%s", self._failure, exc_info=error)
        return True

    def _repeat_last(self) -> None:
        """Publishes the last snapshot again, or one without devices, with a warning about the failure."""
        repeated = self._sampler.repeat(self._last or self._sampler.empty_snapshot(), self._failure)
        stored = self.store.put(self._with_known_health(repeated, self._known_at_seconds), remember=False)
        self.exporters.observe(stored.snapshot)

    def _act_on_findings(self, snapshot: Snapshot) -> None:
        began, ended = self._finding_diff.update(snapshot.health)
        if began or ended:
            self._audit.record_findings(began, ended, snapshot.taken_at_unix_seconds)
            if self._actions is not None:
                self._actions.submit(began, ended, snapshot)


def _finding_actions(settings: Settings, audit: AuditLog) -> FindingActions | None:
    return FindingActions(ActionSettings.from_table(settings.actions), audit) if settings.actions else None
