"""`neuron-top --replay FILE --export-perfetto OUT`: a recording as a trace for Perfetto."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

from neurontools.cli.line.telling import tell
from neurontools.cli.top.options import check_narrowing, narrowing
from neurontools.client.history.events import events_between
from neurontools.client.recording.host_time import HostTime
from neurontools.client.recording.reader import RecordingReader
from neurontools.exporters.perfetto import HostTrace
from neurontools.model import Snapshot
from neurontools.rpc import neuron_pb2
from neurontools.rpc.convert import from_message
from neurontools.util.errors import EXIT_FAILURE, EXIT_USAGE, UserError
from neurontools.util.terminal import escape_controls
from neurontools.util.units import bytes_text, count_text

_OPTION = "--export-perfetto"


def write(given: dict[str, str]) -> int:
    """Writes the trace and tells on standard error what is in it; the exit code, 1 when the recording is not whole."""
    path = given["export-perfetto"]
    reader = RecordingReader(given["replay"])
    with contextlib.closing(reader), _opened(path, given["replay"]) as file:
        try:
            trace = _written(reader, file, given)
            size_bytes = file.tell()
        except OSError as error:
            raise _failure(path, error) from error
    tracks = trace.tracks
    tell(
        f"neuron-top: {path}: {count_text(tracks.slice_count)} slices, {count_text(tracks.value_count)} values and "
        f"{count_text(tracks.instant_count)} events, {bytes_text(size_bytes)}; open it at https://ui.perfetto.dev"
    )
    if reader.trouble:
        tell(f"neuron-top: {reader.trouble}")
        return EXIT_FAILURE
    return 0


def _written(reader: RecordingReader, file: BinaryIO, given: dict[str, str]) -> HostTrace:
    narrowed = narrowing(given, os.environ)
    trace, time = HostTrace(), HostTime()
    before: neuron_pb2.Snapshot | None = None
    for message in reader.snapshots():
        at_seconds = time.place(message)
        if at_seconds is None or at_seconds < 0:
            continue
        snapshot = from_message(Snapshot, message)
        if before is None:
            check_narrowing(narrowed, snapshot)
        file.write(trace.add(at_seconds, narrowed.filter_snapshot(snapshot), events_between(before, message)))
        before = neuron_pb2.Snapshot()
        before.CopyFrom(message)  # the reader changes the one that it has given
    file.write(trace.end())
    return trace


def _opened(path: str, recording: str) -> BinaryIO:
    try:
        if Path(path).exists() and Path(path).samefile(recording):
            raise UserError(
                f"{_OPTION} {escape_controls(path[:200])}: that is the recording; name another file", EXIT_USAGE
            )
        return Path(path).open("wb")
    except OSError as error:
        raise _failure(path, error) from error


def _failure(path: str, error: OSError) -> UserError:
    return UserError(
        f"{_OPTION} {escape_controls(path[:200])}: {error.strerror}; name a file that can be written", EXIT_FAILURE
    )
