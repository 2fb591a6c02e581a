"""grpcio's own services, health and reflection, within the limits of all other calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from neurond.peers.limits import Kind
from neurond.service.calls import Calls
from neurontools.net.tls.subjects import Role


class Health(health.aio.HealthServicer):
    """Says how services are; who watches one has a call open."""

    def __init__(self, calls: Calls[Any]) -> None:
        super().__init__()
        self._calls = calls

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802  (the names are grpcio's)
        """How a service is now."""
        await self._calls.admit(context, Kind.CALL, needs=Role.SUMMARY)
        return await super().Check(request, context)

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802
        """How a service is, now and whenever that changes."""
        await self._calls.admit(context, Kind.CALL, needs=Role.SUMMARY)
        await self._calls.stream(context, super().Watch(request, context))


class Reflection(reflection.aio.ReflectionServicer):
    """Says what services there are. Each question in a stream is work as a call is, since its answer may be long."""

    def __init__(self, calls: Calls[Any], service_names: tuple[str, ...]) -> None:
        super().__init__(service_names)
        self._calls = calls

    async def ServerReflectionInfo(  # type: ignore[override]  # noqa: N802  (the stubs lack that it yields)
        self, request_iterator: AsyncIterable[Any], context: Any
    ) -> AsyncIterator[Any]:
        """Answers the questions of a stream, as many as its peer may ask."""
        await self._calls.admit(context, Kind.CALL)

        async def paced() -> AsyncIterator[Any]:
            async for request in request_iterator:
                await asyncio.sleep(self._calls.spend(context))
                yield request

        answers: Any = super().ServerReflectionInfo(paced(), context)
        async for answer in answers:
            yield answer
