"""Measures the CPU of one neuron-monitor record for 32 processes on trn1.32xlarge. Limit: 5 ms.

Also checks that memory stays flat over 10,000 records while processes start and end. The reference is json alone for
the same line.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

from neurontools.exporters.monitor.configuration import MonitorConfiguration
from neurontools.exporters.monitor.recorder import MonitorRecorder
from neurontools.model import Snapshot
from neurontools.rpc import neuron_pb2
from neurontools.rpc.convert import from_message, to_message
from tests.harness.scenario_host import STARTED_AT_SECONDS, ScenarioHost

RECORDS = 10_000
MEASURED = 300


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def message(snapshot: Snapshot) -> bytes:
    data: bytes = neuron_pb2.GetSnapshotResponse(snapshot=to_message(snapshot)).SerializeToString()
    return data


def main() -> None:
    host = ScenarioHost("trn1.32xlarge")
    snapshots = [host.at(10 + second) for second in range(60)]
    messages = [message(snapshot) for snapshot in snapshots]
    write = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
    recorder = MonitorRecorder(MonitorConfiguration.default(1.0), STARTED_AT_SECONDS)
    size = 0
    began = time.process_time()
    for number in range(MEASURED):
        snapshot = from_message(
            Snapshot, neuron_pb2.GetSnapshotResponse.FromString(messages[number % len(messages)]).snapshot
        )
        moment = STARTED_AT_SECONDS + 100.0 + number
        record = recorder.next_record(replace(snapshot, taken_at_seconds=moment))
        size = len(write(record))
    spent = time.process_time() - began
    began = time.process_time()
    for _ in range(MEASURED):
        write(record)
    reference = time.process_time() - began
    print(f"a record of {size / 1000:.0f} kB: {spent / MEASURED * 1e3:.2f} ms CPU (asked for: 5 ms)")
    print(f"reference, json alone for the same record: {reference / MEASURED * 1e3:.2f} ms")

    early = 0
    for number in range(RECORDS):
        moment = STARTED_AT_SECONDS + 1000.0 + number
        base = snapshots[number % len(snapshots)]
        # each process lives for 50 records, then another replaces it
        life = number // 50
        processes = tuple(
            replace(process, pid=process.pid + life * 100, attached_at_unix_seconds=float(life), tag=f"job-{life}-{i}")
            for i, process in enumerate(base.processes)
        )
        write(recorder.next_record(replace(base, taken_at_seconds=moment, processes=processes)))
        if number == RECORDS // 10:
            early = resident_bytes()
    late = resident_bytes()
    print(f"memory over {RECORDS} records: {early / 2**20:.1f} MiB after a tenth, {late / 2**20:.1f} MiB at the end")


if __name__ == "__main__":
    main()
