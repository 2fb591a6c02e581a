"""One run of a program, bounded in time: started without a shell, in a session and with an environment of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_PASSED_ON = ("PATH", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended: "done", "failed", "timed_out" or "not_started"; `detail` says more, for the log."""

    outcome: str
    detail: str = ""


class BoundedRun:
    """Runs one program at a time; `close`, from any thread, ends the one that runs, and none is begun after it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_closed = False
        self._child: subprocess.Popen[bytes] | None = None

    def run(
        self, command: Sequence[str], document: bytes, timeout_seconds: float, environment: Mapping[str, str]
    ) -> Ended:
        """Runs it with the document on its standard input. What it says on standard error goes where ours goes."""
        passed_on = {name: os.environ[name] for name in (*_PASSED_ON, *_CERTIFICATES) if name in os.environ}
        try:
            with self._lock:
                if self._is_closed:
                    return Ended("not_started", "the end has begun")
                child = self._child = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    env={**passed_on, "LANG": "C.UTF-8", **environment},
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            return Ended("not_started", str(error))
        try:
            child.communicate(document, timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            self._kill()
            child.wait()
            return Ended("timed_out", f"no end within {timeout_seconds:g} s")
        finally:
            if child.stdin is not None:
                child.stdin.close()  # `communicate` leaves the pipe open when it times out
            with self._lock:
                self._child = None
        return Ended("done") if child.returncode == 0 else Ended("failed", _how(child.returncode))

    def close(self) -> None:
        """Ends what runs, with what it has started in its session."""
        with self._lock:
            self._is_closed = True
        self._kill()

    def _kill(self) -> None:
        with self._lock:
            if self._child is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._child.pid, signal.SIGKILL)


def _how(returncode: int) -> str:
    return f"exit code {returncode}" if returncode > 0 else f"ended by {signal.Signals(-returncode).name}"
