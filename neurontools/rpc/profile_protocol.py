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
ACCEPTED = b"asked"
LONGEST_SECONDS = 3600.0
MOST_STEPS = 1_000_000

UNKNOWN, DENIED, UNABLE = "unknown", "denied", "unable"
"""Reasons for a refusal: no such process, not allowed, not possible."""

_REFUSED, _FAILED = b"refused", b"failed"
_LONGEST_BYTES = 64  # length limit of a request line in bytes
_MOST_PID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """How long to profile: for `seconds`, or until `steps` training steps are done if that is sooner."""

    seconds: float
    steps: int | None


def encode_request(pid: int, options: ProfileOptions) -> bytes:
    """Encodes a profile request from a client to the daemon."""
    return b"%s %d %s\n" % (PROFILE, pid, _numbers(options))


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
    return pid, _decode_options(seconds, steps)


def encode_forwarded_request(options: ProfileOptions) -> bytes:
    """Encodes the profile request that the daemon forwards to the process."""
    return b"%s %s\n" % (PROFILE, _numbers(options))


def decode_forwarded_request(value: bytes) -> ProfileOptions:
    """Decodes a forwarded profile request, given without its first word. Raises ValueError if it is malformed."""
    if len(value) > _LONGEST_BYTES:
        raise ValueError(f"{len(value)} bytes")
    seconds, steps = value.split(b" ")
    return _decode_options(seconds, steps)


def encode_refusal(reason: str, text: str) -> bytes:
    return b"%s %s %s\n" % (_REFUSED, reason.encode(), text.encode())


def decode_refusal(line: bytes) -> tuple[str, str]:
    """Decodes the daemon's refusal to reason and text. If it is malformed, the whole line is the text."""
    word, _, rest = line.partition(b" ")
    reason, _, text = rest.partition(b" ")
    refusal = text if word == _REFUSED and text else line
    return reason.decode("utf-8", "replace"), refusal.decode("utf-8", "replace")


def encode_failure(why: str) -> bytes:
    return b"%s %s\n" % (_FAILED, why.encode())


def is_failure(reply: bytes) -> bool:
    return reply.startswith(_FAILED + b" ")


def decode_failure(line: bytes) -> str:
    """Returns the text of a failure message. Returns any other line unchanged."""
    return line.removeprefix(_FAILED + b" ").decode("utf-8", "replace")


def _numbers(options: ProfileOptions) -> bytes:
    return b"%.6f %d" % (options.seconds, options.steps or 0)


def _decode_options(seconds: bytes, steps: bytes) -> ProfileOptions:
    options = ProfileOptions(float(seconds), int(steps) or None)
    if not isfinite(options.seconds) or not 0 < options.seconds <= LONGEST_SECONDS:
        raise ValueError(f"{options.seconds} seconds")
    if not 0 <= (options.steps or 0) <= MOST_STEPS:
        raise ValueError(f"{options.steps} steps")
    return options


def receive_descriptor(connection: socket.socket, most_bytes: int, flags: int = 0) -> tuple[bytes, int | None]:
    """Receives data and one file descriptor (close-on-exec), which the caller owns. Closes any further descriptors.

    `socket.recv_fds` of Python 3.11 ignores its flags, so this does not use it.
    """
    found = array.array("i")
    space = socket.CMSG_LEN(found.itemsize)
    received, ancillary, _, _ = connection.recvmsg(most_bytes, space, flags | socket.MSG_CMSG_CLOEXEC)
    for level, kind, descriptors in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(descriptors[: len(descriptors) - len(descriptors) % found.itemsize])
    for more in found[1:]:
        os.close(more)
    return received, found[0] if found else None
