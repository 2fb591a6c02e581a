"""The rule about latencies: executions of a process that take longer than they did before."""

from __future__ import annotations

from collections.abc import Iterator

from neurond.verdicts.evidence import Evidence, Who, who_is
from neurond.verdicts.hysteresis import Hysteresis, Level
from neurontools.model import Finding, Process, Severity, latency
from neurontools.model.finding import Kind
from neurontools.util.units import duration_text

_BEGINS_AFTER_WINDOWS, _ENDS_AFTER_WINDOWS = 0.2, 0.5
"""How long the medians must say so before it is told, and how long the contrary, as shares of the window."""

_BETTER_RATIO = 0.5  # of the growth that is a finding: what has come down to less is clearly better

_Medians = tuple[float, float]  # before the window and in it, seconds


class Latencies:
    """Remembers for which processes it has found that latencies rose. Show it every snapshot of a tick, in order.

    A process that is younger than the window has nothing to compare with: its first executions set models up.
    """

    def __init__(self) -> None:
        self._rises: Hysteresis[Who] = Hysteresis()
        self._told: dict[Who, _Medians] = {}

    def __call__(self, evidence: Evidence) -> Iterator[Finding]:
        """The findings of this moment."""
        limits, snapshot = evidence.limits, evidence.snapshot
        limit = limits.latency_growth_ratio
        seen = {}
        for process in snapshot.processes if limit is not None else ():
            before = evidence.processes.get(process.pid)
            key = who_is(process)
            if limit is None or before is None or not process.core_indices:
                continue
            seen[key] = process
            is_known = self._rises.is_known(key)
            medians = _medians(before, process, 0.0 if is_known else limit, limits.latency_executions)
            since = self._rises.holds_since(
                key,
                _level(medians, limit),
                snapshot.taken_at_unix_seconds,
                begins_after_seconds=_BEGINS_AFTER_WINDOWS * limits.window_seconds,
                ends_after_seconds=_ENDS_AFTER_WINDOWS * limits.window_seconds,
            )
            if since is not None:
                yield _finding(process, self._worth_telling(key, medians, limit), since)
            else:
                self._told.pop(key, None)
        self._rises.keep(seen)
        self._told = {key: told for key, told in self._told.items() if key in seen}

    def _worth_telling(self, key: Who, medians: _Medians | None, limit: float) -> _Medians:
        """What was told, unless it has become quite another: the text of a finding is a label, and stays."""
        told = self._told.get(key)
        if medians is not None and (told is None or not told[1] / limit < medians[1] < told[1] * limit):
            told = self._told[key] = medians
        assert told is not None  # noqa: S101  it begins with a measurement
        return told


def _level(medians: _Medians | None, limit: float) -> Level:
    """Where a growth is; of a process that executes nothing, nothing is told any more."""
    if medians is None:
        return Level.BETTER
    was, now = medians
    if now >= limit * was:
        return Level.OVER
    return Level.BETTER if now < (1.0 + _BETTER_RATIO * (limit - 1.0)) * was else Level.BETWEEN


def _medians(before: Process, process: Process, least_growth: float, most_few: int) -> _Medians | None:
    """The medians before the window and in it; None where nobody can tell, or they can't be so far apart."""
    past, whole = before.device_latency_histogram, process.device_latency_histogram
    if past is whole or not whole.bucket_indices or not past.bucket_indices:
        return None
    fastest, slowest = (latency.bucket_seconds(index) for index in (past.bucket_indices[0], whole.bucket_indices[-1]))
    # Most are steady: spares what follows.
    if slowest < least_growth * fastest or sum(past.bucket_counts) < most_few:
        return None
    try:
        recent = latency.difference(whole, past)
    except ValueError:  # its reporter began anew
        return None
    if sum(recent.bucket_counts) < most_few:
        return None
    was, now = latency.median_seconds(past), latency.median_seconds(recent)
    return None if was is None or now is None else (was, now)


def _finding(process: Process, medians: _Medians, began_at_unix_seconds: float) -> Finding:
    was, now = (duration_text(float(f"{seconds:.1e}")) for seconds in medians)
    return Finding(
        Kind.LATENCY_RISEN,
        Severity.WARNING,
        f"PID {process.pid}: median latency rose from {was} to {now}",
        "the device may be throttled or its input slow: compare power, vCPU use and the batch size",
        began_at_unix_seconds,
        process.device_indices,
        process.pid,
        (process.pid,),
        synthetic=process.synthetic,
    )
