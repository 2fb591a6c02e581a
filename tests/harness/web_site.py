"""Pages for browsers, asked without one."""

from __future__ import annotations

import contextlib
import http.client
import signal
import ssl
import subprocess
from collections.abc import Callable, Iterator

from tests.harness.waiting import HANG_SECONDS

PAGE = "/top/overview"
STREAM = {"Accept": "text/event-stream"}


class Site:
    """Pages for browsers on a port of this host, as a client sees them."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None, client: str = "127.0.0.1") -> None:
        self.port = port
        self.client = client  # the address that connections come from
        self.context = context

    def connect(self) -> http.client.HTTPConnection:
        if self.context is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, HANG_SECONDS, (self.client, 0))
        return http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=HANG_SECONDS, source_address=(self.client, 0), context=self.context
        )

    def ask(
        self, path: str, headers: dict[str, str] | None = None, *, method: str = "GET", body: str | None = None
    ) -> tuple[int, http.client.HTTPMessage, str]:
        client = self.connect()
        try:
            client.request(method, path, body, headers or {})
            response = client.getresponse()
            return response.status, response.headers, response.read().decode()
        finally:
            client.close()

    @contextlib.contextmanager
    def stream(self, path: str = PAGE, **headers: str) -> Iterator[Callable[[], dict[str, str]]]:
        """Opens a stream; what is given reads the next event that has changes."""
        client = self.connect()
        client.request("GET", path, headers={**STREAM, **{name.replace("_", "-"): at for name, at in headers.items()}})
        response = client.getresponse()
        assert (response.status, response.headers["Content-Type"]) == (200, "text/event-stream"), response.read()

        def event() -> dict[str, str]:
            while True:
                fields: dict[str, str] = {}
                while line := response.readline().decode().strip():
                    name, _, value = line.partition(": ")
                    fields[name] = value
                if fields.get("event") == "changes":
                    return fields

        try:
            yield event
        finally:
            response.close()  # it has the connection too
            client.close()


class Served(Site):
    """A running neuron-top --serve."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        super().__init__(port)
        self.process = process

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(HANG_SECONDS)


Serve = Callable[..., Served]
