"""Requests for a profile of this process, which a daemon passes on from whoever may ask."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from neurontools.rpc import profile_words
from neurontools.runtime.reporting.daemon_lines import TakeLine
from neurontools.runtime.reporting.link import Link


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """A profile that is asked for.

    `channel` leads to who asked: the profile is written to it, and its end says that nobody waits any more.
    """

    wanted: profile_words.Wanted
    channel: socket.socket


class CaptureRequests:
    """Gives requests to `take`, in the thread that listens to the daemon; it may raise nothing and wait for nothing."""

    def __init__(self, take: Callable[[CaptureRequest], None]) -> None:
        self._take = take

    @property
    def takers(self) -> dict[bytes, TakeLine]:
        """What it takes of what a daemon says."""
        return {profile_words.PROFILE: self._asked}

    def attached(self, link: Link) -> None:
        """This process is attached to a daemon, which is told that profiles can be asked for."""
        link.say(profile_words.CAN_BE_PROFILED + b"\n")

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
            request = CaptureRequest(profile_words.read_passed_on(value), channel)
        except ValueError:
            channel.close()
            raise
        self._take(request)
