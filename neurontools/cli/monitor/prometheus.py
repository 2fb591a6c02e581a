"""`neuron-monitor-prometheus`: reads the records of neuron-monitor from standard input and serves them as metrics."""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6

from neurontools.cli.line.about import about
from neurontools.cli.line.options import Option, parse
from neurontools.cli.line.output import reserve_standard_streams, tell, write_document
from neurontools.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, UserError
from neurontools.exporters.exposition import (
    OPENMETRICS_CONTENT_TYPE,
    TEXT_CONTENT_TYPE,
    openmetrics_format,
    text_format,
    wants_openmetrics,
)
from neurontools.exporters.process_families import process_families
from neurontools.exporters.record_metrics import RecordMetrics

DEFAULT_PORT = 8000
MAX_LINE_BYTES = 64 * 2**20
MAX_TOLD = 1000
_COMMAND = "neuron-monitor-prometheus"

OPTIONS = (
    Option("port", f"the port to serve metrics on; default: {DEFAULT_PORT}", short="p", value="PORT"),
    Option("address", "the address to serve metrics on; default: all", value="ADDRESS"),
    Option("enable-k8s-info", "write the records on to standard output, for a command that comes behind"),
    Option("completion", "print a completion script for this shell", value="SHELL", words=("bash", "zsh", "fish")),
    Option("version", "print the version", ends=True),
    Option("help", "print this text", short="h", ends=True),
)
USAGE = "neuron-monitor | neuron-monitor-prometheus [options]"
SUMMARY = "Serves the records of neuron-monitor, read from standard input, as metrics for Prometheus."
NOTES = """\
It ends when its input does. Metrics without this detour: neurond --metrics-listen :8000, see neurond(8).

Exit codes: 0 fine, 1 failure (the port is taken), 2 misuse, 130 interrupted.
"""


class Exposed:
    """The metrics of the records so far, for the threads that answer."""

    def __init__(self) -> None:
        self._metrics = RecordMetrics()
        self._lock = threading.Lock()

    def take_line(self, line: bytes) -> list[str]:
        """Takes a line of neuron-monitor in; returns what is wrong with it, in words."""
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("not a JSON object")
            with self._lock:
                return self._metrics.take(record)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return [f"a line is skipped: {type(error).__name__}: {error}"]

    def text(self, *, openmetrics: bool) -> bytes:
        """The metrics in a format."""
        write = openmetrics_format if openmetrics else text_format
        with self._lock:
            return write([*self._metrics.families(), *process_families()])


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    exposed: Exposed

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 120
    server: _Server

    def do_GET(self) -> None:
        """Metrics at every path but one, as the original does."""
        if self.path == "/favicon.ico":
            body, kind = b"", "image/x-icon"
        else:
            openmetrics = wants_openmetrics(self.headers.get("Accept", ""))
            body = self.server.exposed.text(openmetrics=openmetrics)
            kind = OPENMETRICS_CONTENT_TYPE if openmetrics else TEXT_CONTENT_TYPE
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Says nothing: scrapes are no news."""


def main() -> None:
    """Run the command and end the process."""
    reserve_standard_streams()
    try:
        exit_code = _run(sys.argv[1:])
    except UserError as error:
        tell(f"{_COMMAND}: {error}")
        exit_code = error.exit_code
    except KeyboardInterrupt:
        exit_code = EXIT_INTERRUPTED
    os._exit(exit_code)


def _run(arguments: list[str]) -> int:
    given = parse(OPTIONS, arguments)
    for name, print_about in _ABOUT.items():
        if name in given:
            write_document(print_about(given[name]).encode())
            return 0
    server = _serving(given.get("address", ""), _port(given.get("port")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    told: set[str] = set()
    while line := sys.stdin.buffer.readline(MAX_LINE_BYTES):
        for problem in server.exposed.take_line(line):
            what = problem.rpartition(": ")[0]
            if what not in told:  # once each, or a lasting fault fills the log
                told.add(what)
                tell(f"{_COMMAND}: {problem}")
        if len(told) > MAX_TOLD:
            told.clear()
        if "enable-k8s-info" in given:
            write_document(line)
    return 0


def _serving(address: str, port: int) -> _Server:
    kind = type("_Server6", (_Server,), {"address_family": AF_INET6}) if ":" in address else _Server
    try:
        server: _Server = kind((address, port), _Handler)
    except OSError as error:
        raise UserError(
            f"can't serve on {address or '*'}:{port}: {error.strerror}; give another --port", EXIT_FAILURE
        ) from None
    server.exposed = Exposed()
    return server


def _port(text: str | None) -> int:
    if text is None:
        return DEFAULT_PORT
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65535):
        raise UserError(f"--port: {text[:60]!r} is no port; give a number from 0 to 65535", EXIT_USAGE)
    return int(text)


_ABOUT = about(_COMMAND, sys.modules[__name__])


if __name__ == "__main__":
    main()
