"""Since when the counters of a process count, and whether two records of it are of one count.

A process counts in itself, from the moment its runtime began to, whichever daemon it is attached to. So what it tells
goes on when a daemon is restarted, and is compared by that moment and not by when it attached.
"""

from __future__ import annotations

from neurontools.model.process import Process
from neurontools.model.snapshot import Snapshot

CountKey = tuple[int, float]
"""What names one count on a host: a PID, and since when it counts."""


def count_key(process: Process) -> CountKey | None:
    """The count that the counters of a process belong to; None when it does not tell since when they count."""
    since_seconds = process.counted_since_seconds
    return None if since_seconds is None else (process.pid, since_seconds)


def continues(before: Process, now: Process) -> bool:
    """Whether the counters of `now` went on from those of `before`, so that they may be subtracted.

    A process that has told since when it counts does not go on from a record of before it told anything: there all its
    counters are 0, whatever it had counted. Where neither tells, the two are of one count if they attached at the same
    moment.
    """
    earlier, later = count_key(before), count_key(now)
    if earlier is not None or later is not None:
        return earlier == later
    return before.pid == now.pid and before.attached_at_unix_seconds == now.attached_at_unix_seconds


def counted_since_unix_seconds(process: Process, snapshot: Snapshot) -> float | None:
    """Since when the counters of a process count, as Unix time by the clock of this snapshot; None: not known.

    A process that has not told counts since it attached, as far as anybody knows.
    """
    since_seconds = process.counted_since_seconds
    if since_seconds is None:
        return process.attached_at_unix_seconds
    return snapshot.taken_at_unix_seconds - (snapshot.taken_at_seconds - since_seconds)
