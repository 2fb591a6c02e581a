"""A simulated host that can be lost: its daemon is gone, and comes back as after a boot, or never."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from neurond.daemon import Daemon
from neurond.settings import Settings
from neurontools.faults.request import FaultRequest

# Whoever injects it is answered before.
_LAST_WORDS_SECONDS = 0.2


class LosableHost:
    """One host of a fleet. Whether it is there goes by its faults; those that are to come outlive its daemon."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._faults: Sequence[FaultRequest] = ()
        self._for_seconds: float | None = None

    async def serve(self, ending: asyncio.Event, on_ready: Callable[[], None]) -> None:
        """Serves until `ending` is set, but for the times in which the host is lost; UserError as of the daemon."""
        while not ending.is_set():
            gone = asyncio.Event()
            following = asyncio.create_task(_follow(ending, gone))
            try:
                await Daemon(self._settings, self._lost(gone), self._faults).run(gone, on_ready)
            finally:
                following.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._for_seconds):
                    await ending.wait()

    def _lost(self, gone: asyncio.Event) -> Callable[[float | None, tuple[FaultRequest, ...]], None]:
        def lose(for_seconds: float | None, to_come: tuple[FaultRequest, ...]) -> None:
            self._for_seconds = for_seconds
            self._faults = tuple(_later(fault, for_seconds or 0.0) for fault in to_come)
            asyncio.get_running_loop().call_later(_LAST_WORDS_SECONDS, gone.set)

        return lose


def _later(fault: FaultRequest, seconds: float) -> FaultRequest:
    """The request as it is after so long, in which nothing could happen to the host."""
    if fault.after_seconds is None:
        return fault
    return replace(fault, after_seconds=max(0.0, fault.after_seconds - seconds))


async def _follow(ending: asyncio.Event, gone: asyncio.Event) -> None:
    await ending.wait()
    gone.set()
