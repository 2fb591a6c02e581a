"""Requests for a profile of this process, which a daemon passes on from whoever may ask."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from neurontools.runtime.reporting.daemon_lines import TakeLine
from neurontools.runtime.reporting.link import Link

LONGEST_SECONDS = 3600.0
MOST_STEPS = 1_000_000


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """A profile that is asked for: of so many seconds, or of so many steps if they are done sooner.

    `channel` leads to who asked: the profile is written to it, and its end says that nobody waits any more.
    """

    seconds: float
    steps: int | None
    channel: socket.socket


class CaptureRequests:
    """Gives requests to `take`, in the thread that listens to the daemon; it may raise nothing and wait for nothing."""

    def __init__(self, take: Callable[[CaptureRequest], None]) -> None:
        self._take = take

    @property
    def takers(self) -> dict[bytes, TakeLine]:
        """What it takes of what a daemon says."""
        return {b"profile": self._asked}

    def attached(self, link: Link) -> None:
        """This process is attached to a daemon, which is told that profiles can be asked for."""
        link.say(b"profiles\n")

    def _asked(self, value: bytes, descriptor: Callable[[], int | None]) -> None:
        number = descriptor()
        if number is None:  # the system refused one more
            return
        try:
            channel = socket.socket(fileno=number)
        except OSError:
            os.close(number)
            return
        try:
            seconds, steps = value.split(b" ")
            request = CaptureRequest(float(seconds), int(steps) or None, channel)
            if not isfinite(request.seconds) or not 0 < request.seconds <= LONGEST_SECONDS:
                raise ValueError(request.seconds)
            if not 0 <= (request.steps or 0) <= MOST_STEPS:
                raise ValueError(request.steps)
        except ValueError:
            channel.close()
            raise
        self._take(request)
