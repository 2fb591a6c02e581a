"""The end of the daemon: what asks for it, and the time that others get."""

from __future__ import annotations

import asyncio
import signal


async def others_end(patience_seconds: float) -> None:
    """Lets all other tasks end by themselves: those of grpcio print a traceback when the loop's end cancels them."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=patience_seconds)


def asked_to_end(*, by_hang_up: bool) -> asyncio.Event:
    """Set by SIGTERM and SIGINT, and where that is meant by SIGHUP, unless nohup had it ignored."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or (by_hang_up and signal.getsignal(number) is not signal.SIG_IGN):
            loop.add_signal_handler(number, ending.set)
    return ending
