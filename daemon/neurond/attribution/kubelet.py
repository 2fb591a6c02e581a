"""What the kubelet has given to pods: its pod-resources API, asked every few seconds where its socket exists.

https://github.com/kubernetes/kubelet/blob/master/pkg/apis/podresources/v1/api.proto; the few fields of it that are
needed are decoded by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from neurontools.model import PodAllocation
from neurontools.rpc import wire

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
METHOD = "/v1.PodResourcesLister/List"
INTERVAL_SECONDS = 10.0
TIMEOUT_SECONDS = 5.0
MAX_REPLY_BYTES = 16 * 2**20

DEVICE_RESOURCES = frozenset(("aws.amazon.com/neuron", "aws.amazon.com/neurondevice"))
CORE_RESOURCES = frozenset(("aws.amazon.com/neuroncore",))

# Fields of the messages.
_POD_RESOURCES = 1  # ListPodResourcesResponse
_POD_NAME, _POD_NAMESPACE, _POD_CONTAINERS = 1, 2, 3  # PodResources
_CONTAINER_NAME, _CONTAINER_DEVICES = 1, 2  # ContainerResources
_RESOURCE_NAME, _DEVICE_IDS = 1, 2  # ContainerDevices

_LONGEST_INDEX = 6
_INDEX = re.compile(r"\d+$")

_log = logging.getLogger(__name__)


class KubeletWatcher:
    """Asks the kubelet again and again and hands on what it says; () where there is none or it doesn't answer."""

    def __init__(
        self,
        on_allocations: Callable[[tuple[PodAllocation, ...]], None],
        socket: str = SOCKET,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._on_allocations = on_allocations
        self._socket = socket
        self._interval_seconds = interval_seconds
        self._task: asyncio.Task[None] | None = None
        self._trouble = ""

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
            if os.path.exists(self._socket):  # noqa: ASYNC240, PTH110 - a look at a local directory
                self._on_allocations(await self._allocations())
            else:
                self._on_allocations(())
            await asyncio.sleep(self._interval_seconds)

    async def _allocations(self) -> tuple[PodAllocation, ...]:
        options = (("grpc.max_receive_message_length", MAX_REPLY_BYTES), ("grpc.use_local_subchannel_pool", 1))
        async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=options) as channel:
            ask: Any = channel.unary_unary(METHOD)  # without serialisers: bytes as they are
            try:
                found = tuple(read_allocations(await ask(b"", timeout=TIMEOUT_SECONDS)))
            except grpc.aio.AioRpcError as error:
                return self._failed(f"{error.code().name}: {error.details()}")
            except ValueError as error:
                return self._failed(str(error))
        self._trouble = ""
        return found

    def _failed(self, trouble: str) -> tuple[PodAllocation, ...]:
        if trouble != self._trouble:
            self._trouble = trouble
            _log.warning("the kubelet at unix:%s tells no pods: %s", self._socket, trouble)
        return ()


def read_allocations(reply: bytes) -> Iterator[PodAllocation]:
    """The containers that were given Neuron devices or cores, from a ListPodResourcesResponse; ValueError."""
    for pod in _messages(wire.decode(reply), _POD_RESOURCES):
        name, namespace = _text(pod, _POD_NAME), _text(pod, _POD_NAMESPACE)
        for container in _messages(pod, _POD_CONTAINERS):
            devices: list[int] = []
            cores: list[int] = []
            for given in _messages(container, _CONTAINER_DEVICES):
                resource = _text(given, _RESOURCE_NAME)
                target = devices if resource in DEVICE_RESOURCES else cores if resource in CORE_RESOURCES else None
                if target is not None:
                    target += _indices(given)
            if devices or cores:
                yield PodAllocation(
                    name,
                    namespace,
                    _text(container, _CONTAINER_NAME),
                    tuple(sorted(set(devices))),
                    tuple(sorted(set(cores))),
                )


def _messages(fields: dict[int, list[int | bytes]], number: int) -> Iterator[dict[int, list[int | bytes]]]:
    for value in fields.get(number, ()):
        if not isinstance(value, bytes):
            raise ValueError(f"field {number} is no message")
        yield wire.decode(value)


def _text(fields: dict[int, list[int | bytes]], number: int) -> str:
    value = fields.get(number, [b""])[-1]
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} is no string")
    return value.decode("utf-8", "replace")


def _indices(given: dict[int, list[int | bytes]]) -> Iterator[int]:
    """The indices that device plugins put at the end of their ids: "3", "neuron3", "neuron-core-3"."""
    for value in given.get(_DEVICE_IDS, ()):
        match = _INDEX.search(value.decode("utf-8", "replace")) if isinstance(value, bytes) else None
        if match is not None and len(match[0]) <= _LONGEST_INDEX:
            yield int(match[0])
