"""What scripts ask neuron-ls: --query, --wait-free, --health and --output-format.

Imported for these alone, so it may import more.
"""

from __future__ import annotations

import os

from neurontools import catalog, free_cores
from neurontools.cli.daemon.private import PrivateDaemon
from neurontools.cli.daemon.snapshots import DaemonSnapshots
from neurontools.cli.line.devices import DeviceSelection
from neurontools.cli.line.options import exclude_each_other
from neurontools.driver.environment import InvalidCoreRequest, Roots, logical_neuroncore_config
from neurontools.model import Snapshot, health
from neurontools.util.errors import EXIT_HEALTH_UNKNOWN, EXIT_NOT_FOUND, EXIT_UNHEALTHY, EXIT_USAGE, UserError
from neurontools.views.device_list import device_list_object
from neurontools.views.ls_reports import health_json, health_text
from neurontools.views.query_fields import QueryField, QueryRow, parse_fields, parse_format, query_rows, query_text

ASKING = ("query", "wait-free", "health", "output-format")  # one of them
MOST_CORES = 65536
LONGEST_WAIT_SECONDS = 31_536_000.0
_EXIT_CODES = {True: 0, False: EXIT_UNHEALTHY, None: EXIT_HEALTH_UNKNOWN}


class ScriptQuery:
    """One question of a script; `answer` is asked with the socket of a daemon."""

    interval_seconds: float | None = None  # at which a daemon of its own would have to look

    def __init__(self, given: dict[str, str]) -> None:
        for name, needed in (("format", "query"), ("timeout", "wait-free"), ("count", "loop")):
            if name in given and needed not in given:
                raise UserError(f"--{name} is for --{needed}; leave it out", EXIT_USAGE)
        exclude_each_other(given, *ASKING)
        exclude_each_other(given, "json-output", "output-format")
        if given.get("output-format", "json") != "json":
            shown = given["output-format"][:60]
            raise UserError(
                f"--output-format: {shown!r} is no format; give json, or leave it out for the table", EXIT_USAGE
            )
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
            self._count = _count(given["wait-free"])
            self._timeout_seconds = _timeout(given.get("timeout"))

    def answer(self, path: str) -> str:
        """What goes to standard output; `exit_code` is 5 or 7 afterwards when --health finds something, or can't."""
        snapshots = DaemonSnapshots(path)
        try:
            if "query" in self._given:
                return self._query(snapshots)
            if "health" in self._given:
                return self._health(snapshots)
            if "output-format" in self._given:
                return self._object(snapshots)
            return self._wait_free(snapshots)
        finally:
            snapshots.close()

    def answer_from_devices(self) -> str | None:
        """As `answer` for this host's own devices, by a daemon of our own; None where there are none."""
        if not Roots.from_environment(os.environ).has_devices:
            return None
        with PrivateDaemon(None, interval_seconds=self.interval_seconds) as daemon:
            return self.answer(daemon.socket_path)

    def _query(self, snapshots: DaemonSnapshots) -> str:
        snapshot = snapshots.latest()
        return query_text(self._fields, self._rows(snapshot, self._device_indices(snapshot)), self._format)

    def _rows(self, snapshot: Snapshot, device_indices: tuple[int, ...]) -> list[QueryRow]:
        """What the fields of the query are read from; no `device_indices`: of all devices."""
        lnc = _possible(self._lnc, snapshot)
        of_cores = any(field.is_of_core for field in self._fields)
        peak = catalog.peak_flops_per_core(snapshot.instance.instance_type)
        return query_rows(snapshot, peak, lnc, device_indices, of_cores=of_cores)

    def _health(self, snapshots: DaemonSnapshots) -> str:
        snapshot = snapshots.latest()
        chosen = self._device_indices(snapshot)
        verdicts = [v for v in health.verdicts(snapshot) if not chosen or v.device_index in chosen]
        write = health_json if "json-output" in self._given else health_text
        self.exit_code = _EXIT_CODES[health.is_healthy(verdicts)]
        return write(verdicts, snapshot)

    def _object(self, snapshots: DaemonSnapshots) -> str:
        snapshot = snapshots.latest()
        return device_list_object(
            snapshot,
            all_processes="show-all-procs" in self._given,
            logical_neuroncore_config=self._lnc,
            device_indices=self._device_indices(snapshot),
        )

    def _wait_free(self, snapshots: DaemonSnapshots) -> str:
        """A value for NEURON_RT_VISIBLE_CORES. Nothing is reserved: whoever starts first has them."""
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
        """The devices that --device chose; () for all."""
        by_bdf = {device.bdf: device.index for device in snapshot.devices if device.bdf}
        there = {device.index for device in snapshot.devices}
        for index in self._devices.indices:
            if index not in there:
                last = max(there, default=-1)
                raise UserError(f"no device {index} on this host; it has devices 0 to {last}", EXIT_NOT_FOUND)
        for bdf in self._devices.bdfs:
            if bdf not in by_bdf:
                known = ", ".join(sorted(by_bdf)) or "none known; give an index"
                raise UserError(f"no device at {bdf} on this host; its PCI addresses: {known}", EXIT_NOT_FOUND)
        return (*self._devices.indices, *(by_bdf[bdf] for bdf in self._devices.bdfs))


def _possible(lnc: int | None, snapshot: Snapshot) -> int | None:
    """An LNC that the hardware can't have counts as none, as in the list of devices."""
    return lnc if lnc in snapshot.instance.logical_neuroncore_configs else None


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= MOST_CORES):
        raise UserError(
            f"--wait-free: {text[:60]!r} is no number of NeuronCores; give a whole number from 1", EXIT_USAGE
        )
    return int(text)


def _timeout(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_WAIT_SECONDS:
        raise UserError(f"--timeout: {text[:60]!r} is no number of seconds; give one from 0", EXIT_USAGE)
    return seconds
