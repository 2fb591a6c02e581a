"""The line protocol of profile requests between client, daemon and process."""

from __future__ import annotations

import array
import os
import socket
from dataclasses import dataclass
from math import isfinite

CAN_BE_PROFILED = b"profiles"
PROFILE = b"profile"
PASSED = b"passed"
ASKED = b"asked"
LONGEST_SECONDS = 3600.0
MOST_STEPS = 1_000_000

UNKNOWN, DENIED, UNABLE = "unknown", "denied", "unable"
"""Reasons for a refusal: no such process, not allowed, not possible."""

_REFUSED, _FAILED = b"refused", b"failed"
_LONGEST_BYTES = 64  # longest line of a request
_MOST_PID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """How long to profile: for `seconds`, or until `steps` training steps are done if that is sooner."""

    seconds: float
    steps: int | None


def request_of(pid: int, wanted: ProfileOptions) -> bytes:
    """Encodes a profile request from a client to the daemon."""
    return b"%s %d %s\n" % (PROFILE, pid, _numbers(wanted))


def is_request(line: bytes) -> bool:
    """Whether a line is a profile request, valid or not."""
    return line.startswith(PROFILE + b" ")


def read_request(line: bytes) -> tuple[int, ProfileOptions]:
    """Decodes a client's profile request to PID and options. Raises ValueError if it is malformed."""
    if len(line) > _LONGEST_BYTES:
        raise ValueError(f"{len(line)} bytes")
    word, number, seconds, steps = line.split(b" ")
    pid = int(number)
    if word != PROFILE or not 0 < pid <= _MOST_PID:
        raise ValueError(f"PID {pid}")
    return pid, _wanted(seconds, steps)


def forward_request(wanted: ProfileOptions) -> bytes:
    """Encodes the profile request that the daemon forwards to the process."""
    return b"%s %s\n" % (PROFILE, _numbers(wanted))


def read_passed_on(value: bytes) -> ProfileOptions:
    """Decodes a forwarded profile request, given without its first word. Raises ValueError if it is malformed."""
    if len(value) > _LONGEST_BYTES:
        raise ValueError(f"{len(value)} bytes")
    seconds, steps = value.split(b" ")
    return _wanted(seconds, steps)


def refusal_of(reason: str, text: str) -> bytes:
    """Encodes the daemon's refusal of a profile request."""
    return b"%s %s %s\n" % (_REFUSED, reason.encode(), text.encode())


def read_refusal(line: bytes) -> tuple[str, str]:
    """Decodes the daemon's refusal to reason and text. If it is malformed, the whole line is the text."""
    word, _, rest = line.partition(b" ")
    reason, _, text = rest.partition(b" ")
    said = text if word == _REFUSED and text else line
    return reason.decode("utf-8", "replace"), said.decode("utf-8", "replace")


def encode_failure(why: str) -> bytes:
    """Encodes the failure message of a process that cannot make a profile."""
    return b"%s %s\n" % (_FAILED, why.encode())


def is_failure(said: bytes) -> bool:
    """Whether the reply of a process starts with a failure message."""
    return said.startswith(_FAILED + b" ")


def read_failure(line: bytes) -> str:
    """Returns the text of a failure message. Returns any other line unchanged."""
    return line.removeprefix(_FAILED + b" ").decode("utf-8", "replace")


def _numbers(wanted: ProfileOptions) -> bytes:
    return b"%.6f %d" % (wanted.seconds, wanted.steps or 0)


def _wanted(seconds: bytes, steps: bytes) -> ProfileOptions:
    wanted = ProfileOptions(float(seconds), int(steps) or None)
    if not isfinite(wanted.seconds) or not 0 < wanted.seconds <= LONGEST_SECONDS:
        raise ValueError(f"{wanted.seconds} seconds")
    if not 0 <= (wanted.steps or 0) <= MOST_STEPS:
        raise ValueError(f"{wanted.steps} steps")
    return wanted


def receive_descriptor(connection: socket.socket, most_bytes: int, flags: int = 0) -> tuple[bytes, int | None]:
    """Receives data and one file descriptor (close-on-exec), which the caller owns. Closes any further descriptors.

    `socket.recv_fds` of Python 3.11 ignores its flags, so this does not use it.
    """
    found = array.array("i")
    space = socket.CMSG_LEN(found.itemsize)
    said, ancillary, _, _ = connection.recvmsg(most_bytes, space, flags | socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    for more in found[1:]:
        os.close(more)
    return said, found[0] if found else None
