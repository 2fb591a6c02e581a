"""Takes snapshots, evaluates their health and publishes them to the store, logs, actions and exports."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from neurond.actions import ActionSettings, FindingActions
from neurond.attribution import KubeletWatcher, ProcessAttributor
from neurond.exports.metrics import Exporters
from neurond.host import WatchedHost, open_kernel_log
from neurond.journal.accounts import ProcessAccounts
from neurond.journal.state_files import AuditLog, EndedFile, EndedLog, open_state_file
from neurond.service.server import is_out_of_memory, log_out_of_memory
from neurond.settings import Settings
from neurond.snapshots.sampler import Sampler
from neurond.snapshots.store import SnapshotStore, SourceRefresher
from neurond.system.clocks import SteadyClock, by_wall_clock, ended_by_wall_clock
from neurond.system.processes import is_alive
from neurond.verdicts.evidence import HealthThresholds
from neurond.verdicts.rule_evaluator import FindingDiff, FindingLogger, RuleEvaluator
from neurontools.driver.environment import Roots
from neurontools.model import Snapshot

if TYPE_CHECKING:
    from neurond.exports.sysfs_export import SysfsExporter

_FIRST_REFRESH_SECONDS = 5.0

_log = logging.getLogger(__name__)


class SnapshotPublisher:
    """Publishes a snapshot per tick, and further ones when leases change. Belongs to the event loop's thread.

    `sysfs_export` gets every snapshot; `on_tick` is called after each tick's snapshot.
    """

    def __init__(
        self, settings: Settings, host: WatchedHost, clock: SteadyClock, audit: AuditLog, group: int | None
    ) -> None:
        # The processes of a simulated host are those of the real host.
        proc_root = "/proc" if settings.simulate else settings.proc_root
        roots = Roots(settings.sysfs_root, settings.proc_root, settings.dev_root)
        self._interval_seconds = settings.interval_seconds
        self._clock = clock
        self._audit = audit
        self._sampler = Sampler(host.source, host.allocator, host.load, settings.interval_seconds, roots, clock)
        self._refresher = SourceRefresher(host.source)
        self._attributor = ProcessAttributor(proc_root)
        self._rules = RuleEvaluator(HealthThresholds(**settings.health_thresholds))  # type: ignore[arg-type]
        self._kernel_log = open_kernel_log(settings)
        self._finding_log = FindingLogger()
        self._finding_diff = FindingDiff()
        self._kubelet = KubeletWatcher(self._attributor.set_allocations, settings.pod_resources_socket)
        self._actions = _finding_actions(settings, audit)
        self.accounts = ProcessAccounts(partial(is_alive, proc_root))
        self.ended = EndedLog(time.time(), open_state_file(settings.state_directory, group, "what ended", EndedFile))
        self.store = SnapshotStore(settings.history_seconds, settings.history_bytes)
        self.exporters = Exporters(settings, self.store)
        self.sysfs_export: SysfsExporter | None = None
        self.on_tick: Callable[[], None] = lambda: None

    async def publish_first(self) -> Snapshot:
        """Reads the devices and publishes the first snapshot."""
        await self._refresher.refresh(_FIRST_REFRESH_SECONDS)
        first = self._sampler.sample(warnings=self._refresher.warnings)
        return self.store.put(self._rules.evaluate(first)).snapshot

    def start_kubelet(self) -> None:
        """Starts the periodic requests to the kubelet."""
        self._kubelet.start()

    async def close_inputs(self) -> None:
        """Stops the exporters and the requests to the kubelet."""
        await self.exporters.close()
        await self._kubelet.close()
        if self.sysfs_export is not None:
            self.sysfs_export.close()

    def close_outputs(self) -> None:
        """Stops the actions and closes the log of ended processes."""
        if self._actions is not None:
            self._actions.close()
        self.ended.close()

    def apply_settings(self, before: Settings, after: Settings) -> None:
        """Applies changed health thresholds and actions."""
        if after.health_thresholds != before.health_thresholds:
            self._rules.set_thresholds(HealthThresholds(**after.health_thresholds))  # type: ignore[arg-type]
        if after.actions != before.actions:
            if self._actions is not None:
                self._actions.close()
            self._actions = _finding_actions(after, self._audit)

    async def refresh(self) -> None:
        """Reads the devices. Waits for at most one interval."""
        await self._refresher.refresh(self._interval_seconds)

    def publish(self, *, whole: bool) -> None:
        """Takes and publishes a snapshot. `whole`: it is the snapshot of a tick, which the history keeps."""
        try:
            snapshot = self._publish(whole=whole)
        except Exception as error:
            # An error in one snapshot must not end the daemon. Clients keep getting the previous snapshot.
            if is_out_of_memory(error):
                log_out_of_memory("out of memory: a snapshot could not be taken; the one before stays")
            else:
                _log.exception("a snapshot could not be taken")
            return
        if self.sysfs_export is not None:
            self.sysfs_export.submit(snapshot)

    def _publish(self, *, whole: bool) -> Snapshot:
        warnings = self._refresher.warnings + self._kubelet.warnings
        snapshot = self._sampler.sample(whole=whole, warnings=warnings)
        attributed = self._attributor.attribute(snapshot)
        if whole:
            logged = () if self._kernel_log is None else self._kernel_log.read()
            evaluated = self._rules.evaluate(attributed, self._sampler.ended, logged)
        else:
            evaluated = self._rules.carry_over(attributed)
        moved_seconds = self._clock.moved_seconds()
        departures = self._sampler.departures
        ended = self.accounts.observe(attributed, departures)
        self.ended.add(ended_by_wall_clock(process, moved_seconds) for process in ended)
        self._audit.record_attaches(attributed, departures, attributed.taken_at_unix_seconds + moved_seconds)
        published = self._with_ended(by_wall_clock(evaluated, moved_seconds))
        self._audit.record_faults(published)
        stored = self.store.put(published, remember=whole)
        if whole:
            self._finding_log.log_new(stored.snapshot)
            self._act_on_findings(stored.snapshot)
            self.exporters.observe(stored.snapshot)
            self.on_tick()
        return snapshot

    def _act_on_findings(self, snapshot: Snapshot) -> None:
        began, ended = self._finding_diff.update(snapshot.health)
        if began or ended:
            self._audit.record_findings(began, ended, snapshot.taken_at_unix_seconds)
            if self._actions is not None:
                self._actions.submit(began, ended, snapshot)

    def _with_ended(self, snapshot: Snapshot) -> Snapshot:
        recent = self.ended.recent(snapshot.taken_at_unix_seconds)
        return replace(snapshot, ended=recent) if recent else snapshot


def _finding_actions(settings: Settings, audit: AuditLog) -> FindingActions | None:
    return FindingActions(ActionSettings.from_table(settings.actions), audit) if settings.actions else None
