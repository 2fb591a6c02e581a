"""`neuron-ls`: requests a rendered document from the monitor daemon and prints it.

It must start as fast as a native tool, so this module avoids imports such as argparse, re, json and typing. Modules
for errors and options are imported where they are used, and annotations that need them are strings.
"""

import os
from time import monotonic

from neurontools.cli.daemon.connection import ask_first_daemon, choose_daemon
from neurontools.util.command_lifecycle import run_command, write_stderr, write_text
from neurontools.util.errors import EXIT_NOT_FOUND, EXIT_USAGE, UserError

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, whose import takes several milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping

    from neurontools.cli.line import DeviceSelection
    from neurontools.cli.ls.queries import EndedQuery, ScriptQuery
    from neurontools.cli.ls.relay import RelayQuery

TIMEOUT_SECONDS = 5.0
_COMMAND = "neuron-ls"
_METHOD = "/neurontools.v1.MonitorService/RenderDeviceList"

# Field numbers and enum values of RenderDeviceListRequest and RenderDeviceListResponse in neuron.proto.
_FORMAT, _WIDE, _ALL_PROCESSES, _TOPOLOGY, _LNC, _DEVICE_INDICES = 1, 2, 3, 4, 5, 6
_FORMAT_TABLE, _FORMAT_JSON = 1, 2
_DOCUMENT = 1
_ENDED_OPTIONS = frozenset(("ended", "user", "since"))
_SLOW_OPTIONS = frozenset(("query", "format", "wait-free", "timeout", "health", "output-format", "loop", "count"))


def main() -> None:
    run_command(_COMMAND, _run_ls)


def _run_ls(arguments: list[str]) -> int:
    if not arguments:
        return _print_answer(DeviceListQuery({}), {})
    from neurontools.cli.line import parse_options, print_information
    from neurontools.cli.ls import options

    given = parse_options(options.OPTIONS, arguments)
    if print_information(_COMMAND, options, given):
        return 0
    if "help-query" in given:
        from neurontools.views.query_fields import field_help

        write_text(field_help())
        return 0
    return _print_answer(_choose_query(given), given)


def _print_answer(query: "DeviceListQuery | ScriptQuery | EndedQuery | RelayQuery", given: dict[str, str]) -> int:
    """Prints the answer of the daemon and returns the exit code. Without a daemon, reads the devices directly."""
    document: str | None
    if given:
        from neurontools.cli.line import names_hosts, refuse_without_hosts

        refuse_without_hosts(given)
        if names_hosts(given):
            from neurontools.cli.ls import fleet

            return fleet.print_fleet(given)
    named, instance_type = choose_daemon(given, os.environ)
    if named is not None:
        document = query.answer(named)
    elif instance_type is not None:
        from neurontools.cli.daemon.private import PrivateDaemon

        with PrivateDaemon(instance_type, interval_seconds=query.interval_seconds) as daemon:
            document = query.answer(daemon.socket_path)
    else:
        document = ask_first_daemon(query.answer, os.environ)
        if document is None:
            document = query.answer_from_devices()
        if document is None:
            raise _no_devices_error()
    write_text(document)
    return query.exit_code


def _choose_query(given: dict[str, str]) -> "DeviceListQuery | ScriptQuery | EndedQuery | RelayQuery":
    """Returns the query for the given options, and imports only the modules that this query needs."""
    if "relay" in given:
        from neurontools.cli.ls.relay import RelayQuery

        return RelayQuery(given)
    if not _ENDED_OPTIONS.isdisjoint(given):
        from neurontools.cli.ls.queries import EndedQuery

        return EndedQuery(given)
    if _SLOW_OPTIONS.isdisjoint(given):
        return DeviceListQuery(given)
    if "loop" in given:
        from neurontools.cli.ls.queries import LoopQuery

        return LoopQuery(given)
    from neurontools.cli.ls.queries import ScriptQuery

    return ScriptQuery(given)


class DeviceListQuery:
    """Requests the rendered device list from a daemon."""

    __slots__ = ("_deadline", "_devices", "_given", "_is_observer", "_logical_neuroncore_config")
    exit_code = 0
    interval_seconds: float | None = None  # seconds between snapshots of a private daemon; None: its default

    def __init__(self, given: dict[str, str]) -> None:
        self._devices = None
        if "json-output" in given and "topology" in given:
            from neurontools.cli.line import exclude_each_other

            exclude_each_other(given, "json-output", "topology")
        if "device" in given:
            from neurontools.cli.line import DeviceSelection

            self._devices = DeviceSelection(given["device"])
        self._is_observer = "show-all-procs" in given
        self._given = given
        self._logical_neuroncore_config = _logical_neuroncore_config()
        self._deadline = 0.0

    def answer(self, path: str) -> str:
        """Returns the document that the daemon at this socket renders. Raises NoDaemon if no daemon answers."""
        from neurontools.rpc import wire

        self._deadline = monotonic() + TIMEOUT_SECONDS
        connection = None
        if self._is_observer:
            from neurontools.cli.daemon.connection import attach_observer

            connection = attach_observer(path)
        try:
            return self._render(path, self._request() + wire.encode_packed(_DEVICE_INDICES, self._indices(path)))
        finally:
            if connection is not None:
                connection.close()

    def _request(self) -> bytes:
        """Returns the encoded request without its device indices."""
        from neurontools.rpc import wire

        given, lnc = self._given, self._logical_neuroncore_config
        request = wire.encode_uint(_FORMAT, _FORMAT_JSON if "json-output" in given else _FORMAT_TABLE)
        for field, name in ((_WIDE, "wide"), (_ALL_PROCESSES, "show-all-procs"), (_TOPOLOGY, "topology")):
            if name in given:
                request += wire.encode_uint(field, 1)
        return request + wire.encode_uint(_LNC, lnc) if lnc else request

    def answer_from_devices(self) -> str | None:
        """Returns the document of this host's devices, read without a daemon; None if the host has no devices."""
        from neurontools.driver.environment import Roots

        if not Roots.from_environment(os.environ).has_devices:
            return None
        return local_device_list(self._given, self._devices, self._logical_neuroncore_config)

    def _render(self, path: str, request: bytes) -> str:
        from neurontools.rpc import wire
        from neurontools.rpc.ask import ask

        reply = ask(path, _METHOD, request, max(self._deadline - monotonic(), 0.001))
        try:
            document = wire.decode(reply)[_DOCUMENT][-1]
        except (ValueError, KeyError):
            document = None
        if not isinstance(document, bytes):
            raise UserError(f"the reply of unix:{path} holds no document; is something else listening there?")
        return document.decode("utf-8", "replace")

    def _indices(self, path: str) -> list[int]:
        """Returns the selected device indices; empty selects all. Resolves names through the daemon."""
        if self._devices is None:
            return []
        indices = set(self._devices.indices)
        if self._devices.names:
            import json

            from neurontools.rpc import wire

            devices = json.loads(self._render(path, wire.encode_uint(_FORMAT, _FORMAT_JSON)))
            index_of = {device["bdf"]: device["neuron_device"] for device in devices if device["bdf"]}
            if self._devices.has_serial_numbers:
                index_of.update(self._serial_number_indices(path))
            indices.update(self._devices.named_indices(index_of))
        return sorted(indices)

    def _serial_number_indices(self, path: str) -> dict[str, int]:
        """Returns the device indices by serial number from a snapshot, because the device list has none."""
        from time import time

        from neurontools.diagnose.host_state import METHOD, read_host_state
        from neurontools.rpc.ask import ask

        reply = ask(path, METHOD, b"", max(self._deadline - monotonic(), 0.001))
        try:
            return dict(read_host_state(path, reply, time()).index_by_serial_number)
        except ValueError:
            raise UserError(f"the reply of unix:{path} holds no snapshot; is something else listening there?") from None


def _logical_neuroncore_config() -> int | None:
    """Returns the logical NeuronCore configuration (LNC) from the environment; None if unset.

    Imports the parser only if a NEURON_ variable is set.
    """
    if not any(name.startswith("NEURON_") for name in os.environ):
        return None
    from neurontools.driver.environment import InvalidCoreRequest, logical_neuroncore_config

    try:
        return logical_neuroncore_config(os.environ)
    except InvalidCoreRequest as error:
        raise UserError(str(error), EXIT_USAGE) from error


def local_device_list(
    given: "Mapping[str, str]", selection: "DeviceSelection | None", logical_neuroncore_config: "int | None"
) -> str | None:
    """Returns the device list, read without a daemon; None if the driver shows no device.

    Prints warnings only to a terminal, because some programs treat any text on standard error as a failure.
    """
    from neurontools.util import light_imports

    light_imports.install_dataclasses()
    from neurontools.driver.environment import Roots
    from neurontools.driver.inventory import read_host_snapshot
    from neurontools.views.device_list import NoSuchDevice, device_list_json, device_list_table

    has_serial_numbers = selection is not None and selection.has_serial_numbers
    snapshot = read_host_snapshot(Roots.from_environment(os.environ), has_serial_numbers=has_serial_numbers)
    if snapshot is None:
        return None
    if os.isatty(2):
        for warning in snapshot.warnings:
            write_stderr(f"neuron-ls: {warning}")
    all_processes = "show-all-procs" in given
    indices: list[int] = []
    if selection is not None:
        by_name = {
            name: each.index
            for each in snapshot.devices
            for name in each.names
            if name != each.bdf or "bdf" not in each.inferred_fields
        }
        indices = [*selection.indices, *selection.named_indices(by_name)]
    try:
        if "json-output" in given:
            return device_list_json(
                snapshot,
                all_processes=all_processes,
                logical_neuroncore_config=logical_neuroncore_config,
                device_indices=indices,
            )
        return device_list_table(
            snapshot,
            wide="wide" in given,
            all_processes=all_processes,
            topology="topology" in given,
            logical_neuroncore_config=logical_neuroncore_config,
            device_indices=indices,
        )
    except NoSuchDevice as error:
        raise UserError(str(error), EXIT_NOT_FOUND) from None


def _no_devices_error() -> UserError:
    """Returns the error line of AWS's neuron-ls for a host without devices, plus the cause and next step."""
    from time import gmtime, strftime

    now = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime())
    error = (
        "failed to discover Neuron devices: no driver on this host and no monitor daemon; start one with "
        "neurond --simulate trn1.32xlarge, or pass --simulate TYPE"
    )
    line = f'time="{now}" level=fatal msg="Failed to load MLA system information" error="{error}"'
    return UserError(line, is_named=False)
