"""What a daemon says to this process on the attach connection, line by line, and who takes it.

Lines come in order; one that begins with a word that nobody takes is passed over, as of a newer daemon. A line may
bring a descriptor along, which belongs to the next line that takes one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from threading import Thread

from neurontools.runtime.reporting.link import Link

_LONGEST_BYTES = 2**16  # of a line that has not ended

TakeLine = Callable[[bytes, Callable[[], int | None]], None]
"""Takes what follows the first word, and what gives the descriptor that came with it. For what can't be meant, which is
passed over, it raises ValueError, KeyError or TypeError."""


class DaemonLines:
    """Listens to one daemon after the other; `takers` by first word."""

    def __init__(self, takers: Mapping[bytes, TakeLine]) -> None:
        self._takers = takers

    def listen(self, link: Link) -> None:
        """Takes what a daemon has said by now, and goes on listening in a thread.

        Where the system refuses a thread, only what was said already is heard.
        """
        heard = _Heard(self._takers)
        while said := link.heard(waits=False):
            heard.take(*said)
        try:
            Thread(target=heard.follow, args=(link,), name="neurontools-daemon-lines", daemon=True).start()
        except RuntimeError:
            heard.close()


class _Heard:
    """What one daemon has said and was not taken yet."""

    def __init__(self, takers: Mapping[bytes, TakeLine]) -> None:
        self._takers = takers
        self._rest = b""
        self._descriptors: list[int] = []

    def follow(self, link: Link) -> None:
        while said := link.heard(waits=True):
            self.take(*said)
        self.close()

    def take(self, said: bytes, descriptor: int | None) -> None:
        """Takes whole lines."""
        if descriptor is not None:
            self._descriptors.append(descriptor)
        *lines, rest = (self._rest + said).split(b"\n")
        self._rest = rest if len(rest) <= _LONGEST_BYTES else b""
        for line in lines:
            word, _, value = line.partition(b" ")
            taker = self._takers.get(word)
            if taker is not None:
                try:
                    taker(value, self._descriptor)
                except (ValueError, KeyError, TypeError):
                    continue

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _descriptor(self) -> int | None:
        return self._descriptors.pop(0) if self._descriptors else None
