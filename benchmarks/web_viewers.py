"""Measures the first viewer of a page in a browser, and each further one."""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median

from measuring import Figure, compile_sources, core_share_percent, daemon, report

from neurontools.web.render_cache import MAX_VIEWERS_OF_CLIENT

MOST = 32
ROUNDS = 3
SECONDS = 20.0
REQUEST = b"GET /top/overview HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"


def view(port: int, count: int) -> None:
    """Opens this many streams and reads them for ever. Prints a line once all have received a page."""
    selector = selectors.DefaultSelector()
    silent = set()
    for number in range(count):
        source = (f"127.0.0.{1 + number // MAX_VIEWERS_OF_CLIENT}", 0)
        connection = socket.create_connection(("127.0.0.1", port), source_address=source)
        connection.sendall(REQUEST)
        selector.register(connection, selectors.EVENT_READ)
        silent.add(connection)
    while True:
        for key, _ in selector.select():
            data = key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
            if not data:
                raise SystemExit("a stream has ended")
            if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200 "):
                raise SystemExit(f"the daemon refused a stream: {data.splitlines()[0].decode()}")
            if key.fileobj in silent and b"event: changes" in data:
                silent.discard(key.fileobj)
                if not silent:
                    print("open", flush=True)


@contextlib.contextmanager
def viewers(port: int, count: int) -> Iterator[None]:
    """Runs this many viewers during a block."""
    if not count:
        yield
        return
    child = subprocess.Popen([sys.executable, __file__, "--view", str(port), str(count)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        if child.stdout.readline() != b"open\n":
            raise SystemExit("the viewers could not connect")
        yield
    finally:
        child.kill()
        child.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
    return number


def main() -> None:
    if sys.argv[1:2] == ["--view"]:
        view(int(sys.argv[2]), int(sys.argv[3]))
        return
    compile_sources()
    port = free_port()
    shares: dict[int, list[float]] = {0: [], 1: [], MOST: []}
    listening = ("--metrics-listen", f"127.0.0.1:{port}", "--web")
    with daemon("--simulate", "trn1.32xlarge", "--load", "steady", *listening) as running:
        time.sleep(3)
        for _ in range(ROUNDS):
            for count, found in shares.items():
                with viewers(port, count):
                    time.sleep(2)
                    found.append(core_share_percent(running.process, SECONDS))
    none, one, most = (median(found) for found in shares.values())
    report(
        f"neurond on trn1.32xlarge with 32 processes, the overview in browsers, {ROUNDS} times {SECONDS:.0f} s each",
        [
            Figure("nobody looks", none, "% of core"),
            Figure("1 viewer", one, "% of core"),
            Figure(f"{MOST} viewers", most, "% of core"),
            Figure("the first viewer", one - none, "% of core"),
            Figure("each further one", (most - one) / (MOST - 1), "% of core", "under 0.2"),
        ],
    )


if __name__ == "__main__":
    main()
