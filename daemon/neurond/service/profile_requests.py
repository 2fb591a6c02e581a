"""Requests for a profile of an attached process, passed on to it where who asks may have one.

Who asks says `profile PID SECONDS STEPS` on a connection of its own to the attach socket (STEPS is 0 for no such end),
and with it comes a descriptor: a socket to which the process writes its profile, so that no name of a file goes from
one process to another. The answer is `passed`, or `refused`, a reason (unknown, denied or unable) and a text. What a
process has the daemon passes on as `profile SECONDS STEPS` with the descriptor, on the connection that it is attached
by, if it has said `profiles` there.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from neurond.ownership.ledger import Ledger, UnknownToken
from neurond.peers.credentials import Credentials

CAN_BE_PROFILED = b"profiles"
WORD = b"profile "
_REQUEST = re.compile(rb"profile (\d{1,10}) (\d{1,6}(?:\.\d{1,6})?) (\d{1,7})")


class Refused(Exception):
    """It can't be passed on; `reason` is unknown, denied or unable, the text says why and what to do."""

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


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """A profile of a process, of so many seconds or steps; the texts are those that it was asked for with."""

    pid: int
    seconds: bytes
    steps: bytes


def read(line: bytes) -> ProfileRequest:
    """The request in a line; Refused for rubbish."""
    found = _REQUEST.fullmatch(line)
    if found is None:
        raise Refused("unable", "the daemon doesn't understand what is asked for; is it of another version?")
    return ProfileRequest(int(found[1]), found[2], found[3])


def pass_on(
    request: ProfileRequest,
    asker: Credentials,
    descriptor: int | None,
    attached: Iterable[AttachedProcess],
    ledger: Ledger,
) -> None:
    """Passes a request on to its process; Refused. The descriptor stays the caller's."""
    pid = request.pid
    if descriptor is None or not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        raise Refused("unable", "no socket came with the request")
    target = next((each for each in attached if each.pid == pid and _holds_cores(ledger, each.token)), None)
    if target is None:
        if any(holding.pid == pid and holding.synthetic for holding in ledger.holdings):
            raise Refused("unable", f"PID {pid} is invented by the synthetic load and has nothing to profile")
        raise Refused(
            "unknown", f"PID {pid} holds no NeuronCores of this daemon; neuron-ls shows who does, and under which PID"
        )
    if asker.uid not in (target.who.uid, 0):
        raise Refused(
            "denied", f"PID {pid} is of user {target.who.uid}, and you are user {asker.uid}; use that account, or root"
        )
    if not target.can_be_profiled:
        version = ledger.known(target.token).runtime_version or "unknown"
        raise Refused(
            "unable",
            f"the runtime of PID {pid} (version {version}) takes no profiles on request; start the script with "
            "neuron-run --profile DIR",
        )
    line = WORD + request.seconds + b" " + request.steps + b"\n"
    if not target.say(line, descriptor):
        raise Refused("unable", f"PID {pid} doesn't read what the daemon says; look whether it is stopped")


def _holds_cores(ledger: Ledger, token: str) -> bool:
    try:
        return ledger.known(token).count > 0
    except UnknownToken:
        return False
