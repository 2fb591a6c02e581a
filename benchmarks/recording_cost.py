"""Measures the size of a recording, and the CPU time to write and to read one snapshot of it. Limit: 3 ms."""

from __future__ import annotations

import tempfile
import time
from contextlib import closing

from measuring import Figure, compile_sources, report

from neurontools.client.recording import RecordingReader, RecordingWriter
from tests.harness.scenario_host import ScenarioHost
from tests.harness.still_feed import message_of

SNAPSHOTS = 600
SCENARIOS = ("training-ramp", "ecc-burst")


def main() -> None:
    compile_sources()
    figures = []
    for scenario in SCENARIOS:
        host = ScenarioHost("trn1.32xlarge", scenario)
        messages = [message_of(host.at(float(second))) for second in range(1, SNAPSHOTS + 1)]
        with tempfile.TemporaryDirectory() as directory:
            started_seconds = time.process_time()
            with closing(RecordingWriter(f"{directory}/r")) as writer:
                for message in messages:
                    writer.write(message)
            written_seconds = time.process_time()
            with closing(RecordingReader(f"{directory}/r")) as reader:
                count = sum(1 for _ in reader.messages())
            read_seconds = time.process_time()
        if count != SNAPSHOTS:
            raise SystemExit(f"the recording has {count} of {SNAPSHOTS} snapshots")
        write_ms = (written_seconds - started_seconds) / SNAPSHOTS * 1e3
        read_ms = (read_seconds - written_seconds) / SNAPSHOTS * 1e3
        figures += [
            Figure(f"{scenario}: one snapshot", writer.bytes_written / SNAPSHOTS / 1e3, "kB"),
            Figure(f"{scenario}: CPU to write one snapshot", write_ms, "ms", "below 3"),
            Figure(f"{scenario}: CPU to read one snapshot", read_ms, "ms", "below 3"),
        ]
    report(f"Recordings of a trn1.32xlarge, {SNAPSHOTS} snapshots", figures)


if __name__ == "__main__":
    main()
