"""A host whose snapshots a test makes by hand, and which gives them their rates."""

from __future__ import annotations

from typing import Any

from neurond.snapshots.rates import Rates

from neurontools.model import Instance, NeuronCore, Process, Snapshot, SourceKind

INSTANCE = Instance("trn1.2xlarge", None, 1, 2, 1, (1,), 32, 16, "single")
PID = 71


class Host:
    """A host with one core, whose snapshots are made by hand; `take` gives them their rates."""

    def __init__(self) -> None:
        self.rates = Rates()
        self.sequence = 0

    def take(
        self, at_seconds: float, core: NeuronCore | None = None, *processes: Process, processes_read: bool = True
    ) -> Snapshot:
        self.sequence += 1
        snapshot = Snapshot(
            sequence=self.sequence,
            taken_at_unix_seconds=1e9 + at_seconds,
            taken_at_seconds=at_seconds,
            interval_seconds=1.0,
            source=SourceKind.SIMULATED,
            instance=INSTANCE,
            devices=(),
            cores=(core or NeuronCore(0, 0, 0, 0),),
            processes=processes,
        )
        return self.rates.derive(snapshot, processes_read=processes_read)


def core(measured_at_seconds: float | None, busy: float = 0.0, flop: int = 0, owner: int | None = PID) -> NeuronCore:
    return NeuronCore(
        0, 0, 0, 0, owner_pid=owner, busy_seconds_total=busy, flop_total=flop, measured_at_seconds=measured_at_seconds
    )


def process(measured_at_seconds: float | None, **values: Any) -> Process:
    values = {"attached_at_unix_seconds": 2.0, "reporting": measured_at_seconds is not None} | values
    return Process(
        pid=PID,
        uid=0,
        user="u",
        command="c",
        tag="t",
        runtime_version="1",
        started_at_unix_seconds=1.0,
        synthetic=False,
        logical_neuroncore_config=1,
        measured_at_seconds=measured_at_seconds,
        **values,
    )
