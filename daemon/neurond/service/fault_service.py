"""FaultService of the gRPC API: injects faults into a simulated host, and heals them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Any

import grpc

from neurond.faults.faults import Faults, NoSuchFault, NoTarget, TooMany
from neurond.peers.credentials import Credentials
from neurontools.faults.request import FaultRequest, ImpossibleFault
from neurontools.rpc import neuron_pb2
from neurontools.rpc.convert import to_message

Context = grpc.aio.ServicerContext[Any, Any]

MOST_REQUESTS = 1000
_LONGEST_NAME = 64
_PATIENCE_SECONDS = 1.0  # for processes that are to know of a fault: one may be stopped, or busy in an operator
_OPTIONAL = ("after_executions", "after_seconds", "for_seconds", "probability", "amount", "part")
_TARGETS = ("device_index", "neuroncore_index", "pid")


class FaultService:
    """Injects and heals for the user of the daemon and for root. `faults` is None where the devices are real.

    `who` tells whose call it is.
    """

    def __init__(self, faults: Faults | None) -> None:
        self._faults = faults
        self._armed = asyncio.Event()
        if faults is not None:
            faults.around.armed = self._armed.set
        self.who: Callable[[Context], Credentials | None] = lambda _context: None

    async def inject_faults(self, request: neuron_pb2.InjectFaultsRequest, context: Context) -> bytes:
        """Takes in faults, all or none, and waits a moment until the processes that are to meet them know."""
        faults, who = await self._admitted(context)
        if len(request.faults) > MOST_REQUESTS:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"more than {MOST_REQUESTS} faults at once")
        try:
            injected = faults.inject([_read(asked) for asked in request.faults], who.uid, who.pid)
        except ImpossibleFault as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except NoTarget as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except TooMany as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        await self._all_know(faults, {fault.number for fault in injected})
        return neuron_pb2.InjectFaultsResponse(faults=map(to_message, injected)).SerializeToString()

    async def heal_faults(self, request: neuron_pb2.HealFaultsRequest, context: Context) -> bytes:
        """Takes faults back."""
        faults, who = await self._admitted(context)
        try:
            healed = faults.heal(request.numbers, who.uid, who.pid)
        except NoSuchFault as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        return neuron_pb2.HealFaultsResponse(healed=healed).SerializeToString()

    async def _all_know(self, faults: Faults, numbers: set[int]) -> None:
        """Waits a moment until the processes that are to meet these faults know of them."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while not faults.is_known_to_all(numbers):
                    self._armed.clear()
                    await self._armed.wait()

    async def _admitted(self, context: Context) -> tuple[Faults, Credentials]:
        who = self.who(context)
        if who is None or who.uid not in (os.geteuid(), 0):
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, "faults are for the user of the daemon; use that account"
            )
        if self._faults is None:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "its devices are real, and faults are for simulated ones; start neurond --simulate TYPE",
            )
        return self._faults, who


def _read(asked: neuron_pb2.FaultRequest) -> FaultRequest:
    """The request; ImpossibleFault for rubbish."""
    if len(asked.kind) > _LONGEST_NAME or len(asked.part) > _LONGEST_NAME:
        raise ImpossibleFault(f"a name is longer than {_LONGEST_NAME} characters")
    given = {name: getattr(asked, name) for name in _OPTIONAL if asked.HasField(name)}  # type: ignore[arg-type]
    target = asked.WhichOneof("target")
    if target is not None:
        given[target] = getattr(asked, target)
    return FaultRequest(kind=asked.kind, seed=asked.seed, **given)
