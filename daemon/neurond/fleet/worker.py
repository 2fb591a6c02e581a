"""One process of a simulated fleet. It runs several daemons in one event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from neurond.daemon import Daemon
from neurond.settings import Settings
from neurond.system.lifecycle import configure_logging, exit_with_parent, raise_file_limit, timed_loop
from neurontools.faults.requests import FaultRequest
from neurontools.util.errors import UserError

_STARTED_TOGETHER = 8
_LONGEST_FAILURE = 400


def main() -> None:
    """Serves the hosts whose settings are on standard input, one JSON object a line. Prints "ready" once all serve."""
    exit_with_parent(int(sys.argv[1]))
    configure_logging("error")
    raise_file_limit()
    settings = [Settings.from_json(line) for line in sys.stdin]
    with asyncio.Runner(loop_factory=timed_loop) as runner:
        sys.exit(runner.run(_serve(settings)))


async def _serve(all_settings: list[Settings]) -> int:
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, ending.set)
    room = asyncio.Semaphore(_STARTED_TOGETHER)
    ready: list[asyncio.Future[None]] = []

    async def serve(settings: Settings, is_ready: asyncio.Future[None]) -> None:
        """Runs the daemon of one simulated host. At most _STARTED_TOGETHER daemons start at the same time."""

        def served() -> None:
            if not is_ready.done():
                is_ready.set_result(None)
                room.release()

        await room.acquire()
        try:
            await LosableHost(settings).serve(ending, served)
        except UserError as error:
            if not is_ready.done():
                is_ready.set_exception(error)
                room.release()
        finally:
            served()

    tasks = []
    for settings in all_settings:
        ready.append(loop.create_future())
        tasks.append(asyncio.create_task(serve(settings, ready[-1])))
    failure = ""
    try:
        await asyncio.gather(*ready)
        os.write(1, b"ready\n")
        await ending.wait()
    except UserError as error:
        failure = str(error)
    ending.set()
    await asyncio.wait(tasks)
    if failure:
        os.write(1, f"{failure[:_LONGEST_FAILURE]}\n".encode())
    return 1 if failure else 0


# Delay before the host is lost, so that the client that injected the fault receives its reply.
_EXIT_FLUSH_SECONDS = 0.2


class LosableHost:
    """One simulated host. A fault can take it down. The host's next daemon gets the faults that have not begun."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._faults: Sequence[FaultRequest] = ()
        self._for_seconds: float | None = None

    async def serve(self, ending: asyncio.Event, on_ready: Callable[[], None]) -> None:
        """Serves until `ending` is set, except while the host is lost. Raises UserError if the daemon can't start."""
        while not ending.is_set():
            gone = asyncio.Event()
            following = asyncio.create_task(_follow(ending, gone))
            try:
                await Daemon(self._settings, partial(self._lose, gone), self._faults).run(gone, on_ready)
            finally:
                following.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._for_seconds):
                    await ending.wait()

    def _lose(self, gone: asyncio.Event, for_seconds: float | None, to_come: tuple[FaultRequest, ...]) -> None:
        self._for_seconds = for_seconds
        self._faults = tuple(_reduce_delay(fault, for_seconds or 0.0) for fault in to_come)
        asyncio.get_running_loop().call_later(_EXIT_FLUSH_SECONDS, gone.set)


def _reduce_delay(fault: FaultRequest, seconds: float) -> FaultRequest:
    """Returns the request with its delay reduced by the time for which the host is lost."""
    if fault.after_seconds is None:
        return fault
    return replace(fault, after_seconds=max(0.0, fault.after_seconds - seconds))


async def _follow(ending: asyncio.Event, gone: asyncio.Event) -> None:
    await ending.wait()
    gone.set()


if __name__ == "__main__":
    main()
