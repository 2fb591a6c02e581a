"""Listening sockets: a process that runs out of descriptors, and places for those who come."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from neurontools.sockets.places import Place, Places
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


def test_out_of_descriptors_who_comes_is_refused_with_a_word() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", LISTENER], text=True, **pipes) as listener:  # type: ignore[call-overload]
        stdin, stdout, stderr = (
            stream for stream in (listener.stdin, listener.stdout, listener.stderr) if stream is not None
        )
        port = int(stdout.readline())

        def connect() -> socket.socket:
            return socket.create_connection(("127.0.0.1", port), HANG_SECONDS)

        def emptied() -> int:
            """Closes what the listener has kept; how many there were."""
            stdin.write("\n")
            stdin.flush()
            return int(stdout.readline())

        crowd = [connect() for _ in range(100)]
        refused: set[socket.socket] = set()

        def refused_count() -> int:
            for member in crowd:
                member.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    if member.recv(10) == b"full":
                        refused.add(member)
            return len(refused)

        try:
            wait_until(lambda: refused_count() >= 100 - 40)
            kept: list[int] = []
            wait_until(lambda: kept.append(emptied()) or refused_count() + sum(kept) == 100)  # type: ignore[func-returns-value]
            with connect():
                wait_until(lambda: emptied() == 1)
        finally:
            listener.kill()
        for member in crowd:
            member.close()
        (line,) = stderr.read().splitlines()
    assert line.startswith("pages: connections can't be taken: Too many open files; raise the limit")


def nothing() -> None:
    """Makes no room."""


def test_the_longest_waiting_makes_room() -> None:
    places = Places(most=3, share=3)
    gone: list[str] = []
    first, second, _ = (places.enter("a", lambda name=name: gone.append(name)) for name in "abc")  # type: ignore[misc]
    assert first is not None
    assert second is not None
    second.busy()
    first.busy()
    first.wait()
    assert places.enter("a", nothing) is not None
    assert gone == ["c"], "the first has waited for less long, the second is busy"
    assert places.enter("a", nothing) is not None
    assert gone == ["c", "a"]
    first.leave()
    assert len(places) == 3


def test_when_all_are_busy_nobody_comes_in() -> None:
    places = Places(most=4, share=2)
    for _ in range(2):
        place = places.enter("a", nothing)
        assert place is not None
        place.busy()
    assert places.enter("a", nothing) is None
    assert places.enter("b", nothing) is not None


@given(st.lists(st.tuples(st.sampled_from("enter busy wait leave".split()), st.integers(0, 9)), max_size=200))
def test_the_limits_hold_whatever_happens(steps: list[tuple[str, int]]) -> None:
    places = Places(most=6, share=2)
    inside: list[Place] = []
    for step, number in steps:
        if step == "enter":
            lost: list[Place] = []
            made: list[Place] = []

            def make_room(made: list[Place] = made, lost: list[Place] = lost) -> None:
                lost.extend(made)

            place = places.enter(number % 5, make_room)
            if place is not None:
                made.append(place)
                inside.append(place)
        elif inside:
            getattr(inside[number % len(inside)], step)()
        assert len(places) <= 6
    for place in inside:
        place.leave()
    assert len(places) == 0
