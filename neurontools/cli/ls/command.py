"""`neuron-ls`: asks the monitor daemon for a finished document and prints it.

It has to start like a native tool, so this path imports neither argparse, re, json, typing nor anything else that can
be had by hand; what only errors and rare options need is imported where it is needed.
"""

from __future__ import annotations

import os
import sys
from time import monotonic

from neurontools.cli.line.about import about
from neurontools.cli.line.options import parse
from neurontools.cli.line.output import tell, write_document
from neurontools.cli.ls import options
from neurontools.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_NOT_FOUND, EXIT_USAGE, UserError
from neurontools.rpc import socket_path

TYPE_CHECKING = False  # as in typing, whose import takes too long
if TYPE_CHECKING:
    from neurontools.cli.ls.scripts import ScriptQuery
    from neurontools.rpc.ask import NoDaemon

TIMEOUT_SECONDS = 5.0
SIMULATE_VARIABLE = "NEURONTOOLS_SIMULATE"
_COMMAND = "neuron-ls"
_METHOD = "/neurontools.v1.MonitorService/RenderDeviceList"
_LNC_VARIABLES = ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE")

# RenderDeviceListRequest and RenderDeviceListResponse in neuron.proto.
_FORMAT, _WIDE, _ALL_PROCESSES, _TOPOLOGY, _LNC, _DEVICE_INDICES = 1, 2, 3, 4, 5, 6
_FORMAT_TABLE, _FORMAT_JSON = 1, 2
_DOCUMENT = 1
_FOR_SCRIPTS = frozenset(("query", "format", "wait-free", "timeout", "health"))


def main() -> None:
    """Run the command and end the process, without the interpreter's slow farewell."""
    try:
        write_document(_document(sys.argv[1:]))
        exit_code = 0
    except UserError as error:
        text = str(error)
        tell(text if isinstance(error, _NoDevices) else f"{_COMMAND}: {text}")
        exit_code = error.exit_code
    except KeyboardInterrupt:
        exit_code = EXIT_INTERRUPTED
    except SystemExit as end:  # a signal, see PrivateDaemon
        exit_code = end.code if isinstance(end.code, int) else EXIT_FAILURE
    os._exit(exit_code)


class _NoDevices(UserError):
    """Neither a device nor a daemon; the text is the original's whole line, which others parse."""


def _document(arguments: list[str]) -> bytes:
    """What goes to standard output."""
    given = parse(options.OPTIONS, arguments)
    for name, print_about in _ABOUT.items():
        if name in given:
            return print_about(given[name]).encode()
    query = _query(given)
    if "simulate" in given and "socket" in given:
        raise UserError("--simulate and --socket exclude each other; leave one of them out", EXIT_USAGE)
    instance_type = given.get("simulate")
    if instance_type is None:
        named = socket_path.named(given.get("socket"), os.environ)
        if named is not None:
            return query.answer(named)
        instance_type = os.environ.get(SIMULATE_VARIABLE)
    if instance_type:
        from neurontools.cli.daemon.private import PrivateDaemon

        with PrivateDaemon(instance_type) as daemon:
            return query.answer(daemon.socket_path)
    return _first_answer(query)


def _query(given: dict[str, str]) -> _Query | ScriptQuery:
    """What is asked. What scripts ask takes a slower path, which may import more."""
    if _FOR_SCRIPTS.isdisjoint(given):
        return _Query(given)
    from neurontools.cli.ls.scripts import ScriptQuery

    return ScriptQuery(given)


def _first_answer(query: _Query | ScriptQuery) -> bytes:
    """From the daemons where one would be; else from the devices themselves, if there are any."""
    failure: NoDaemon | None = None
    for candidate in socket_path.candidates(os.environ):
        if _is_absent(candidate):
            continue  # before anything is imported to ask
        from neurontools.rpc.ask import NoDaemon

        try:
            return query.answer(candidate)
        except NoDaemon as error:
            failure = failure if error.is_absent else error
    if failure is not None:
        raise failure
    document = query.answer_from_devices()
    if document is None:
        raise _no_devices()
    return document


def _is_absent(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        pass  # whoever asks will say what is wrong
    return False


class _Query:
    """What is asked: the request that the options and the environment make."""

    __slots__ = ("_deadline", "_devices", "_given", "_is_seen", "_logical_neuroncore_config")

    def __init__(self, given: dict[str, str]) -> None:
        self._devices = options.DeviceSelection(given.get("device", ""))
        self._is_seen = "show-all-procs" in given
        self._given = given
        self._logical_neuroncore_config = _logical_neuroncore_config()
        self._deadline = 0.0

    def answer(self, path: str) -> bytes:
        """The document of the daemon at this socket; NoDaemon or UserError."""
        from neurontools.rpc import wire

        self._deadline = monotonic() + TIMEOUT_SECONDS
        connection = None
        if self._is_seen:
            from neurontools.cli.daemon.observer import observe

            connection = observe(path)
        try:
            indices = sorted({*self._devices.indices, *self._resolved(path)})
            return self._render(path, self._request() + wire.encode_packed(_DEVICE_INDICES, indices))
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

    def answer_from_devices(self) -> bytes | None:
        """The document of this host's own devices, read without a daemon; None where there are none."""
        from neurontools.cli.ls import local_devices

        if not local_devices.has_devices(os.environ):
            return None
        return local_devices.device_list(self._given, self._devices, self._logical_neuroncore_config)

    def _render(self, path: str, request: bytes) -> bytes:
        from neurontools.rpc import wire
        from neurontools.rpc.ask import ask

        reply = ask(path, _METHOD, request, max(self._deadline - monotonic(), 0.001))
        try:
            document = wire.decode(reply)[_DOCUMENT][-1]
        except (ValueError, KeyError):
            document = None
        if not isinstance(document, bytes):
            raise UserError(f"the reply of unix:{path} holds no document; is something else listening there?")
        return document

    def _resolved(self, path: str) -> list[int]:
        """The indices of the devices that were given as PCI addresses."""
        if not self._devices.bdfs:
            return []
        import json

        from neurontools.rpc import wire

        devices = json.loads(self._render(path, wire.encode_uint(_FORMAT, _FORMAT_JSON)))
        index_of = {device["bdf"]: device["neuron_device"] for device in devices if device["bdf"]}
        for bdf in self._devices.bdfs:
            if bdf not in index_of:
                known = ", ".join(sorted(index_of)) or "none known; give an index"
                raise UserError(f"no device at {bdf} on this host; its PCI addresses: {known}", EXIT_NOT_FOUND)
        return [index_of[bdf] for bdf in self._devices.bdfs]


def _logical_neuroncore_config() -> int | None:
    """As `core_request.logical_neuroncore_config`, whose import is worth waiting for only when it will complain."""
    for name in _LNC_VARIABLES:
        text = os.environ.get(name, "").strip()
        if text in ("1", "2"):
            return int(text)
        if text:
            from neurontools.nrt import core_request

            try:
                return core_request.logical_neuroncore_config(os.environ)
            except core_request.InvalidCoreRequest as error:
                raise UserError(str(error), EXIT_USAGE) from error
    return None


def _no_devices() -> _NoDevices:
    """The original's line for a host without driver or device, the cause and the next step added to its error."""
    from time import gmtime, strftime

    now = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime())
    error = (
        "failed to discover Neuron devices: no driver on this host and no monitor daemon; start one with "
        "neurond --simulate trn1.32xlarge, or pass --simulate TYPE"
    )
    return _NoDevices(f'time="{now}" level=fatal msg="Failed to load MLA system information" error="{error}"')


def _help_query(_value: str) -> str:
    from neurontools.query.document import help_text

    return help_text()


_ABOUT = {"help-query": _help_query, **about(_COMMAND, options)}
