"""What the kubelet has given to pods: its pod-resources API, asked every few seconds where its socket exists."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from neurond.attribution.pod_resources import METHOD, read_allocations
from neurontools.model import PodAllocation
from neurontools.util.terminal import excerpt

MAX_REPLY_BYTES = 16 * 2**20  # as much as the kubelet's own clients take
_MAX_TROUBLE_CHARACTERS = 200

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a kubelet is asked, and for how long its last answer holds when it gives no other."""

    interval_seconds: float = 10.0
    reply_seconds: float = 5.0
    first_retry_seconds: float = 1.0  # doubled with each failure
    longest_retry_seconds: float = 60.0
    held_seconds: float = 300.0


class KubeletWatcher:
    """Asks the kubelet again and again and hands on what it says: () where there is no kubelet.

    One that is silent, slow or garbled changes nothing for `held_seconds`: it is being restarted more often than it has
    taken all devices from all pods. It is asked again after growing pauses.
    """

    def __init__(
        self,
        on_allocations: Callable[[tuple[PodAllocation, ...]], None],
        socket: str,
        patience: Patience | None = None,
    ) -> None:
        self._on_allocations = on_allocations
        self._socket = socket
        self._patience = patience or Patience()
        self._task: asyncio.Task[None] | None = None
        self._answered_at_seconds: float | None = None  # None: there is no answer that holds
        self._failures = 0
        self._trouble = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the kubelet's answers, if anything is."""
        if not self._trouble:
            return ()
        shown = "pods are shown as it said last" if self._answered_at_seconds is not None else "pods may have no names"
        return (f"the kubelet at unix:{self._socket} doesn't tell its pods ({self._trouble}): {shown}",)

    def start(self) -> None:
        """Begins to ask, in a task of the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """Ends the task."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _watch(self) -> None:
        while True:
            pause_seconds = await self.ask_once()
            await asyncio.sleep(pause_seconds)

    async def ask_once(self) -> float:
        """Asks the kubelet once and passes its answer on; returns the seconds to wait before the next question."""
        if os.path.exists(self._socket):  # noqa: ASYNC240, PTH110 - a look at a local directory
            try:
                found = await self._ask()
            except Exception as error:
                # Whatever a reply does to us, the next one may be a good one.
                return self._failed(_cause(error))
            return self._answered(found)
        if self._answered_at_seconds is not None or self._trouble:
            return self._failed("its socket is gone")
        return self._patience.interval_seconds

    async def _ask(self) -> tuple[PodAllocation, ...]:
        options = (("grpc.max_receive_message_length", MAX_REPLY_BYTES), ("grpc.use_local_subchannel_pool", 1))
        async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=options) as channel:
            ask: Any = channel.unary_unary(METHOD)  # without serialisers: bytes as they are
            reply: bytes = await ask(b"", timeout=self._patience.reply_seconds)
        # A megabyte takes a quarter of a second to read, in which the event loop has others to serve.
        return await asyncio.to_thread(lambda: tuple(read_allocations(reply)))

    def _answered(self, found: tuple[PodAllocation, ...]) -> float:
        if self._trouble:
            _log.info("the kubelet at unix:%s tells its pods again", self._socket)
        self._answered_at_seconds, self._failures, self._trouble = time.monotonic(), 0, ""
        self._on_allocations(found)
        return self._patience.interval_seconds

    def _failed(self, trouble: str) -> float:
        answered = self._answered_at_seconds
        if answered is not None and time.monotonic() - answered >= self._patience.held_seconds:
            self._answered_at_seconds = None
            self._on_allocations(())
        self._trouble = trouble
        if self._answered_at_seconds is None and not os.path.exists(self._socket):  # noqa: PTH110
            self._failures, self._trouble = 0, ""  # by now there is no kubelet here
            return self._patience.interval_seconds
        self._failures += 1
        pause = self._patience.first_retry_seconds * 2.0 ** min(self._failures - 1, 30)
        return min(pause, self._patience.longest_retry_seconds)


def _cause(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return excerpt(f"{error.code().name}: {error.details()}", _MAX_TROUBLE_CHARACTERS)
    return excerpt(f"its reply is garbled: {error}", _MAX_TROUBLE_CHARACTERS)
