"""`neuron-monitor`: prints one JSON record per line until standard output closes.

It may run for months beside a training job, so it uses one connection, one thread and no grpcio.
"""

from __future__ import annotations

import select
import sys
from contextlib import ExitStack, closing, suppress
from time import monotonic

from neurontools.cli.daemon.connection import ask_or_start_daemon
from neurontools.cli.daemon.snapshots import DaemonSnapshots
from neurontools.cli.line import (
    END_CODES,
    FILES,
    INFORMATION_OPTIONS,
    SIMULATE_OPTION,
    SOCKET_OPTION,
    Option,
    exclude_each_other,
    parse_options,
    print_information,
    whole_option,
    word_option,
)
from neurontools.exporters.monitor.configuration import MonitorConfiguration, read_configuration
from neurontools.exporters.monitor.record_types import Record
from neurontools.exporters.monitor.recorder import MonitorRecorder, group_periods
from neurontools.model import Snapshot
from neurontools.rpc.socket_path import display_address
from neurontools.util.command_lifecycle import OutputClosed, run_command, write_document, write_stderr, write_text
from neurontools.util.errors import EXIT_FAILURE, EXIT_USAGE, UserError
from neurontools.util.formats import json_text

VERBOSE_WORDS = ("0", "1", "2", "3", "4")
OPTIONS = (
    Option(
        "config-file", "which metric groups, of which processes, how often", short="c", value="FILE", completes=FILES
    ),
    Option("verbose", "verbosity of standard error; 0 (default: nothing) to 4", value="LEVEL", words=VERBOSE_WORDS),
    Option("count", "end after so many records", short="n", value="N"),
    Option("once", "print one record and end", short="1"),
    Option("check-config", "check the configuration, print the outcome and end"),
    Option("json-schema", "print the JSON Schema of the records and end"),
    SOCKET_OPTION,
    SIMULATE_OPTION,
    Option("replay", "records of a recording, by its own clock, without waiting", value="FILE", completes=FILES),
    *INFORMATION_OPTIONS,
)
USAGE = "neuron-monitor [options]"
SUMMARY = "Prints the metrics of this host's Neuron devices as one JSON document per line, until it is ended."
NOTES = """\
Without a configuration: all metric groups of all processes, every 5 seconds. The format is in neuron-monitor(1).
Without --socket and --simulate it asks your own monitor daemon (neurond), then the system's.
"""
EXIT_CODES = (
    (0, "all requested records were printed"),
    (1, "an option is unknown, or an operation failed"),
    (2, "an option or the configuration is invalid"),
    (4, "this user may not read the configuration, or not use the socket"),
    (6, "the file does not exist"),
    (12, "no daemon answers"),
    (124, "the daemon did not answer in time"),
    *END_CODES,
)


_COMMAND = "neuron-monitor"
_STDOUT = 1
_LATE_SECONDS = 0.02  # seconds between the time when a snapshot is due and its request
_AGAIN_SECONDS = 0.05  # seconds between requests while the snapshot is overdue
_PATIENCE_INTERVALS = 2.0  # multiple of the interval; after this time without a new snapshot, uses the old one


def main() -> None:
    run_command(_COMMAND, _run_monitor)


def _run_monitor(arguments: list[str]) -> int:
    given = parse_options(OPTIONS, arguments)
    if print_information(_COMMAND, sys.modules[__name__], given):
        return 0
    if "json-schema" in given:
        from neurontools.exporters.monitor.record_types import record_schema

        write_text(json_text(record_schema(), indent=2) + "\n")
        return 0
    verbosity = int(word_option(given, "verbose", VERBOSE_WORDS, "0"))
    file = given.get("config-file")
    configuration = MonitorConfiguration.default() if file is None else read_configuration(file)
    for problem in configuration.problems:
        write_stderr(f"{_COMMAND}: {file}: {problem}")
    if "check-config" in given:
        if configuration.problems:
            return EXIT_USAGE
        write_text(_configuration_report(configuration, file))
        return 0
    if verbosity >= 1:
        for note in configuration.notes:
            write_stderr(f"{_COMMAND}: {file}: {note}")
    count = 1 if "once" in given else whole_option(given, "count", None, 1)
    output = RecordOutput(verbosity)
    if "replay" in given:
        exclude_each_other(given, "replay", "socket", "simulate")
        return replay(given["replay"], configuration, output, count)
    with ExitStack() as stack:
        shortest_seconds = min((seconds for _, seconds in group_periods(configuration)), default=1.0)
        snapshots, first = ask_or_start_daemon(
            lambda path: _open_snapshots(path, stack),
            given,
            stack,
            interval_seconds=min(1.0, max(0.05, shortest_seconds)),
        )
        RecordStream(snapshots, configuration, output).run(first, count)
    return 0


class RecordOutput:
    """Writes records to standard output, and messages up to the configured verbosity to standard error."""

    def __init__(self, verbosity: int) -> None:
        self._verbosity = verbosity
        self.written = 0

    def write(self, record: Record) -> None:
        """Writes a record unbuffered. Raises OutputClosed if the reader has closed the pipe."""
        line = json_text(record).encode() + b"\n"
        write_document(line)
        self.written += 1
        self.write_stderr(
            4, f"record {self.written}: {len(line)} bytes, {len(record['neuron_runtime_data'])} processes"
        )

    def write_stderr(self, verbosity: int, text: str) -> None:
        """Writes a message to standard error if the configured verbosity is at least `verbosity`."""
        if self._verbosity >= verbosity:
            write_stderr(f"{_COMMAND}: {text}")


def replay(file: str, configuration: MonitorConfiguration, output: RecordOutput, count: int | None) -> int:
    """Writes the records of a recording without pauses between them. Returns the exit code."""
    from neurontools.client.recording import RecordingReader
    from neurontools.rpc import neuron_pb2
    from neurontools.rpc.convert import from_message

    recorder: MonitorRecorder | None = None
    last_seconds = 0.0
    with closing(RecordingReader(file)) as reader:
        for message in reader.messages():
            if count is not None and output.written >= count:
                return 0
            snapshot = from_message(Snapshot, neuron_pb2.GetSnapshotResponse.FromString(message).snapshot)
            if recorder is None or snapshot.taken_at_seconds < last_seconds:  # the host rebooted
                recorder = MonitorRecorder(configuration, snapshot.taken_at_seconds)
            last_seconds = snapshot.taken_at_seconds
            if recorder.accepts(snapshot):
                output.write(recorder.next_record(snapshot))
    if reader.trouble:
        write_stderr(f"{_COMMAND}: {reader.trouble}")
        return EXIT_FAILURE
    return 0


class RecordStream:
    """Requests snapshots from a daemon and writes the records that the configuration selects."""

    def __init__(self, snapshots: DaemonSnapshots, configuration: MonitorConfiguration, output: RecordOutput) -> None:
        self._snapshots = snapshots
        self._configuration = configuration
        self._output = output
        self._is_lost = False

    def run(self, first: Snapshot, count: int | None) -> None:
        """Writes `count` records (None: endlessly), the first at once. Raises OutputClosed if the pipe is closed."""
        recorder = MonitorRecorder(self._configuration, first.taken_at_seconds)
        for period_seconds in recorder.periods_seconds:
            with suppress(UserError):  # if the failure persists, the records report it
                past = self._snapshots.past(period_seconds)
                if past.taken_at_seconds < first.taken_at_seconds:
                    recorder.begin(past, period_seconds)
        self._output.write(recorder.next_record(first))
        interval_seconds = first.interval_seconds
        if recorder.periods_seconds and recorder.periods_seconds[0] < interval_seconds:
            self._output.write_stderr(
                1,
                f"the period of {recorder.periods_seconds[0]:g} s can't be met: the monitor daemon samples "
                f"every {interval_seconds:g} s; start neurond with a shorter --interval",
            )
        while count is None or self._output.written < count:
            _sleep_until(recorder.next_seconds + _LATE_SECONDS)
            try:
                latest = self._next_snapshot(recorder, interval_seconds)
            except UserError as error:
                if not self._is_lost:
                    self._is_lost = True
                    self._output.write_stderr(1, f"{error}; going on")
                outage = recorder.make_outage(str(error), monotonic())
                if outage is not None:
                    self._output.write(outage)
                continue
            if self._is_lost:
                self._is_lost = False
                address = display_address(self._snapshots.socket_path)
                self._output.write_stderr(1, f"the monitor daemon at {address} is back")
            interval_seconds = latest.interval_seconds
            self._output.write(recorder.next_record(latest))

    def _next_snapshot(self, recorder: MonitorRecorder, interval_seconds: float) -> Snapshot:
        """Returns the snapshot for the next record; an old snapshot if the daemon makes no new one in time."""
        deadline = monotonic() + _PATIENCE_INTERVALS * interval_seconds
        while True:
            latest = self._snapshots.latest()
            now = monotonic()
            if recorder.accepts(latest) or now >= deadline:
                return latest
            # The daemon takes its next snapshot one interval after the latest one. If it is overdue, retries soon.
            expected = latest.taken_at_seconds + latest.interval_seconds + _LATE_SECONDS
            _sleep_until(min(expected, deadline) if expected > now else now + _AGAIN_SECONDS)


def _open_snapshots(path: str, stack: ExitStack) -> tuple[DaemonSnapshots, Snapshot]:
    snapshots = DaemonSnapshots(path, is_observer=True)
    stack.callback(snapshots.close)
    return snapshots, snapshots.latest()


def _sleep_until(seconds: float) -> None:
    """Sleeps until a CLOCK_MONOTONIC time. Raises OutputClosed as soon as the reader of standard output closes it."""
    poll = select.poll()
    poll.register(_STDOUT, 0)  # poll reports POLLERR even if it is not requested
    while (remaining_seconds := seconds - monotonic()) > 0:
        for _, event in poll.poll(remaining_seconds * 1000):
            if event & (select.POLLERR | select.POLLNVAL):
                raise OutputClosed
            poll.modify(_STDOUT, 0)
            break


def _configuration_report(configuration: MonitorConfiguration, file: str | None) -> str:
    lines = [f"{file or 'without a file'}: the configuration is valid"]
    for index, selection in enumerate(configuration.runtimes):
        tags_text = f"tags that match {selection.tag_filter.pattern!r}" if selection.tag_filter else "all tags"
        where = f"neuron_runtimes[{index}], {tags_text}"
        lines += [f"  {where}: {group.type} every {group.period_seconds:g} s" for group in selection.metrics]
    for group in configuration.system_metrics:
        lines.append(f"  system_metrics: {group.type} every {group.period_seconds:g} s")
    if configuration.k8s_info_period_seconds is not None:
        lines.append(f"  k8s_info every {configuration.k8s_info_period_seconds:g} s")
    lines += [f"  note: {note}" for note in configuration.notes]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()
