"""The judge: verdicts are made here, once a tick, from the daemon's whole past; everybody else carries them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from operator import attrgetter, is_

from neurond.verdicts import device_rules, driver_rules, process_rules
from neurond.verdicts.activity import activity
from neurond.verdicts.evidence import Evidence, evidence
from neurond.verdicts.failing_cores import FailingCores
from neurond.verdicts.injected import marked
from neurond.verdicts.jobs import by_job
from neurond.verdicts.kernel_errors import KernelErrors
from neurond.verdicts.latencies import Latencies
from neurond.verdicts.orphans import Orphans
from neurond.verdicts.slow_ranks import slow_ranks
from neurond.verdicts.thresholds import Thresholds
from neurontools.driver.kernel_log import KernelRecord
from neurontools.model import EccCounters, Finding, Health, Process, Snapshot, SourceKind

_ANCHORS = 6  # snapshots kept for what is judged by growth

_Rule = Callable[[Evidence], Iterator[Finding]]
_RULES: tuple[_Rule, ...] = (
    device_rules.missing,
    driver_rules.components,
    driver_rules.core_errors,
    driver_rules.resets,
    activity,
    process_rules.errors,
    process_rules.silence,
    slow_ranks,
)


class Judge:
    """Judges each snapshot. Feed it every one, in order; it remembers since when each finding has been there.

    Belongs to the event loop's thread.
    """

    def __init__(self, limits: Thresholds | None = None) -> None:
        self._limits = limits or Thresholds()
        self._anchors: deque[Snapshot] = deque(maxlen=_ANCHORS)
        self._rules: tuple[_Rule, ...] = (*_RULES, device_rules.Ecc(), device_rules.Memory(), Latencies())
        self._failing_cores = FailingCores()
        self._orphans = Orphans()
        self._kernel_errors = KernelErrors()
        self._known: dict[tuple[object, ...], Finding] = {}
        self._keys: dict[int, tuple[object, ...]] = {}  # by id() of those that are known
        self._health: Health | None = None

    def change(self, limits: Thresholds) -> None:
        """These limits hold from the next snapshot on."""
        self._limits = limits

    def judge(self, snapshot: Snapshot, ended: Iterable[Process] = (), logged: Iterable[KernelRecord] = ()) -> Snapshot:
        """The snapshot of a tick with its verdicts.

        `ended` are the processes that ended since the tick before, `logged` what the kernel has logged since then.
        """
        limits = self._limits
        found = evidence(snapshot, self._anchors, limits)
        self._health = self._same(
            device_indices=_judged(snapshot),
            unknown_device_indices=_unknown(snapshot),
            findings=self._lasting(
                marked(
                    chain(
                        by_job((finding for rule in self._rules for finding in rule(found)), snapshot),
                        self._failing_cores.look(snapshot, ended),
                        self._orphans.look(snapshot, limits.idle_seconds),
                        self._kernel_errors.look(snapshot, logged, limits.window_seconds),
                    ),
                    snapshot,
                )
            ),
        )
        spacing_seconds = limits.window_seconds / (_ANCHORS - 1)
        if not self._anchors or snapshot.taken_at_seconds - self._anchors[-1].taken_at_seconds >= spacing_seconds:
            self._anchors.append(snapshot)
        return replace(snapshot, health=self._health)

    def carry(self, snapshot: Snapshot) -> Snapshot:
        """A snapshot between two ticks with the verdicts of the last one, without those on ended processes."""
        if self._health is None:
            return self.judge(snapshot)
        there = {process.pid for process in snapshot.processes}
        kept = tuple(finding for finding in self._health.findings if finding.pid is None or finding.pid in there)
        if len(kept) == len(self._health.findings):
            return replace(snapshot, health=self._health)
        return replace(snapshot, health=replace(self._health, findings=kept))

    def _same(
        self,
        device_indices: tuple[int, ...],
        unknown_device_indices: tuple[int, ...],
        findings: tuple[Finding, ...],
    ) -> Health:
        """The verdicts; those of the tick before where nothing has changed, so that nobody has to write them anew."""
        before = self._health
        if (
            before is not None
            and len(before.findings) == len(findings)
            and all(map(is_, before.findings, findings))
            and before.device_indices == device_indices
            and before.unknown_device_indices == unknown_device_indices
        ):
            return before
        return Health(device_indices, unknown_device_indices, findings)

    def _lasting(self, found: Iterable[Finding]) -> tuple[Finding, ...]:
        """The findings, gravest first, each with the time at which it began."""
        known: dict[tuple[object, ...], Finding] = {}
        for finding in found:
            key = self._keys.get(id(finding)) or finding.identity
            before = self._known.get(key)
            if before is finding or before is None or finding.began_at_unix_seconds < before.began_at_unix_seconds:
                known[key] = finding
            elif _told(before) == _told(finding):
                known[key] = before
            else:
                known[key] = replace(finding, began_at_unix_seconds=before.began_at_unix_seconds)
        self._known = known
        self._keys = {id(finding): key for key, finding in known.items()}
        return tuple(sorted(known.values(), key=lambda finding: -finding.severity))


_told = attrgetter(
    *("severity", "reason", "action", "device_indices", "pid", "pids", "neuroncore_index", "synthetic", "injected")
)


def _judged(snapshot: Snapshot) -> tuple[int, ...]:
    """The devices that are there, and those that should be."""
    there = {device.index for device in snapshot.devices}
    return tuple(sorted(there.union(snapshot.instance.expected_device_indices)))


def _unknown(snapshot: Snapshot) -> tuple[int, ...]:
    """The devices of whose health the driver, being an old one, tells nothing."""
    if snapshot.source is SourceKind.SIMULATED:
        return ()
    told = {core.device_index for core in snapshot.cores if core.reset_failures_total is not None}
    return tuple(
        device.index
        for device in snapshot.devices
        if device.index not in told and device.reported_health is None and not _counts_errors(device.ecc)
    )


def _counts_errors(ecc: EccCounters) -> bool:
    return ecc.mem_uncorrected_total is not None or ecc.sram_uncorrected_total is not None
