"""Queries of neuron-ls that need more imports than the device list.

These are --query, --wait-free, --health, --output-format, --ended and --loop.
"""

from __future__ import annotations

import os
import time
from contextlib import closing

from neurontools import catalog, free_cores
from neurontools.cli.daemon.private import PrivateDaemon
from neurontools.cli.daemon.snapshots import DaemonSnapshots
from neurontools.cli.line import INTERVAL_SECONDS, DeviceSelection, exclude_each_other, seconds_option, whole_option
from neurontools.client.daemon_client import Client
from neurontools.driver.environment import InvalidCoreRequest, Roots, logical_neuroncore_config
from neurontools.model import EndedProcess, Snapshot, health
from neurontools.rpc.ask import NoDaemon, TimedOut
from neurontools.rpc.socket_path import display_address
from neurontools.util.command_lifecycle import write_stderr, write_text
from neurontools.util.errors import (
    EXIT_HEALTH_UNKNOWN,
    EXIT_NO_DAEMON,
    EXIT_NOT_FOUND,
    EXIT_UNHEALTHY,
    EXIT_USAGE,
    UserError,
)
from neurontools.util.terminal import error_excerpt, terminal_size
from neurontools.util.units import devices_text
from neurontools.views.device_list import device_list_object
from neurontools.views.ls_reports import (
    EndedReport,
    ended_csv,
    ended_json,
    ended_text,
    health_json,
    health_text,
    loop_header,
    loop_rows,
)
from neurontools.views.query_fields import (
    QueryField,
    QueryRow,
    parse_fields,
    parse_format,
    query_rows,
    query_text,
    streamed_query_text,
)

SCRIPT_OPTIONS = ("query", "wait-free", "health", "output-format")  # only one of these options may be given
MOST_CORES = 65536
LONGEST_WAIT_SECONDS = 31_536_000.0
_EXIT_CODES = {True: 0, False: EXIT_UNHEALTHY, None: EXIT_HEALTH_UNKNOWN}


class ScriptQuery:
    """Query for --query, --wait-free, --health or --output-format."""

    interval_seconds: float | None = None  # seconds between snapshots of a private daemon; None: its default

    def __init__(self, given: dict[str, str]) -> None:
        for name, needed in (("format", "query"), ("timeout", "wait-free"), ("count", "loop")):
            if name in given and needed not in given:
                raise UserError(f"--{name} is for --{needed}; leave it out", EXIT_USAGE)
        exclude_each_other(given, *SCRIPT_OPTIONS)
        exclude_each_other(given, "json-output", "output-format")
        if "loop" not in given:
            _refuse_options_without_effect(given)
        if given.get("output-format", "json") != "json":
            shown = error_excerpt(given["output-format"])
            raise UserError(f"--output-format {shown}: give json, or leave it out for the table", EXIT_USAGE)
        self.exit_code = 0
        self._given = given
        self._devices = DeviceSelection(given.get("device", ""))
        try:
            self._lnc = logical_neuroncore_config(os.environ)
        except InvalidCoreRequest as error:
            raise UserError(str(error), EXIT_USAGE) from None
        self._fields: tuple[QueryField, ...] = ()
        if "query" in given:
            self._fields = parse_fields(given["query"])
            self._format = parse_format(given.get("format", "csv"))
        if "wait-free" in given:
            self._count = whole_option(given, "wait-free", 0, 1, MOST_CORES)
            self._timeout_seconds = seconds_option(given, "timeout", None, 0.0, LONGEST_WAIT_SECONDS)

    def answer(self, path: str) -> str:
        """Returns the text to print, from the daemon at this socket.

        Sets `exit_code` to 5 if --health finds a problem, 7 if the health is unknown.
        """
        with closing(DaemonSnapshots(path)) as snapshots:
            if "query" in self._given:
                snapshot = snapshots.latest()
                return query_text(self._fields, self._rows(snapshot, self._device_indices(snapshot)), self._format)
            if "health" in self._given:
                return self._health(snapshots.latest())
            if "output-format" in self._given:
                snapshot = snapshots.latest()
                return device_list_object(
                    snapshot,
                    all_processes="show-all-procs" in self._given,
                    logical_neuroncore_config=self._lnc,
                    device_indices=self._device_indices(snapshot),
                )
            return self._wait_free(snapshots)

    def answer_from_devices(self) -> str | None:
        """Returns the answer of a private daemon for this host's devices; None if the host has no devices."""
        if not Roots.from_environment(os.environ).has_devices:
            return None
        with PrivateDaemon(None, interval_seconds=self.interval_seconds) as daemon:
            return self.answer(daemon.socket_path)

    def _rows(self, snapshot: Snapshot, device_indices: tuple[int, ...]) -> list[QueryRow]:
        """Returns the output rows of --query. Empty `device_indices` select all devices."""
        lnc = self._lnc if self._lnc in snapshot.instance.logical_neuroncore_configs else None
        of_cores = any(field.is_of_core for field in self._fields)
        peak = catalog.peak_flops_per_core(snapshot.instance.instance_type)
        return query_rows(snapshot, peak, lnc, device_indices, of_cores=of_cores)

    def _health(self, snapshot: Snapshot) -> str:
        chosen = self._device_indices(snapshot)
        verdicts = [each for each in health.verdicts(snapshot) if not chosen or each.device_index in (None, *chosen)]
        write = health_json if "json-output" in self._given else health_text
        self.exit_code = _EXIT_CODES[health.is_healthy(verdicts)]
        return write(verdicts, snapshot)

    def _wait_free(self, snapshots: DaemonSnapshots) -> str:
        """Waits for free cores. Returns them as a value for NEURON_RT_VISIBLE_CORES, without reserving them."""
        try:
            found = free_cores.wait(
                self._count,
                timeout_seconds=self._timeout_seconds,
                socket=snapshots.socket_path,
                device_indices=self._device_indices(snapshots.latest()),
            )
        except free_cores.NeverFree as error:
            raise UserError(f"--wait-free: {error}", error.exit_code) from error
        return f"{found}\n"

    def _device_indices(self, snapshot: Snapshot) -> tuple[int, ...]:
        """Returns the device indices that --device selects; () selects all."""
        by_name = {name: device.index for device in snapshot.devices for name in device.names}
        there = snapshot.devices_by_index
        for index in self._devices.indices:
            if index not in there:
                raise UserError(f"no device {index} on this host; it has {devices_text(there)}", EXIT_NOT_FOUND)
        return (*self._devices.indices, *self._devices.named_indices(by_name))


_WITH_EFFECT = {"health": ("json-output",), "output-format": ("show-all-procs",)}


def _refuse_options_without_effect(given: dict[str, str]) -> None:
    """Raises UserError if an option of the table is given with an option that prints no table."""
    chosen = next(option for option in SCRIPT_OPTIONS if option in given)
    for name in _TABLE_OPTIONS:
        if name in given and name not in _WITH_EFFECT.get(chosen, ()):
            raise UserError(f"--{name} has no effect with --{chosen}; leave it out", EXIT_USAGE)


_ENDED_EXCLUDES = (*SCRIPT_OPTIONS, "loop", "count", "topology", "device", "show-all-procs")
_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_LONGEST_SECONDS = 100 * 365 * 86_400.0


class EndedQuery:
    exit_code = 0
    interval_seconds: float | None = None  # seconds between snapshots of a private daemon; None: its default

    def __init__(self, given: dict[str, str]) -> None:
        for name in ("user", "since"):
            if name in given and "ended" not in given:
                raise UserError(f"--{name} is for --ended; leave it out", EXIT_USAGE)
        for other in _ENDED_EXCLUDES:
            exclude_each_other(given, "ended", other)
        exclude_each_other(given, "json-output", "format")
        self._is_wide = "wide" in given
        self._is_json = "json-output" in given
        self._format = parse_format(given["format"]) if "format" in given else None
        self._user = given.get("user")
        self._age_seconds = parse_age(given["since"]) if "since" in given else None

    def answer(self, path: str) -> str:
        """Returns the report on ended processes, from the daemon at this socket, as text, CSV or JSON."""
        asked_since = 0.0 if self._age_seconds is None else max(0.0, time.time() - self._age_seconds)
        with Client(path) as client:
            ended = client.ended(asked_since)
        since = max(asked_since, ended.known_since_unix_seconds)
        chosen = [process for process in ended.processes if self._is_chosen(process)]
        report = EndedReport(chosen, since, self._user)
        if self._is_json or (self._format is not None and self._format.is_json):
            return ended_json(report)
        if self._format is not None:
            return ended_csv(report, self._format)
        return ended_text(report, is_wide=self._is_wide)

    def answer_from_devices(self) -> str | None:
        """Raises UserError, because only a daemon records ended processes."""
        raise UserError(
            "--ended: no monitor daemon answers, and it alone knows what has ended; start neurond before the jobs",
            EXIT_NO_DAEMON,
        )

    def _is_chosen(self, process: EndedProcess) -> bool:
        return self._user is None or self._user in (process.user, str(process.uid))


def parse_age(text: str) -> float:
    """Parses an age such as 90, 90s, 30m, 12h, 1d or 2w to seconds. Raises UserError if it is invalid."""
    digits, unit_seconds = (text[:-1], _UNIT_SECONDS[text[-1]]) if text[-1:] in _UNIT_SECONDS else (text, 1.0)
    try:
        seconds = float(digits) * unit_seconds if digits.isascii() and len(digits) <= 20 else -1.0
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST_SECONDS:  # NaN fails too
        raise UserError(f"--since: {error_excerpt(text)} is no time; give one such as 90s, 30m, 12h or 1d", EXIT_USAGE)
    return seconds


_AGAIN_SECONDS = 0.25
_LONGEST_INTERVAL_OF_ITS_OWN_SECONDS = 1.0
_TABLE_OPTIONS = ("wide", "show-all-procs", "topology", "json-output")
_HEADER_LINES = 3
_LOOP_STDOUT = 1


class LoopQuery(ScriptQuery):
    """Repeated query (--loop), which prints rows for each snapshot.

    If the daemon is lost, waits until it is back or the user ends the command.
    """

    def __init__(self, given: dict[str, str]) -> None:
        exclude_each_other(given, "loop", "wait-free", "health", "output-format")
        for name in _TABLE_OPTIONS:
            if name in given:
                choices = "--query chooses what its rows say, --format json how"
                raise UserError(f"--{name} is not for --loop; {choices}", EXIT_USAGE)
        super().__init__(given)
        self._seconds = seconds_option(given, "loop", 0.0, *INTERVAL_SECONDS)
        self._times = whole_option(given, "count", None, 1)
        self.interval_seconds = min(self._seconds, _LONGEST_INTERVAL_OF_ITS_OWN_SECONDS)
        self._done = 0
        self._lines_since_header: int | None = None
        self._chosen: tuple[int, ...] | None = None

    def answer(self, path: str) -> str:
        """Prints rows until --count is reached. Raises NoDaemon or TimedOut if no answer comes before the first row."""
        is_lost = False
        with Client(path) as client:
            while True:
                try:
                    for snapshot in client.watch(self._seconds):
                        if is_lost:
                            is_lost = False
                            write_stderr(f"neuron-ls: the monitor daemon at {display_address(path)} is back")
                        self._print(snapshot)
                        if self._done == self._times:
                            return ""
                    problem = f"the monitor daemon at {display_address(path)} has ended"
                except (NoDaemon, TimedOut) as error:
                    if not self._done:
                        raise
                    problem = str(error)
                if not is_lost:
                    is_lost = True
                    write_stderr(f"neuron-ls: {problem}; waiting until it is back")
                time.sleep(_AGAIN_SECONDS)

    def _print(self, snapshot: Snapshot) -> None:
        if self._chosen is None:
            self._chosen = self._device_indices(snapshot)
        rows = self._rows(snapshot, self._chosen)
        if self._fields:
            text = streamed_query_text(self._fields, rows, self._format, is_first=not self._done)
        else:
            text = loop_rows(rows)
            if self._needs_header(len(rows)):
                text = loop_header(snapshot) + text
        write_text(text)
        self._done += 1

    def _needs_header(self, lines: int) -> bool:
        """Returns whether to print the header: at the start, and on a terminal before the last header scrolls away."""
        before = self._lines_since_header
        if before is not None:
            before += lines
            height = terminal_size()[1] if os.isatty(_LOOP_STDOUT) else None
            if height is None or before + _HEADER_LINES < height:
                self._lines_since_header = before
                return False
        self._lines_since_header = lines
        return True
