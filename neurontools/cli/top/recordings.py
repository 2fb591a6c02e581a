"""Compares two recordings (--diff), sums up one (--summary), and exports one as a trace for Perfetto."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from neurontools.cli.daemon.connection import ask_or_start_daemon
from neurontools.cli.line import two_values
from neurontools.cli.top.options import check_device_filter, device_filter_option, filter_option
from neurontools.client.daemon_client import Client, Recording
from neurontools.client.events import events_between
from neurontools.client.recording import RecordingReader
from neurontools.client.timeline import HostClock
from neurontools.exporters.perfetto import HostTrace
from neurontools.model import Snapshot
from neurontools.rpc import neuron_pb2
from neurontools.rpc.convert import from_message
from neurontools.util.command_lifecycle import write_stderr, write_text
from neurontools.util.errors import EXIT_FAILURE, EXIT_NOT_FOUND, EXIT_USAGE, UserError
from neurontools.util.terminal import escape_controls, excerpt
from neurontools.util.units import bytes_text, count_text, date_text
from neurontools.views.drawing.figures import DeviceFilter
from neurontools.views.host_difference import ProcessTest, RecordingSide, host_difference_json, host_difference_text
from neurontools.views.process_filter import InvalidQuantity, parse_filter, parse_quantity
from neurontools.views.recording_summary import recording_summary_json, recording_summary_text

MOST_MOMENTS = 600  # limit of snapshots averaged for one side of a comparison; longer spans are sampled evenly
_CLOCKS = ("%H:%M:%S", "%H:%M")
_DAY_SECONDS = 86400.0
_MOST_DAYS = 400


@dataclass(frozen=True, slots=True)
class DiffSide:
    """A recording file ("": the daemon), and the moment or span in it as text, as `option` names them."""

    text: str
    file: str
    moment: str
    option: str = "diff"

    @classmethod
    def parse(cls, text: str, option: str = "diff") -> DiffSide:
        """Parses `FILE`, `FILE@MOMENT` or `FILE@FROM..TO`. An empty FILE before `@` means the daemon."""
        file, at, moment = text.rpartition("@")
        # If a file with the whole text as its name exists, the text names this file, even if it contains @.
        if not at or Path(text).exists():
            file, moment = text, ""
        elif not moment:
            raise cls(text, file, moment, option).error("which moment? Such as @14:05, @-5min or @last")
        return cls(text, file, moment, option)

    def error(self, problem: str, exit_code: int = EXIT_USAGE) -> UserError:
        """Returns the error that names the option with its value."""
        return UserError(f"--{self.option} {excerpt(self.text, 100)}: {problem}", exit_code)


def write_difference(given: dict[str, str]) -> int:
    """Prints the difference between the two sides of --diff. Returns 1 if a recording is incomplete."""
    sides, exit_code = _read_sides(given, [DiffSide.parse(text) for text in two_values(given["diff"])])
    write_text((host_difference_json if "json" in given else host_difference_text)(*sides))
    return exit_code


def write_summary(given: dict[str, str]) -> int:
    """Prints the summary of the recording of --summary, or of a part of it. Returns 1 if it is incomplete."""
    (side,), exit_code = _read_sides(given, [DiffSide.parse(given["summary"], "summary")])
    write_text((recording_summary_json if "json" in given else recording_summary_text)(side))
    return exit_code


def _read_sides(given: dict[str, str], sides: list[DiffSide]) -> tuple[list[RecordingSide], int]:
    """Reads the sides, filtered as the options say. Also returns the exit code: 1 if a recording is incomplete."""
    chosen = filter_option(given)
    passes = parse_filter(chosen) if chosen else None
    device_filter = device_filter_option(given, os.environ)
    exit_code = 0
    found: list[RecordingSide] = []
    with ExitStack() as stack:
        past: list[Snapshot] | None = None
        for each in sides:
            if each.file:
                recording = Recording(each.file)
                found.append(_read_side(each, recording.history, passes, device_filter))
                if recording.trouble:
                    write_stderr(f"neuron-top: {recording.trouble}")
                    exit_code = EXIT_FAILURE
            else:
                if past is None:
                    past = ask_or_start_daemon(_daemon_history, given, stack, load=given.get("load"))
                found.append(_read_side(each, past.__iter__, passes, device_filter))
    return found, exit_code


def _daemon_history(socket_path: str) -> list[Snapshot]:
    with Client(socket_path) as client:
        return list(client.history()) or [client.snapshot()]


def _read_side(
    side: DiffSide, history: Callable[[], Iterator[Snapshot]], passes: ProcessTest | None, device_filter: DeviceFilter
) -> RecordingSide:
    times = [snapshot.taken_at_unix_seconds for snapshot in history()]
    if not times:
        raise side.error("holds no snapshot; record again", EXIT_FAILURE)
    first, last = _moment_span(side, times)
    count = last - first + 1
    read = {first + position * count // min(count, MOST_MOMENTS) for position in range(min(count, MOST_MOMENTS))}
    recording = RecordingSide(side.text, moment_count=count)
    for position, snapshot in enumerate(history()):
        if position == first:
            check_device_filter(device_filter, snapshot)
        if position in read:
            recording.add_snapshot(device_filter.filter_snapshot(snapshot), passes)
        if position >= last:
            break
    return recording


def _moment_span(side: DiffSide, times: list[float]) -> tuple[int, int]:
    """Returns the indices in `times` of the first and last snapshot of the requested span."""
    if not side.moment:
        return 0, len(times) - 1
    begin, dots, end = side.moment.partition("..")
    if not dots:
        position = _moment_position(side, begin, times)
        return position, position
    first = _moment_position(side, begin, times) if begin else 0
    last = _moment_position(side, end, times) if end else len(times) - 1
    if last < first:
        raise side.error("it ends before it begins; write the earlier first")
    return first, last


def _moment_position(side: DiffSide, text: str, times: list[float]) -> int:
    """Returns the index in `times` of the latest snapshot at or before the time in `text`."""
    at = _unix_seconds(side, text, times)
    if not times[0] - 1 < at < times[-1] + max(1.0, times[-1] - times[-2] if len(times) > 1 else 1.0):
        first, last = (date_text(each) for each in (times[0], times[-1]))
        raise side.error(f"there is no such moment; it has {first} to {last}", EXIT_NOT_FOUND)
    return max((place for place, each in enumerate(times) if each <= at), default=0)


def _unix_seconds(side: DiffSide, text: str, times: list[float]) -> float:
    if text in ("first", "last", "now"):
        return times[0] if text == "first" else times[-1]
    if text[:1] in ("+", "-") and text[1:2].isdigit():
        try:
            seconds = parse_quantity(text[1:], "seconds")
        except InvalidQuantity:
            raise _invalid_moment(side) from None
        return times[0] + seconds if text[0] == "+" else times[-1] - seconds
    for clock in _CLOCKS:
        try:
            of_day = time.strptime(text, clock)
        except ValueError:
            continue
        # Takes the first day on which the recording contains this time of day.
        days = range(min(_MOST_DAYS, int((times[-1] - times[0]) / _DAY_SECONDS) + 2))
        found = [_on_day(times[0] + day * _DAY_SECONDS, of_day) for day in days]
        return next((at for at in found if times[0] - 1 < at <= times[-1] + 1), found[0])
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise _invalid_moment(side) from None


def _on_day(unix_seconds: float, of_day: time.struct_time) -> float:
    day = time.localtime(unix_seconds)
    return time.mktime((day.tm_year, day.tm_mon, day.tm_mday, of_day.tm_hour, of_day.tm_min, of_day.tm_sec, 0, 0, -1))


def _invalid_moment(side: DiffSide) -> UserError:
    return side.error(
        f"{excerpt(side.moment, 100)} is no moment; give one such as 14:05, 2026-01-31T14:05:00, "
        "+10min from the first, -5min before the last, first or last, or FROM..TO"
    )


_OPTION = "--export-perfetto"


def write_perfetto(given: dict[str, str]) -> int:
    """Writes a Perfetto trace of a recording and reports its size. Returns 1 if the recording is incomplete."""
    path = given["export-perfetto"]
    reader = RecordingReader(given["replay"])
    with contextlib.closing(reader), _open_trace(path, given["replay"]) as file:
        try:
            trace = _write_trace(reader, file, given)
            size_bytes = file.tell()
        except OSError as error:
            raise _trace_error(path, error) from error
    tracks = trace.tracks
    write_stderr(
        f"neuron-top: {path}: {count_text(tracks.slice_count)} slices, {count_text(tracks.value_count)} values and "
        f"{count_text(tracks.instant_count)} events, {bytes_text(size_bytes)}; open it at https://ui.perfetto.dev"
    )
    if reader.trouble:
        write_stderr(f"neuron-top: {reader.trouble}")
        return EXIT_FAILURE
    return 0


def _write_trace(reader: RecordingReader, file: BinaryIO, given: dict[str, str]) -> HostTrace:
    device_filter = device_filter_option(given, os.environ)
    trace, time = HostTrace(), HostClock()
    before: neuron_pb2.Snapshot | None = None
    for message in reader.snapshots():
        at_seconds = time.timeline_seconds(message)
        if at_seconds is None or at_seconds < 0:
            continue
        snapshot = from_message(Snapshot, message)
        if before is None:
            check_device_filter(device_filter, snapshot)
        events = events_between(before, message)
        file.write(trace.add_snapshot(at_seconds, device_filter.filter_snapshot(snapshot), events))
        before = message
    file.write(trace.end())
    return trace


def _open_trace(path: str, recording: str) -> BinaryIO:
    try:
        if Path(path).exists() and Path(path).samefile(recording):
            shown = escape_controls(path[:200])
            raise UserError(f"{_OPTION} {shown}: that is the recording; name another file", EXIT_USAGE)
        return Path(path).open("wb")
    except OSError as error:
        raise _trace_error(path, error) from error


def _trace_error(path: str, error: OSError) -> UserError:
    shown = escape_controls(path[:200])
    return UserError(f"{_OPTION} {shown}: {error.strerror}; name a file that can be written", EXIT_FAILURE)
