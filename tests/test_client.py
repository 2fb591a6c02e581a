"""The blocking client against a real daemon."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from neurontools.client import Client, Closed, Lost


@contextmanager
def _daemon(socket: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    ready, tell = os.pipe()
    child = subprocess.Popen(
        [
            *(sys.executable, "-m", "neurond", "--simulate", "trn1.32xlarge", "--socket", str(socket)),
            *("--interval", "0.05", "--ready-fd", str(tell), "--exit-with-parent", *options),
        ],
        pass_fds=(tell,),
        stderr=subprocess.DEVNULL,
    )
    os.close(tell)
    try:
        assert os.read(ready, 64).startswith(b"ready")
        yield child
    finally:
        os.close(ready)
        child.terminate()
        child.wait()


def test_reads_snapshots_their_stream_and_their_past(tmp_path: Path) -> None:
    socket = tmp_path / "n.sock"
    with _daemon(socket, "--load", "steady"), Client(str(socket)) as client:
        first = client.snapshot()
        assert first.instance.instance_type == "trn1.32xlarge"
        assert len(first.processes) == 32
        watch = client.watch()
        sequences = [next(watch).sequence for _ in range(4)]
        assert sequences == sorted(set(sequences))
        past = [snapshot.sequence for snapshot in client.history()]
        assert past == sorted(past)
        assert past[-1] >= sequences[-1]
        assert next(snapshot.sequence for snapshot in client.history(after_sequence=past[-2])) == past[-1]


def test_close_ends_a_stream_that_another_thread_waits_for(tmp_path: Path) -> None:
    socket = tmp_path / "n.sock"
    with _daemon(socket) as daemon:
        client = Client(str(socket))
        arrived, ended = threading.Event(), threading.Event()

        def read() -> None:
            watch = client.watch(3600)
            next(watch)
            arrived.set()
            with pytest.raises(Closed):
                next(watch)
            ended.set()

        thread = threading.Thread(target=read)
        thread.start()
        assert arrived.wait(10)
        assert daemon.poll() is None
        client.close()
        assert ended.wait(10)
        thread.join()
        with pytest.raises(Closed):
            client.snapshot()


def test_a_missing_daemon_is_told_and_found_when_it_comes(tmp_path: Path) -> None:
    socket = tmp_path / "n.sock"
    with Client(str(socket)) as client:
        with pytest.raises(Lost, match="no monitor daemon at unix:"):
            client.snapshot()
        with _daemon(socket):
            found = threading.Event()
            while not found.is_set():
                try:
                    client.snapshot()
                except Lost:
                    found.wait(0.05)
                else:
                    found.set()
            watch = client.watch()
            next(watch)
        with pytest.raises(Lost):
            list(watch)
