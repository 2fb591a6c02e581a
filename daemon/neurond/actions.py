"""Runs the configured command and webhook when findings begin or end, one run at a time, in a thread."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neurond.journal.state_files import AuditLog
from neurontools.model import Finding, Severity, Snapshot
from neurontools.model.health import HealthCriteria, Owner, describe_finding
from neurontools.util.formats import json_text
from neurontools.util.rate_limited_log import RateLimitedLogger

_MOST_WAITING = 256
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0
_CLOSE_SECONDS = 1.0

_log = logging.getLogger(__name__)
_log_failure = RateLimitedLogger(_log, logging.WARNING)


@dataclass(frozen=True, slots=True)
class _ActionEvent:
    event: str
    key: str
    document: bytes


class FindingActions:
    """Runs the actions for findings in a thread of its own, and records each run in the audit log.

    A failed run is retried after `first_pause_seconds`; each further pause is twice as long. Call the methods only in
    the event loop's thread.
    """

    def __init__(
        self, settings: ActionSettings, audit: AuditLog, first_pause_seconds: float = _FIRST_PAUSE_SECONDS
    ) -> None:
        self._settings = settings
        self._audit = audit
        self._first_pause_seconds = first_pause_seconds
        self._limit = HourlyTokenBucket(settings.most_per_hour, time.monotonic())
        self._host = socket.gethostname()
        self._queue: queue.Queue[_ActionEvent | None] = queue.Queue(_MOST_WAITING)
        self._ending = threading.Event()
        self._runner = BoundedCommand()
        self._runs: list[tuple[str, tuple[str, ...]]] = []
        if settings.command is not None:
            self._runs.append(("command", settings.command))
        if settings.webhook_url_file is not None:
            self._runs.append(("webhook", (sys.executable, "-P", "-m", "neurond.webhook", settings.webhook_url_file)))
        self._thread = threading.Thread(target=self._work, name="actions", daemon=True)
        self._thread.start()

    def submit(self, began: Iterable[Finding], ended: Iterable[Finding], snapshot: Snapshot) -> None:
        for event, findings in (("begins", began), ("ends", ended)):
            for finding in findings if event in self._settings.events else ():
                if self._settings.criteria.includes(finding):
                    self._enqueue(event, finding, snapshot)

    def close(self) -> None:
        """Kills the running command and drops the queued actions."""
        self._ending.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._runner.close()
        self._thread.join(_CLOSE_SECONDS)

    def _enqueue(self, event: str, finding: Finding, snapshot: Snapshot) -> None:
        key = finding_key(finding)
        document = {
            "version": 1,
            "event": event,
            "at_unix_seconds": snapshot.taken_at_unix_seconds,
            "host": self._host,
            "instance_id": snapshot.instance.instance_id,
            "instance_type": snapshot.instance.instance_type,
            "source": snapshot.source.value,
            "key": key,
            "finding": describe_finding(finding),
        }
        action_event = _ActionEvent(event, key, json_text(document).encode() + b"\n")
        if not self._limit.try_take(time.monotonic()):
            self._drop(action_event, "rate_limited", f"more than {self._settings.most_per_hour} an hour")
            return
        try:
            self._queue.put_nowait(action_event)
        except queue.Full:
            self._drop(action_event, "dropped", f"{_MOST_WAITING} are already queued")

    def _drop(self, event: _ActionEvent, outcome: str, reason: str) -> None:
        _log_failure("no action on %s, which %s: %s", event.key, event.event, reason)
        self._record(event, {"action": None, "outcome": outcome})

    def _record(self, event: _ActionEvent, fields: Mapping[str, object]) -> None:
        self._audit.record("action", time.time(), {"on": event.event, "key": event.key, **fields})

    def _work(self) -> None:
        while (event := self._queue.get()) is not None and not self._ending.is_set():
            for action, command in self._runs:
                self._run_with_retries(action, command, event)

    def _run_with_retries(self, action: str, command: tuple[str, ...], event: _ActionEvent) -> None:
        pause_seconds = self._first_pause_seconds
        for attempt in range(1, self._settings.retries + 2):
            began_seconds = time.monotonic()
            ended = self._runner.run(command, event.document, self._settings.timeout_seconds)
            if self._ending.is_set() and ended.outcome != "done":
                ended = RunOutcome("interrupted", "the daemon ends")
            took_seconds = round(time.monotonic() - began_seconds, 3)
            fields = {"action": action, "attempt": attempt, "outcome": ended.outcome, "seconds": took_seconds}
            self._record(event, fields | ({"detail": ended.detail} if ended.detail else {}))
            if ended.outcome == "done":
                return
            if self._ending.wait(pause_seconds if attempt <= self._settings.retries else 0):
                return
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
        _log_failure("the %s of [actions] failed for %s: %s", action, event.key, ended.detail)


def finding_key(finding: Finding) -> str:
    """Returns an identifier of a finding. It is unique among current findings, and constant until the finding ends."""
    return "/".join(str(part) for part in finding.identity if part not in (None, ()))


@dataclass(frozen=True, slots=True)
class ActionSettings:
    criteria: HealthCriteria  # which findings cause actions
    events: frozenset[str]  # when actions run: "begins", "ends" or both
    command: tuple[str, ...] | None = None  # command to run: program and arguments, without a shell
    webhook_url_file: str | None = None  # file with the URL to which findings are posted, read again for each post
    timeout_seconds: float = 30.0
    retries: int = 2
    most_per_hour: int = 60

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> ActionSettings:
        owners = tuple(Owner) if table["problems"] == "all" else (Owner(table["problems"]),)
        return cls(
            HealthCriteria(Severity[table["level"].upper()], owners, tuple(table["only"]) or None),
            frozenset(table["on"]),
            tuple(table["command"]) if table["command"] else None,
            table["webhook_url_file"],
            table["timeout_seconds"],
            table["retries"],
            table["most_per_hour"],
        )


_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_INHERITED = ("PATH", *_PROXIES, "SSL_CERT_FILE", "SSL_CERT_DIR")


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run of a command ended: "done", "failed", "timed_out" or "not_started"; `detail` is for the log."""

    outcome: str
    detail: str = ""


class BoundedCommand:
    """Runs one program at a time, with a timeout. `close` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_closed = False
        self._child: subprocess.Popen[bytes] | None = None

    def run(self, command: Sequence[str], document: bytes, timeout_seconds: float) -> RunOutcome:
        """Runs a program with `document` on its standard input. The program shares the daemon's standard error."""
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        try:
            with self._lock:
                if self._is_closed:
                    return RunOutcome("not_started", "the daemon is ending")
                child = self._child = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    env={**inherited, "LANG": "C.UTF-8"},
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            return RunOutcome("not_started", str(error))
        try:
            child.communicate(document, timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            self._kill()
            child.wait()
            return RunOutcome("timed_out", f"no end within {timeout_seconds:g} s")
        finally:
            if child.stdin is not None:
                child.stdin.close()  # `communicate` leaves this pipe open after a timeout
            with self._lock:
                self._child = None
        code = child.returncode
        if code == 0:
            return RunOutcome("done")
        return RunOutcome("failed", f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}")

    def close(self) -> None:
        """Kills the running program with its process group, and prevents further runs."""
        with self._lock:
            self._is_closed = True
        self._kill()

    def _kill(self) -> None:
        with self._lock:
            if self._child is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._child.pid, signal.SIGKILL)


_HOUR_SECONDS = 3600.0


class HourlyTokenBucket:
    """A token bucket that refills within an hour, so that a burst of a whole hour's tokens is possible."""

    def __init__(self, most_per_hour: int, now_seconds: float) -> None:
        self._most = most_per_hour
        self._left = float(most_per_hour)
        self._at_seconds = now_seconds

    def try_take(self, now_seconds: float) -> bool:
        passed_seconds = max(0.0, now_seconds - self._at_seconds)
        self._left = min(self._most, self._left + passed_seconds * self._most / _HOUR_SECONDS)
        self._at_seconds = now_seconds
        if self._left < 1:
            return False
        self._left -= 1
        return True
