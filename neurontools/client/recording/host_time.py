"""Where snapshots are in time, by the clock of their host that nobody sets."""

from __future__ import annotations

from neurontools.rpc import neuron_pb2


def order(snapshot: neuron_pb2.Snapshot) -> tuple[float, int]:
    """What is greater for the later of two snapshots of one start of a host.

    Of two that were taken at once the sequence decides. It alone would not do: it begins anew with each daemon, and in
    a container each daemon has PID 1.
    """
    return snapshot.taken_at_seconds, snapshot.sequence


class HostTime:
    """Places the snapshots of one host in time, in order: by CLOCK_MONOTONIC, on which it goes on where it was started
    again."""

    def __init__(self) -> None:
        self._last: tuple[tuple[float, int], float, int] | None = None  # its order, the host's clock, PID of the daemon
        self._begun_seconds = 0.0  # what CLOCK_MONOTONIC of the present start of the host begins at

    def place(self, snapshot: neuron_pb2.Snapshot) -> float | None:
        """Where it is, in seconds; None when it isn't later than the one before."""
        at_seconds, at_unix_seconds = snapshot.taken_at_seconds, snapshot.taken_at_unix_seconds
        if self._last is not None:
            last_order, last_unix_seconds, last_pid = self._last
            if order(snapshot) <= last_order:
                last_seconds, _ = last_order
                is_of_a_later_start = (
                    snapshot.daemon_pid != last_pid
                    and at_seconds < last_seconds
                    and at_unix_seconds > last_unix_seconds
                )
                if not is_of_a_later_start:
                    return None
                self._begun_seconds += last_seconds + at_unix_seconds - last_unix_seconds - at_seconds
        self._last = order(snapshot), at_unix_seconds, snapshot.daemon_pid
        return self._begun_seconds + at_seconds
