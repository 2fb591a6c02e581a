"""`neuron-ls`: asks the monitor daemon for a finished document and prints it.

It has to start like a native tool, so this path imports neither argparse, re, json, typing nor anything else that can
be had by hand; what only errors and options need is imported where it is needed, and so annotations that name it are
texts.
"""

import os
from time import monotonic

from neurontools.cli.line import choice, frame
from neurontools.util.errors import EXIT_NOT_FOUND, EXIT_USAGE, UserError

TYPE_CHECKING = False  # as in typing, whose import takes too long
if TYPE_CHECKING:
    from neurontools.cli.line.devices import DeviceSelection
    from neurontools.cli.ls.ended import EndedQuery
    from neurontools.cli.ls.relay import RelayQuery
    from neurontools.cli.ls.scripts import ScriptQuery

TIMEOUT_SECONDS = 5.0
_COMMAND = "neuron-ls"
_METHOD = "/neurontools.v1.MonitorService/RenderDeviceList"

# RenderDeviceListRequest and RenderDeviceListResponse in neuron.proto.
_FORMAT, _WIDE, _ALL_PROCESSES, _TOPOLOGY, _LNC, _DEVICE_INDICES = 1, 2, 3, 4, 5, 6
_FORMAT_TABLE, _FORMAT_JSON = 1, 2
_DOCUMENT = 1
_OF_ENDED = frozenset(("ended", "user", "since"))
_FOR_SCRIPTS = frozenset(("query", "format", "wait-free", "timeout", "health", "output-format", "loop", "count"))


def main() -> None:
    """Run the command and end the process."""
    frame.run(_COMMAND, _run)


def _run(arguments: list[str]) -> int:
    if not arguments:
        return _answer(_Query({}), {})
    from neurontools.cli.line.options import is_about_itself, parse
    from neurontools.cli.ls import options

    given = parse(options.OPTIONS, arguments)
    if is_about_itself(given):
        from neurontools.cli.line import about

        frame.write_text(about.text(_COMMAND, options, given))
        return 0
    if "help-query" in given:
        from neurontools.views.query_fields import field_help

        frame.write_text(field_help())
        return 0
    return _answer(_query(given), given)


def _answer(query: "_Query | ScriptQuery | EndedQuery | RelayQuery", given: dict[str, str]) -> int:
    """Prints the answer of the daemon that is asked, or of the devices themselves; the exit code."""
    document: str | None
    if given:
        from neurontools.cli.line.hosts import names_hosts, refuse_without_hosts

        refuse_without_hosts(given)
        if names_hosts(given):
            from neurontools.cli.ls import fleet

            return fleet.write(given)
    named, instance_type = choice.named_or_simulated(given, os.environ)
    if named is not None:
        document = query.answer(named)
    elif instance_type is not None:
        from neurontools.cli.daemon.private import PrivateDaemon

        with PrivateDaemon(instance_type, interval_seconds=query.interval_seconds) as daemon:
            document = query.answer(daemon.socket_path)
    else:
        document = choice.first_answer(query.answer, os.environ)
        if document is None:
            document = query.answer_from_devices()
        if document is None:
            raise _no_devices()
    frame.write_text(document)
    return query.exit_code


def _query(given: dict[str, str]) -> "_Query | ScriptQuery | EndedQuery | RelayQuery":
    """What is asked. What scripts ask takes a slower path, which may import more."""
    if "relay" in given:
        from neurontools.cli.ls.relay import RelayQuery

        return RelayQuery(given)
    if not _OF_ENDED.isdisjoint(given):
        from neurontools.cli.ls.ended import EndedQuery

        return EndedQuery(given)
    if _FOR_SCRIPTS.isdisjoint(given):
        return _Query(given)
    if "loop" in given:
        from neurontools.cli.ls.loop import LoopQuery

        return LoopQuery(given)
    from neurontools.cli.ls.scripts import ScriptQuery

    return ScriptQuery(given)


class _Query:
    """What is asked: the request that the options and the environment make."""

    __slots__ = ("_deadline", "_devices", "_given", "_is_seen", "_logical_neuroncore_config")
    exit_code = 0
    interval_seconds: float | None = None  # at which a daemon of its own would have to look

    def __init__(self, given: dict[str, str]) -> None:
        self._devices = _devices(given)
        self._is_seen = "show-all-procs" in given
        self._given = given
        self._logical_neuroncore_config = _logical_neuroncore_config()
        self._deadline = 0.0

    def answer(self, path: str) -> str:
        """The document of the daemon at this socket; NoDaemon or UserError."""
        from neurontools.rpc import wire

        self._deadline = monotonic() + TIMEOUT_SECONDS
        connection = None
        if self._is_seen:
            from neurontools.cli.daemon.observer import observe

            connection = observe(path)
        try:
            return self._render(path, self._request() + wire.encode_packed(_DEVICE_INDICES, self._indices(path)))
        finally:
            if connection is not None:
                connection.close()

    def _request(self) -> bytes:
        """The request without the devices."""
        from neurontools.rpc import wire

        given, lnc = self._given, self._logical_neuroncore_config
        request = wire.encode_uint(_FORMAT, _FORMAT_JSON if "json-output" in given else _FORMAT_TABLE)
        for field, name in ((_WIDE, "wide"), (_ALL_PROCESSES, "show-all-procs"), (_TOPOLOGY, "topology")):
            if name in given:
                request += wire.encode_bool(field, True)
        return request + wire.encode_uint(_LNC, lnc) if lnc else request

    def answer_from_devices(self) -> str | None:
        """The document of this host's own devices, read without a daemon; None where there are none."""
        from neurontools.driver.environment import Roots

        if not Roots.from_environment(os.environ).has_devices:
            return None
        from neurontools.cli.ls import local_devices

        return local_devices.device_list(self._given, self._devices, self._logical_neuroncore_config)

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
        """The indices of the devices that were given, those of PCI addresses asked for; none where all are meant."""
        if self._devices is None:
            return []
        indices = set(self._devices.indices)
        if self._devices.bdfs:
            import json

            from neurontools.rpc import wire

            devices = json.loads(self._render(path, wire.encode_uint(_FORMAT, _FORMAT_JSON)))
            index_of = {device["bdf"]: device["neuron_device"] for device in devices if device["bdf"]}
            for bdf in self._devices.bdfs:
                if bdf not in index_of:
                    known = ", ".join(sorted(index_of)) or "none known; give an index"
                    raise UserError(f"no device at {bdf} on this host; its PCI addresses: {known}", EXIT_NOT_FOUND)
                indices.add(index_of[bdf])
        return sorted(indices)


def _devices(given: dict[str, str]) -> "DeviceSelection | None":
    if "device" not in given:
        return None
    from neurontools.cli.line.devices import DeviceSelection

    return DeviceSelection(given["device"])


def _logical_neuroncore_config() -> int | None:
    """The LNC that the environment sets; what reads it is imported only where something is said to the runtime."""
    if not any(name.startswith("NEURON_") for name in os.environ):
        return None
    from neurontools.driver.environment import InvalidCoreRequest, logical_neuroncore_config

    try:
        return logical_neuroncore_config(os.environ)
    except InvalidCoreRequest as error:
        raise UserError(str(error), EXIT_USAGE) from error


def _no_devices() -> UserError:
    """The original's whole line for a host without driver or device, the cause and the next step added to its error."""
    from time import gmtime, strftime

    now = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime())
    error = (
        "failed to discover Neuron devices: no driver on this host and no monitor daemon; start one with "
        "neurond --simulate trn1.32xlarge, or pass --simulate TYPE"
    )
    line = f'time="{now}" level=fatal msg="Failed to load MLA system information" error="{error}"'
    return UserError(line, is_named=False)
