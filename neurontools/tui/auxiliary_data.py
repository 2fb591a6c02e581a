"""What pages show that is in no snapshot alone.

What ended before, vCPUs since the moment before, our own cost, and what this host tells of a process.
"""

from __future__ import annotations

import time

from neurontools.client.backfill import EndedProcessFetch, EndedProcessLog
from neurontools.client.feed import Feed, LiveFeed
from neurontools.driver.process_context import OwnUsage, ProcessContext, read_process_context
from neurontools.model import EndedProcess, Snapshot, VcpuTimes, VcpuUsage
from neurontools.model.host import vcpu_usage_between
from neurontools.views.drawing.figures import Figures
from neurontools.views.drawing.render_context import ProcessCost

_AGAIN_SECONDS = 5.0
_COST_SECONDS = 1.0
_LONGEST_APART_SECONDS = 60.0


class AuxiliaryData:
    """Reads and remembers these; each only while a page asks for it. For the thread of the dashboard."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._book = EndedProcessLog()
        self._fetch: EndedProcessFetch | None = None
        self._surroundings: tuple[float, ProcessContext] | None = None
        self._times: tuple[float, tuple[VcpuTimes, ...]] = (0.0, ())
        self._vcpus: tuple[float, tuple[VcpuUsage, ...]] = (-1.0, ())
        self._own = OwnUsage()
        self._own_at_seconds = float("-inf")

    def ended(self, snapshot: Snapshot) -> tuple[EndedProcess, ...]:
        """What is known to have ended by the moment of a snapshot; the daemon is asked once."""
        if self._fetch is None and isinstance(self._feed, LiveFeed):
            self._fetch = EndedProcessFetch(self._feed.socket_path)
        if self._fetch is not None:
            self._book.take(self._fetch.take())
        self._book.read(self._feed.timeline)
        return self._book.until(snapshot.taken_at_unix_seconds)

    def vcpus(self, snapshot: Snapshot, index: int) -> tuple[VcpuUsage, ...]:
        """Each vCPU since the moment before this one, which is the timeline's of this index."""
        at_seconds = snapshot.taken_at_seconds
        if self._vcpus[0] == at_seconds:
            return self._vcpus[1]
        before_at, before = self._times
        if not 0 < at_seconds - before_at <= _LONGEST_APART_SECONDS and index > 0:
            earlier = self._feed.timeline.moments[index - 1].snapshot()
            before = earlier.host.vcpu_times
        spent = vcpu_usage_between(snapshot.host.vcpu_times, before) if before else None
        self._times = at_seconds, snapshot.host.vcpu_times
        self._vcpus = at_seconds, spent[1] if spent is not None else snapshot.host.vcpus
        return self._vcpus[1]

    def own_cost(self) -> ProcessCost | None:
        """What this program costs, over about the last second; of no interest beside a recording."""
        if not isinstance(self._feed, LiveFeed):
            return None
        now_seconds = time.monotonic()
        if now_seconds - self._own_at_seconds >= _COST_SECONDS:
            self._own_at_seconds = now_seconds
            self._own.measure()
        return ProcessCost(self._own.vcpu_ratio, self._own.resident_bytes)

    def process_context(self, figures: Figures, pid: int | None) -> ProcessContext | None:
        """Environment and tree of a process as this user may see them; read again every few seconds."""
        of = figures.by_pid.get(pid) if pid is not None else None
        if of is None or pid is None:
            return None
        if not isinstance(self._feed, LiveFeed):
            return ProcessContext(
                pid, "a recording has neither environment nor tree: they are read where a process runs"
            )
        if of.process.synthetic:
            return ProcessContext(pid, "synthetic: there is no such process")
        now_seconds = time.monotonic()
        known = self._surroundings
        if known is None or known[1].pid != pid or now_seconds - known[0] >= _AGAIN_SECONDS:
            known = self._surroundings = now_seconds, read_process_context(pid, of.process.started_at_unix_seconds)
        return known[1]
