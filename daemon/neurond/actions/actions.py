"""Actions: what begins and what ends is handed to a thread, which runs what is configured, one after the other."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from neurond.actions.action_settings import ActionSettings
from neurond.actions.bounded_run import BoundedRun, Ended
from neurond.actions.rate_limit import RateLimit
from neurond.actions.webhook import WEBHOOK_VARIABLE
from neurond.journal.audit import Audit
from neurontools.model import Finding, Snapshot
from neurontools.model.problems import described
from neurontools.util.formats import json_text
from neurontools.util.rate_limited_log import RateLimitedLogger

_MOST_WAITING = 256
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0
_CLOSE_SECONDS = 1.0

_log = logging.getLogger(__name__)
_tell_trouble = RateLimitedLogger(_log, logging.WARNING)


@dataclass(frozen=True, slots=True)
class _Occasion:
    """One thing to do something about, as a document."""

    event: str
    key: str
    document: bytes


class Actions:
    """Belongs to the event loop's thread, which it never keeps waiting; `audit` is told what came of each.

    A failed command is tried again after `first_pause_seconds`; each further pause is twice as long.
    """

    def __init__(
        self, settings: ActionSettings, audit: Audit, first_pause_seconds: float = _FIRST_PAUSE_SECONDS
    ) -> None:
        self._settings = settings
        self._audit = audit
        self._first_pause_seconds = first_pause_seconds
        self._limit = RateLimit(settings.most_per_hour, time.monotonic())
        self._host = socket.gethostname()
        self._waiting: queue.Queue[_Occasion | None] = queue.Queue(_MOST_WAITING)
        self._ending = threading.Event()
        self._runner = BoundedRun()
        self._runs: list[tuple[str, tuple[str, ...], dict[str, str]]] = []
        if settings.command is not None:
            self._runs.append(("command", settings.command, {}))
        if settings.webhook is not None:
            post = (sys.executable, "-P", "-m", "neurond.actions.post")
            self._runs.append(("webhook", post, {WEBHOOK_VARIABLE: settings.webhook}))
        self._thread = threading.Thread(target=self._work, name="actions", daemon=True)
        self._thread.start()

    def tell(self, began: Iterable[Finding], ended: Iterable[Finding], snapshot: Snapshot) -> None:
        """Has something done about these, if it is asked for."""
        for event, findings in (("begins", began), ("ends", ended)):
            for finding in findings if event in self._settings.events else ():
                if self._settings.asked.counts(finding):
                    self._ask_for(event, finding, snapshot)

    def close(self) -> None:
        """Ends what runs; what still waits is not done."""
        self._ending.set()
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._runner.close()
        self._thread.join(_CLOSE_SECONDS)

    def _ask_for(self, event: str, finding: Finding, snapshot: Snapshot) -> None:
        key = key_of(finding)
        document = {
            "version": 1,
            "event": event,
            "at_unix_seconds": snapshot.taken_at_unix_seconds,
            "host": self._host,
            "instance_id": snapshot.instance.instance_id,
            "instance_type": snapshot.instance.instance_type,
            "source": snapshot.source.value,
            "key": key,
            "finding": described(finding),
        }
        occasion = _Occasion(event, key, json_text(document).encode() + b"\n")
        if not self._limit.admits(time.monotonic()):
            self._give_up(occasion, "rate_limited", f"more than {self._settings.most_per_hour} an hour")
            return
        try:
            self._waiting.put_nowait(occasion)
        except queue.Full:
            self._give_up(occasion, "dropped", f"{_MOST_WAITING} wait already")

    def _give_up(self, occasion: _Occasion, outcome: str, why: str) -> None:
        _tell_trouble("no action on %s, which %s: %s", occasion.key, occasion.event, why)
        self._note(occasion, {"action": None, "outcome": outcome})

    def _note(self, occasion: _Occasion, fields: Mapping[str, object]) -> None:
        self._audit.note("action", time.time(), {"on": occasion.event, "key": occasion.key, **fields})

    def _work(self) -> None:
        while (occasion := self._waiting.get()) is not None and not self._ending.is_set():
            for action, command, environment in self._runs:
                self._try(action, command, environment, occasion)

    def _try(self, action: str, command: tuple[str, ...], environment: dict[str, str], occasion: _Occasion) -> None:
        """Runs it until it is done, with growing pauses in between, as often as is configured."""
        pause_seconds = self._first_pause_seconds
        for attempt in range(1, self._settings.retries + 2):
            began_seconds = time.monotonic()
            ended = self._runner.run(command, occasion.document, self._settings.timeout_seconds, environment)
            if self._ending.is_set() and ended.outcome != "done":
                ended = Ended("interrupted", "the daemon ends")
            took_seconds = round(time.monotonic() - began_seconds, 3)
            fields = {"action": action, "attempt": attempt, "outcome": ended.outcome, "seconds": took_seconds}
            self._note(occasion, fields | ({"detail": ended.detail} if ended.detail else {}))
            if ended.outcome == "done":
                return
            if self._ending.wait(pause_seconds if attempt <= self._settings.retries else 0):
                return
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
        _tell_trouble("the %s of [actions] did not take %s: %s", action, occasion.key, ended.detail)


def key_of(finding: Finding) -> str:
    """A text that is the same when a finding begins and when it ends, and that no other has at that time."""
    return "/".join(str(part) for part in finding.identity if part not in (None, ()))
