"""Requests for a profile of an attached process, passed on to it where who asks may have one.

The words are those of neurontools/rpc/profile_words.py. A process gets them on the connection that it is attached by.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import Protocol

from neurond.ownership.ledger import Ledger, UnknownToken
from neurond.peers.credentials import Credentials
from neurontools.rpc.profile_words import DENIED, UNABLE, UNKNOWN, Wanted, passed_on, read_request


class Refused(Exception):
    """It can't be passed on; `reason` is one of the words for it, the text says why and what to do."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class AttachedProcess(Protocol):
    """A process as this needs it."""

    token: str
    pid: int
    who: Credentials
    can_be_profiled: bool

    def say(self, line: bytes, descriptor: int | None = None) -> bool:
        """Writes a line to it; False where it doesn't read."""


def read(line: bytes) -> tuple[int, Wanted]:
    """The process that is asked, and for what; Refused for rubbish."""
    try:
        return read_request(line)
    except ValueError:
        raise Refused(UNABLE, "the daemon doesn't understand what is asked for; is it of another version?") from None


def pass_on(
    pid: int,
    wanted: Wanted,
    asker: Credentials,
    descriptor: int | None,
    attached: Iterable[AttachedProcess],
    ledger: Ledger,
) -> None:
    """Passes a request on to its process; Refused. The descriptor stays the caller's."""
    if descriptor is None or not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        raise Refused(UNABLE, "no socket came with the request")
    target = next((each for each in attached if each.pid == pid and _holds_cores(ledger, each.token)), None)
    if target is None:
        if any(holding.pid == pid and holding.synthetic for holding in ledger.holdings):
            raise Refused(UNABLE, f"PID {pid} is invented by the synthetic load and has nothing to profile")
        raise Refused(
            UNKNOWN, f"PID {pid} holds no NeuronCores of this daemon; neuron-ls shows who does, and under which PID"
        )
    if asker.uid not in (target.who.uid, 0):
        raise Refused(
            DENIED, f"PID {pid} is of user {target.who.uid}, and you are user {asker.uid}; use that account, or root"
        )
    if not target.can_be_profiled:
        version = ledger.known(target.token).runtime_version or "unknown"
        raise Refused(
            UNABLE,
            f"the runtime of PID {pid} (version {version}) takes no profiles on request; start the script with "
            "neuron-run --profile DIR",
        )
    if not target.say(passed_on(wanted), descriptor):
        raise Refused(UNABLE, f"PID {pid} doesn't read what the daemon says; look whether it is stopped")


def _holds_cores(ledger: Ledger, token: str) -> bool:
    try:
        return ledger.known(token).count > 0
    except UnknownToken:
        return False
