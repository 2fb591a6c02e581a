"""So many a second and no more, in turns: those of whom there are many wait behind each other, and not others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable


class Turnstile:
    """Lets `per_second` through, and `at_once` after a pause. Belongs to the event loop's thread."""

    def __init__(self, per_second: float, at_once: int) -> None:
        self._per_second = per_second
        self._at_once = at_once
        self._left = float(at_once)
        self._at_seconds = 0.0
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}  # by peer, whose turn it is next first
        self._next: asyncio.TimerHandle | None = None

    async def turn(self, peer: Hashable) -> None:
        """Returns when it is the turn of one more of this peer's."""
        loop = asyncio.get_running_loop()
        self._refill(loop.time())
        if self._left >= 1 and not self._waiting:
            self._left -= 1
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(peer, deque()).append(turn)
        if self._next is None:
            self._set_timer(loop)
        await turn

    def _refill(self, now_seconds: float) -> None:
        self._left = min(self._at_once, self._left + (now_seconds - self._at_seconds) * self._per_second)
        self._at_seconds = now_seconds

    def _let_through(self) -> None:
        self._next = None
        loop = asyncio.get_running_loop()
        self._refill(loop.time())
        while self._left >= 1 and self._waiting:
            peer, turns = next(iter(self._waiting.items()))
            del self._waiting[peer]
            turn = turns.popleft()
            if turns:
                self._waiting[peer] = turns
            if not turn.done():  # nobody waits for it any more otherwise
                self._left -= 1
                turn.set_result(None)
        if self._waiting:
            self._set_timer(loop)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._next = loop.call_later(max(0.0, (1 - self._left) / self._per_second), self._let_through)
