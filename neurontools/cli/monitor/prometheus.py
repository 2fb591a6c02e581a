"""`neuron-monitor-prometheus`: reads the records of neuron-monitor from standard input and serves them as metrics."""

from __future__ import annotations

import asyncio
import io
import json
import os
import resource
import select
import sys
import threading

from neurontools.cli.line import (
    END_CODES,
    INFORMATION_OPTIONS,
    Option,
    parse_options,
    print_information,
    whole_option,
)
from neurontools.exporters.exposition import Exposition, metrics_page
from neurontools.exporters.process_families import process_families
from neurontools.exporters.record_metrics import RecordMetrics, RecordProblem
from neurontools.net.http_server import HttpLimits, HttpServer
from neurontools.net.http_site import CompressibleDocument, HttpAccess, HttpPage, HttpResponse, Site
from neurontools.util.command_lifecycle import run_command, write_document, write_stderr
from neurontools.util.errors import EXIT_FAILURE, EXIT_USAGE, UserError

DEFAULT_PORT = 8000
MAX_LINE_BYTES = 64 * 2**20
MAX_REPORTED = 1000
_SIGNAL_SECONDS = 0.5
_COMMAND = "neuron-monitor-prometheus"

OPTIONS = (
    Option("port", f"the port to serve metrics on; default: {DEFAULT_PORT}", short="p", value="PORT"),
    Option("address", "the address to serve metrics on; default: all", value="ADDRESS"),
    Option("enable-k8s-info", "also write the records to standard output, for the next command in a pipe"),
    *INFORMATION_OPTIONS,
)
USAGE = "neuron-monitor | neuron-monitor-prometheus [options]"
SUMMARY = "Serves the records of neuron-monitor, read from standard input, as metrics for Prometheus."
NOTES = """\
It ends at the end of its input. Metrics without this command: neurond --metrics-listen :8000, see neurond(8).
"""
EXIT_CODES = (
    (0, "the input ended"),
    (1, "the port is unavailable, an option is unknown, or an operation failed"),
    (2, "an option has an invalid value"),
    *END_CODES,
)


class _StandardInput(io.RawIOBase):
    """Standard input, whose reading a signal interrupts within half a second.

    Python runs a signal handler only after a system call. If a signal came just before read(), the handler would wait
    for the next record.
    """

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # Python 3.11 has no Buffer
        while not select.select([0], [], [], _SIGNAL_SECONDS)[0]:
            pass
        return os.readv(0, [buffer])


class RecordExposition:
    """Metrics of the records read so far. One thread adds records; another thread renders metrics."""

    def __init__(self) -> None:
        self._metrics = RecordMetrics()
        self._lock = threading.Lock()
        self._expositions = {kind: Exposition(openmetrics=kind) for kind in (False, True)}
        self._texts: dict[bool, CompressibleDocument] = {}  # rendered metrics of the latest record

    def add_line(self, line: bytes) -> list[RecordProblem]:
        """Adds one line, a JSON record of neuron-monitor. Returns the problems found in the record."""
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("not a JSON object")
            with self._lock:
                self._texts.clear()
                return self._metrics.add_record(record)
        except (ValueError, RecursionError) as error:
            return [RecordProblem("a line is skipped", str(error))]

    def text(self, *, openmetrics: bool) -> CompressibleDocument:
        """Returns the metrics as OpenMetrics or Prometheus text, cached until the next record."""
        with self._lock:
            text = self._texts.get(openmetrics)
            if text is None:
                families = [*self._metrics.families(), *process_families()]
                text = self._texts[openmetrics] = self._expositions[openmetrics].document(families)
            return text


def main() -> None:
    run_command(_COMMAND, _run_prometheus)


def _run_prometheus(arguments: list[str]) -> int:
    given = parse_options(OPTIONS, arguments)
    if print_information(_COMMAND, sys.modules[__name__], given):
        return 0
    exposed = RecordExposition()
    _serve(exposed, given.get("address", ""), whole_option(given, "port", DEFAULT_PORT, 0, 65535))
    reported: set[str] = set()
    source = io.BufferedReader(_StandardInput(), 2**16)
    while line := source.readline(MAX_LINE_BYTES):
        for problem in exposed.add_line(line):
            # Writes one message per kind of problem, so that a lasting error does not fill the log.
            if problem.description not in reported:
                reported.add(problem.description)
                write_stderr(f"{_COMMAND}: {problem.description}: {problem.detail}")
        if len(reported) > MAX_REPORTED:
            reported.clear()
        if "enable-k8s-info" in given:
            write_document(line)
    return 0


def _serve(exposed: RecordExposition, address: str, port: int) -> None:
    """Starts the HTTP server in a daemon thread, which serves until the process ends."""
    icon = HttpPage(lambda _: HttpResponse(b"", "image/x-icon"), is_open=True)
    # Serves metrics at every path except /favicon.ico, as AWS's tool does.
    site = Site({"/favicon.ico": icon}, HttpPage(metrics_page(exposed.text), is_open=True), HttpAccess())
    most_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="http", daemon=True).start()

    async def listen() -> None:
        await HttpServer(site, name=_COMMAND, limits=HttpLimits().with_files(most_files)).listen(address or None, port)

    try:
        asyncio.run_coroutine_threadsafe(listen(), loop).result()
    except OSError as error:
        raise UserError(
            f"can't serve on {address or '*'}:{port}: {error.strerror}; give another --port", EXIT_FAILURE
        ) from None
    except (TypeError, UnicodeError):  # an invalid host name
        raise UserError(f"can't serve on {address}: that is no host name; give another --address", EXIT_USAGE) from None


if __name__ == "__main__":
    main()
