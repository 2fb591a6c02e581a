"""Takes snapshots: reads the source, the ledger and the operating system, and derives the rates."""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import replace

from neurond.journal.accounts import Departure
from neurond.journal.use import reported_use
from neurond.load import SyntheticLoad
from neurond.ownership.holding import Holding
from neurond.ownership.ledger import Ledger
from neurond.snapshots.attached_cores import with_attached
from neurond.snapshots.process_record import process_record
from neurond.snapshots.rates import Rates
from neurond.sources.source import Source
from neurond.system.host_reader import HostReader
from neurond.system.jobs import Jobs
from neurond.system.processes import ProcessTable, user_name
from neurond.system.steady_clock import SteadyClock
from neurontools.driver.environment import Roots
from neurontools.driver.process_context import OwnUsage
from neurontools.model import Host, Process, Snapshot, SourceKind
from neurontools.util.version import __version__

_MOST_ENDED = 256


class Sampler:
    """Takes one snapshot after the other. Belongs to the event loop's thread.

    All moments in it are by the clock that nobody sets. `departures` are those who have left between the last two
    snapshots, `ended` the processes that have reported and ended between the last two whole ones, as they told last.
    """

    def __init__(
        self,
        source: Source,
        ledger: Ledger,
        load: SyntheticLoad | None,
        interval_seconds: float,
        roots: Roots | None = None,
        clock: SteadyClock | None = None,
    ) -> None:
        roots = roots or Roots()
        self._source = source
        self._ledger = ledger
        self._load = load
        self._interval_seconds = interval_seconds
        self._host_reader = HostReader(roots.sys, roots.proc)
        self._clock = clock or SteadyClock()
        self._table = ProcessTable(self._clock)
        self._jobs = Jobs(roots.proc)
        self._rates = Rates()
        self._sequence = 0
        self._host = Host()
        self._host_warnings: tuple[str, ...] = ()
        self._own_cost = OwnUsage()
        self._ended: deque[Process] = deque(maxlen=_MOST_ENDED)
        self.departures: tuple[Departure, ...] = ()
        self.ended: tuple[Process, ...] = ()

    def sample(self, *, whole: bool = True, warnings: tuple[str, ...] = ()) -> Snapshot:
        """A snapshot of now, with `warnings` among its own.

        Not `whole`: only ownership and reports are read; vCPUs, memory and process times stay those of before, so that
        a snapshot taken between two ticks doesn't spoil their rates.
        """
        departed = self._ledger.take_departed()
        self.departures = tuple(map(self._departure, departed))
        self._ended += [
            departure.process
            for holding, departure in zip(departed, self.departures, strict=True)
            if holding.report is not None
        ]
        if whole:
            self.ended = tuple(self._ended)
            self._ended.clear()
            if self._load is not None:
                self._load.advance(time.monotonic())
            self._host, self._host_warnings = self._host_reader.read()
            self._own_cost.measure()
            self._table.refresh(holding.pid for holding in self._ledger.holdings if not holding.synthetic)
        reading = self._source.read()
        cores, found = reading.cores, reading.processes
        if self._source.kind is not SourceKind.SIMULATED:  # that one goes by the ledger itself
            cores, found = with_attached(cores, found, self._ledger.holdings)
        self._sequence += 1
        now_seconds = time.monotonic()
        snapshot = Snapshot(
            sequence=self._sequence,
            taken_at_unix_seconds=self._clock.at(now_seconds),
            taken_at_seconds=now_seconds,
            interval_seconds=self._interval_seconds,
            source=self._source.kind,
            instance=self._source.instance,
            devices=reading.devices,
            cores=cores,
            processes=self._processes(now_seconds, found),
            host=self._host,
            warnings=warnings + reading.warnings + self._host_warnings,
            synthetic_load=self._load.scenario if self._load else None,
            daemon_version=__version__,
            daemon_pid=os.getpid(),
            cores_counted_since_seconds=(
                self._ledger.began_seconds if self._source.kind is SourceKind.SIMULATED else None
            ),
            daemon_cpu_seconds_total=self._own_cost.cpu_seconds_total,
            daemon_vcpu_ratio=self._own_cost.vcpu_ratio,
            daemon_resident_bytes=self._own_cost.resident_bytes,
            injected_faults=reading.injected_faults,
        )
        return self._rates.derive(snapshot, processes_read=whole)

    def _processes(self, now_seconds: float, found: tuple[Process, ...]) -> tuple[Process, ...]:
        """Everyone attached and everyone the source found, by PID. What a process reports itself beats what was found.

        A process that connected twice is one: its connection with cores counts.
        """
        records: dict[int, Process] = {}
        for holding in self._ledger.holdings:
            known = records.get(holding.pid)
            if known is not None and (known.core_indices or not holding.count):
                continue
            if self._load and holding.synthetic:
                facts = self._load.facts(holding)
            else:
                facts = self._table.facts(holding.pid, holding.attached_at_unix_seconds)
                if holding.count:
                    facts = facts.within(self._jobs.of(holding.pid, holding.attached_at_unix_seconds))
            records[holding.pid] = process_record(
                holding, facts, self._ledger.shape, now_seconds, self._interval_seconds
            )
        for process in found:
            record = records.get(process.pid)
            if record is not None and record.core_indices:
                records[process.pid] = _merged(record, process)
            elif process.core_indices:
                job = self._jobs.of(process.pid, process.started_at_unix_seconds)
                records[process.pid] = process if job is None else replace(process, job=job)
            else:
                records[process.pid] = process
        self._jobs.keep(records)
        return tuple(records[pid] for pid in sorted(records))

    def _departure(self, holding: Holding) -> Departure:
        """The last record of who has left, by what was last known of it: it may be gone, and another have its PID."""
        facts = self._load.facts(holding) if self._load and holding.synthetic else self._table.last_facts(holding.pid)
        record = process_record(holding, facts, self._ledger.shape, time.monotonic(), self._interval_seconds)
        if record.user is None and holding.uid is not None:
            record = replace(record, user=user_name(holding.uid))
        return Departure(holding.token, record, reported_use(holding))


def _merged(attached: Process, found: Process) -> Process:
    """One process that both holds cores of the ledger and has devices open."""
    devices = tuple(sorted({*attached.device_indices, *found.device_indices}))
    return replace(attached, device_indices=devices, runtime_version=attached.runtime_version or found.runtime_version)
