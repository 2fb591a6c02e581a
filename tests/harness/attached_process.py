"""`attached_child.py` as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from tests.harness.paths import ATTACHED_CHILD
from tests.harness.running_daemon import RunningDaemon
from tests.harness.waiting import HANG_SECONDS


class AttachedProcess:
    """A process that is attached to a daemon; as a context it ends when the context does."""

    def __init__(
        self,
        daemon: RunningDaemon,
        *arguments: str | bytes,
        environment: Mapping[str, str] | None = None,
        new_session: bool = False,
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(ATTACHED_CHILD), daemon.socket, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="ascii",
            env={**os.environ, **(environment or {})},
            start_new_session=new_session,
        )
        self.pid = self._process.pid
        self.token = self._read()
        assert self.token, "the child did not attach"

    def __enter__(self) -> AttachedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def fork(self) -> int:
        """The PID of a child of it, which only waits."""
        self._order("fork")
        return int(self._read())

    def end(self, number: signal.Signals = signal.SIGKILL, *, wait: bool = True) -> None:
        """Ends it by a signal; a zombie is left where nobody waits for it."""
        self._process.send_signal(number)  # nothing where it was waited for already
        if wait:
            self._wait()

    def detach(self) -> None:
        """Closes its connection; the process goes on."""
        self._order("detach")

    def exit(self, code: int) -> None:
        self._order(f"exit {code}")
        self._wait()

    def _wait(self) -> None:
        """For its end, and not for that of its children, which have its pipes."""
        self._process.wait(HANG_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _order(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()
