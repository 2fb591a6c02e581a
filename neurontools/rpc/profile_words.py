"""The words with which a profile of a running process is asked for, as its three speakers have them.

On connections to the attach socket, a line each:

* an attached process says CAN_BE_PROFILED to its daemon;
* who asks says `profile PID SECONDS STEPS` on a connection of its own (STEPS is 0 for no such end), and with it comes a
  descriptor: a socket to which the process writes its profile, so that no name of a file goes from one process to
  another;
* the daemon answers PASSED, or `refused`, a reason and a text;
* it says `profile SECONDS STEPS` to the process, with the descriptor.

On that socket the process says ASKED and then its profile, or `failed` and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

CAN_BE_PROFILED = b"profiles"
PROFILE = b"profile"
PASSED = b"passed"
ASKED = b"asked"
LONGEST_SECONDS = 3600.0
MOST_STEPS = 1_000_000

UNKNOWN, DENIED, UNABLE = "unknown", "denied", "unable"
"""Reasons: there is no such process, who asks may not, and it can't be."""

_REFUSED, _FAILED = b"refused", b"failed"
_LONGEST_BYTES = 64  # of a request
_MOST_PID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """A profile of so many seconds, or of so many steps if they are done sooner."""

    seconds: float
    steps: int | None


def request_of(pid: int, wanted: Wanted) -> bytes:
    """What is said to a daemon."""
    return b"%s %d %s\n" % (PROFILE, pid, _numbers(wanted))


def is_request(line: bytes) -> bool:
    """Whether it is meant as one, whatever follows."""
    return line.startswith(PROFILE + b" ")


def read_request(line: bytes) -> tuple[int, Wanted]:
    """The process, and what is wanted of it; ValueError for rubbish."""
    if len(line) > _LONGEST_BYTES:
        raise ValueError(f"{len(line)} bytes")
    word, number, seconds, steps = line.split(b" ")
    pid = int(number)
    if word != PROFILE or not 0 < pid <= _MOST_PID:
        raise ValueError(f"PID {pid}")
    return pid, _wanted(seconds, steps)


def passed_on(wanted: Wanted) -> bytes:
    """What a daemon says to the process."""
    return b"%s %s\n" % (PROFILE, _numbers(wanted))


def read_passed_on(value: bytes) -> Wanted:
    """What is wanted, by what follows the first word; ValueError for rubbish."""
    if len(value) > _LONGEST_BYTES:
        raise ValueError(f"{len(value)} bytes")
    seconds, steps = value.split(b" ")
    return _wanted(seconds, steps)


def refusal_of(reason: str, text: str) -> bytes:
    """What a daemon answers that doesn't pass a request on."""
    return b"%s %s %s\n" % (_REFUSED, reason.encode(), text.encode())


def read_refusal(line: bytes) -> tuple[str, str]:
    """The reason and the text of an answer that isn't PASSED; of one that nobody understands all of it is the text."""
    word, _, rest = line.partition(b" ")
    reason, _, text = rest.partition(b" ")
    said = text if word == _REFUSED and text else line
    return reason.decode("utf-8", "replace"), said.decode("utf-8", "replace")


def failure_of(why: str) -> bytes:
    """What a process says that makes no profile."""
    return b"%s %s\n" % (_FAILED, why.encode())


def is_failure(said: bytes) -> bool:
    """Whether a process begins so to say why it makes none."""
    return said.startswith(_FAILED + b" ")


def read_failure(line: bytes) -> str:
    """Why it makes none; what it says where that is something else."""
    return line.removeprefix(_FAILED + b" ").decode("utf-8", "replace")


def _numbers(wanted: Wanted) -> bytes:
    return b"%.6f %d" % (wanted.seconds, wanted.steps or 0)


def _wanted(seconds: bytes, steps: bytes) -> Wanted:
    wanted = Wanted(float(seconds), int(steps) or None)
    if not isfinite(wanted.seconds) or not 0 < wanted.seconds <= LONGEST_SECONDS:
        raise ValueError(f"{wanted.seconds} seconds")
    if not 0 <= (wanted.steps or 0) <= MOST_STEPS:
        raise ValueError(f"{wanted.steps} steps")
    return wanted
