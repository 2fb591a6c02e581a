"""An HTTP server on this host that answers as a test says, and the requests that it received."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Reply:
    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class ReceivedRequest:
    method: str
    path: str
    headers: Message
    body: bytes
    connection: object


@contextmanager
def answering(reply: Callable[[ReceivedRequest], Reply] | Reply) -> Iterator[tuple[str, list[ReceivedRequest]]]:
    """The address of a server with these answers, and the requests that it received."""
    requests: list[ReceivedRequest] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            requests.append(ReceivedRequest(self.command, self.path, self.headers, body, self.client_address))
            found = reply if isinstance(reply, Reply) else reply(requests[-1])
            self.send_response(found.status)
            for name, value in found.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(found.body)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(found.body)

        do_GET = do_PUT = do_POST  # noqa: N815 - as http.server calls it

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
