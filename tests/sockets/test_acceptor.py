"""A listening process that runs out of descriptors, for real."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.harness.waiting import HANG_SECONDS, wait_until

# Keeps every connection until a line comes in, then closes them all.
LISTENER = """
import asyncio, logging, resource, socket, sys
from neurontools.sockets.acceptor import Acceptor

logging.basicConfig(level="INFO", stream=sys.stderr, format="%(message)s")
kept = []

async def main():
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    refuse = lambda connection, reason: connection.send(b"full")
    Acceptor(listener, lambda connection, address: kept.append(connection), name="pages", refuse=refuse)
    asyncio.get_running_loop().add_reader(0, empty)
    print(listener.getsockname()[1], flush=True)
    await asyncio.Event().wait()

def empty():
    sys.stdin.readline()
    print(len(kept), flush=True)
    for connection in kept:
        connection.close()
    kept.clear()

resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
asyncio.run(main())
"""


@pytest.fixture
def listener() -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", LISTENER], text=True, **pipes)  # type: ignore[call-overload]
    yield process
    process.kill()
    process.communicate()


def test_out_of_descriptors_who_comes_is_refused_with_a_word(listener: subprocess.Popen[str]) -> None:
    stdin, stdout = listener.stdin, listener.stdout
    assert stdin is not None
    assert stdout is not None
    port = int(stdout.readline())

    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), HANG_SECONDS)

    def emptied() -> int:
        """Closes what the listener has kept; how many there were."""
        stdin.write("\n")
        stdin.flush()
        return int(stdout.readline())

    crowd = [connect() for _ in range(300)]

    def refused() -> list[bytes]:
        said = []
        for member in crowd:
            member.setblocking(False)
            try:
                said.append(member.recv(10))
            except BlockingIOError:
                said.append(b"kept")
        return said

    said: list[bytes] = []

    def told() -> int:
        """How many have been refused by now."""
        said.extend(refused())
        return said.count(b"full")

    wait_until(lambda: told() >= 300 - 40)
    kept: list[int] = []

    def all_seen() -> bool:
        kept.append(emptied())
        return told() + sum(kept) == 300

    wait_until(all_seen)
    with connect():
        wait_until(lambda: emptied() == 1)
    for member in crowd:
        member.close()
    listener.kill()
    assert listener.stderr is not None
    log = listener.stderr.read().splitlines()
    assert len(log) == 1
    assert log[0].startswith("pages: connections can't be taken: Too many open files; raise the limit")
