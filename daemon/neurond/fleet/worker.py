"""One process of a simulated fleet: several daemons in one event loop, whole but for the process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from neurond.fleet.losable_host import LosableHost
from neurond.settings import Settings
from neurond.system import log
from neurond.system.event_loop import timed_loop
from neurond.system.supervisor import exit_with_parent, most_files
from neurontools.util.errors import UserError

_STARTED_TOGETHER = 8
_LONGEST_FAILURE = 400


def main() -> None:
    """Serve the hosts whose settings stand on standard input, a line each; a line "ready" goes to standard output."""
    exit_with_parent(int(sys.argv[1]))
    log.begin("error")
    most_files()
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
        """One host, to the end; it has room until it serves for the first time."""

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


if __name__ == "__main__":
    main()
