"""The calls that are open: whose they are, how many one may have, and their end when the daemon ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

import grpc

from neurond.peers.frame_weight import CALL
from neurond.peers.limits import Kind
from neurond.peers.peers import AtLimit, Peer, Peers
from neurontools.net.tls.subjects import Role

Context = grpc.aio.ServicerContext[Any, Any]
ENDING = "the daemon is ending"
P = TypeVar("P", bound=Peer)


class Calls(Generic[P]):
    """The open calls of a server. `who` names a peer by what grpcio calls it; None when it has gone."""

    def __init__(self, peers: Peers, who: Callable[[str], P | None]) -> None:
        self._peers = peers
        self._who = who
        self._is_ending = False
        self._streams: set[asyncio.Task[Any]] = set()

    async def admit(self, context: Context, *kinds: Kind, needs: Role = Role.FULL) -> None:
        """Counts a call, until it has ended, among those of its peer.

        It aborts the call when there are too many, or when the peer may not see what it `needs` to see.
        """
        if self._is_ending:
            await context.abort(grpc.StatusCode.UNAVAILABLE, ENDING)
        who = self._who(context.peer())
        if who is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection has ended")
        if needs is Role.FULL and who.role is not Role.FULL:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"this shows commands and users, which takes the role {needs}; your certificate has {who.role}",
            )
        for kind in kinds:
            try:
                self._peers.take(who, kind)
            except AtLimit as limit:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(limit))
            on_done: Any = partial(self._ended, who, kind)  # its type is a class that nobody can be, in the stubs
            context.add_done_callback(on_done)

    def who(self, context: Context) -> P | None:
        """Whose call it is; None when it has gone."""
        return self._who(context.peer())

    def spend(self, context: Context) -> float:
        """Takes note of a further question in an open call; returns the seconds that its answer has to wait."""
        who = self._who(context.peer())
        return 0.0 if who is None else self._peers.spend(who, CALL)

    def _ended(self, who: P, kind: Kind, _context: Context) -> None:
        self._peers.give_back(who, kind)

    async def stream(self, context: Context, replies: Coroutine[Any, Any, None]) -> None:
        """Runs what sends the replies of a stream, to the end of it or of the daemon."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (a coroutine runs in a task)
        self._streams.add(task)
        try:
            await replies
        except asyncio.CancelledError:
            if not self._is_ending or task.uncancel():
                raise
            await context.abort(grpc.StatusCode.UNAVAILABLE, ENDING)
        finally:
            self._streams.discard(task)

    async def end(self, patience_seconds: float) -> None:
        """Ends all streams and takes no more calls; waits so long at most until their readers know."""
        self._is_ending = True
        streams = set(self._streams)
        for stream in streams:
            stream.cancel()
        if streams:
            await asyncio.wait(streams, timeout=patience_seconds)
