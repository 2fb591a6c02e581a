"""`neuron-mcp`: a read-only server of the Model Context Protocol (MCP), for agents that answer operators."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from neurontools.cli.daemon.connection import choose_daemon
from neurontools.cli.daemon.private import PrivateDaemon
from neurontools.cli.line import (
    END_CODES,
    FILES,
    HOST_OPTION_NAMES,
    HOST_OPTIONS,
    INFORMATION_OPTIONS,
    SERVE_CONFIG_OPTION,
    SIMULATE_OPTION,
    SOCKET_OPTION,
    TLS_OPTIONS,
    Option,
    exclude_each_other,
    names_hosts,
    parse_options,
    print_information,
    refuse_without_hosts,
)
from neurontools.util.command_lifecycle import EndedBySignal, run_command
from neurontools.util.errors import EXIT_FAILURE, EXIT_USAGE, UserError

_COMMAND = "neuron-mcp"
OPTIONS = (
    Option("serve", "serve HTTP at this address instead of standard streams, as 127.0.0.1:8765", value="ADDRESS"),
    SERVE_CONFIG_OPTION,
    Option(
        "directory", "let agents read profiles and run summaries below this directory", value="DIR", completes=FILES
    ),
    SOCKET_OPTION,
    SIMULATE_OPTION,
    *HOST_OPTIONS,
    *TLS_OPTIONS,
    *INFORMATION_OPTIONS,
)
USAGE = "neuron-mcp [options]"
SUMMARY = (
    "Answers the questions of an agent about this host, or many, over the Model Context Protocol.\n"
    "All tools are read-only. An MCP client starts this command and talks to it over standard streams."
)
NOTES = """\
Needs the extra mcp: pip install 'neurontools[mcp]'
"""
EXIT_CODES = (
    (0, "the client closed standard input"),
    (1, "an option is unknown, the package mcp is missing, or the address cannot be used"),
    (2, "an option or a file has an invalid value, or other hosts could reach the address without a key"),
    (6, "there is no such file"),
    (12, "a daemon over TLS does not answer"),
    (124, "a daemon did not start or answer in time"),
    *END_CODES,
)


def main() -> None:
    run_command(_COMMAND, _run)


def _run(arguments: list[str]) -> int:
    given = parse_options(OPTIONS, arguments)
    if print_information(_COMMAND, sys.modules[__name__], given):
        return 0
    exclude_each_other(given, *HOST_OPTION_NAMES)
    refuse_without_hosts(given)
    for name in ("socket", "simulate"):
        if names_hosts(given):
            exclude_each_other(given, name, next(each for each in HOST_OPTION_NAMES if each in given))
    _require_package()
    from neurontools.cli.daemon.fleet import requested_hosts
    from neurontools.cli.mcp.host_access import HostAccess
    from neurontools.cli.serving import Listening, SignalFuture, run_until_signal, serve_settings

    listening = Listening.from_options(_COMMAND, given) if "serve" in given else None
    hiding = (listening.settings if listening else serve_settings(given, is_shown=_is_shown_on_streams)).hiding
    if "directory" in given and not os.path.isdir(given["directory"]):  # noqa: PTH112
        raise UserError(f"--directory {given['directory'][:200]}: no such directory; give one", EXIT_USAGE)
    fleet: Mapping[str, str] = {}
    if names_hosts(given):
        fleet = {name: given[name] for name in (*HOST_OPTION_NAMES, *_OF_FLEETS) if name in given}
        if "prometheus" not in given:
            requested_hosts(given)
    with ExitStack() as stack:
        socket_path = None if fleet else _socket_path(given, stack)
        access = HostAccess(socket_path, fleet, given.get("directory"), hiding)
        from neurontools.cli.mcp.server import serve_http, serve_streams

        async def serve(stop: SignalFuture) -> int:
            return await (serve_streams(access, stop) if listening is None else serve_http(access, listening, stop))

        number = run_until_signal(serve)
    if number:
        raise EndedBySignal(number)
    return 0


_OF_FLEETS = ("prometheus-config", *(option.name for option in TLS_OPTIONS))


def _is_shown_on_streams(_options: Mapping[str, Any]) -> bool:
    """Returns True: the client on the standard streams has this user's own rights."""
    return True


def _socket_path(given: dict[str, str], stack: ExitStack) -> str | None:
    """Returns the socket of the daemon to ask; None to look for one at each call. May start a private daemon."""
    named, instance_type = choose_daemon(given, os.environ)
    if named is None and instance_type is not None:
        return stack.enter_context(PrivateDaemon(instance_type)).socket_path
    return named


def _require_package() -> None:
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        raise UserError("the package mcp is not installed; pip install 'neurontools[mcp]'", EXIT_FAILURE)


if __name__ == "__main__":
    main()
