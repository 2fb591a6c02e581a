"""MonitorService of the gRPC API: the latest, streamed and past snapshots, ended processes and rendered documents.

Replies are bytes: each snapshot is serialized once per tick, and each document is rendered once per snapshot and
request.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import aclosing
from functools import partial
from typing import Any

import grpc

from neurond.faults import FaultInjector, NoSuchFault, NoTarget, TooMany
from neurond.journal.state_files import EndedLog
from neurond.peers.limits import PeerCredentials
from neurond.snapshots.store import SnapshotStore, StoredSnapshot
from neurontools.client.history_blocks import encode_blocks
from neurontools.client.packing import unpack
from neurontools.faults.requests import FaultRequest, ImpossibleFault
from neurontools.fleet.summary import HostSummary, summarize_host
from neurontools.model import Snapshot
from neurontools.model.snapshot import LATEST_UNIX_SECONDS
from neurontools.net.tls import Role
from neurontools.rpc import neuron_pb2
from neurontools.rpc.convert import to_message
from neurontools.util.units import devices_text
from neurontools.views.device_list import device_list_json, device_list_table

LONGEST_INTERVAL_SECONDS = 86_400.0
MAX_DEVICE_INDICES = 1024
MAX_RENDERED = 64
_ENDED_IN_A_MESSAGE = 100
_COMPRESSION_LEVEL = 1  # zlib level: level 1 shrinks a snapshot to a tenth in well under a millisecond
_EARLY_SECONDS = 0.02  # tolerance: a stream sends snapshots that come this much early, because clocks jitter

Context = grpc.aio.ServicerContext[Any, Any]


class MonitorService:
    """Answers calls from the snapshot store. `settle` publishes lease changes that no snapshot contains yet."""

    def __init__(self, store: SnapshotStore, ended: EndedLog, settle: Callable[[], None]) -> None:
        self._store = store
        self._ended = ended
        self._settle = settle
        self._rendered: dict[object, bytes] = {}
        self._rendered_sequence = -1
        self._summarized: HostSummary | None = None
        self._summaries: dict[Role, bytes] = {}  # serialized summaries of one snapshot, by role
        self._host_name = os.uname().nodename

    async def get_snapshot(self, request: neuron_pb2.GetSnapshotRequest, context: Context) -> bytes:
        """Returns the latest snapshot of at least the requested age. Age 0 requests the latest of all."""
        age_seconds = await _check_seconds(request.age_seconds, "age_seconds", context)
        if age_seconds > 0:
            return self._store.past(age_seconds)
        self._settle()
        return self._store.latest.message

    async def watch_snapshots(
        self, request: neuron_pb2.WatchSnapshotsRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Streams new snapshots. Skips snapshots that a slow client has not read in time."""
        async with aclosing(self._entries(request.interval_seconds, context)) as entries:
            async for entry in entries:
                yield entry.message

    async def watch_host_summary(
        self, request: neuron_pb2.WatchHostSummaryRequest, context: Context, role: Role
    ) -> AsyncIterator[bytes]:
        """Streams the host summaries for a role. Skips summaries that a slow client has not read in time."""
        async with aclosing(self._entries(request.interval_seconds, context)) as entries:
            async for entry in entries:
                yield self._summary(entry.snapshot, role)

    async def _entries(self, interval_seconds: float, context: Context) -> AsyncGenerator[StoredSnapshot, None]:
        """Yields the latest snapshot, then new snapshots at this interval. A slow client misses some snapshots."""
        interval_seconds = await _check_seconds(interval_seconds, "interval_seconds", context)
        loop = asyncio.get_running_loop()
        sequence = -1
        while True:
            entry = await self._store.after(sequence)
            sequence = entry.snapshot.sequence
            sent_at = loop.time()
            yield entry
            wait_seconds = sent_at + interval_seconds - _EARLY_SECONDS - loop.time()
            if wait_seconds > 0:
                await asyncio.sleep(wait_seconds)

    def _summary(self, snapshot: Snapshot, role: Role) -> bytes:
        """Returns the serialized summary of a snapshot for a role. Caches the summary of the latest snapshot."""
        summary = self._summarized
        if summary is None or summary.sequence != snapshot.sequence:
            summary = self._summarized = summarize_host(snapshot, self._host_name)
            self._summaries.clear()
        ready = self._summaries.get(role)
        if ready is None:
            message = to_message(summary if role is Role.FULL else summary.without_users)
            ready = self._summaries[role] = neuron_pb2.WatchHostSummaryResponse(summary=message).SerializeToString()
        return ready

    async def list_history(self, request: neuron_pb2.ListHistoryRequest, context: Context) -> AsyncIterator[bytes]:
        """Streams the snapshots of the history, oldest first unless the request wants the newest first."""
        duration_seconds = await _check_seconds(request.duration_seconds, "duration_seconds", context)
        moments = self._store.history(
            duration_seconds,
            request.after_sequence,
            before_sequence=request.before_sequence,
            most=request.max_snapshots,
        )
        if not request.newest_first:
            moments.reverse()
        if request.blocks:
            for block in encode_blocks(moments):
                yield neuron_pb2.ListHistoryResponse(block=block).SerializeToString()
            return
        for message in unpack(moment.packed for moment in moments):
            if request.packed:
                packed = zlib.compress(message, _COMPRESSION_LEVEL)
                yield neuron_pb2.ListHistoryResponse(packed=packed).SerializeToString()
            else:
                yield message

    async def list_ended(self, request: neuron_pb2.ListEndedRequest, context: Context) -> AsyncIterator[bytes]:
        since = request.since_unix_seconds
        if not 0 <= since <= LATEST_UNIX_SECONDS:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "since_unix_seconds must be a Unix time in seconds, or 0"
            )
        self._settle()
        known_since = self._ended.known_since_unix_seconds
        ended = self._ended.since(since)
        for first in range(0, max(1, len(ended)), _ENDED_IN_A_MESSAGE):
            response = neuron_pb2.ListEndedResponse(known_since_unix_seconds=known_since)
            response.ended.extend(map(to_message, ended[first : first + _ENDED_IN_A_MESSAGE]))
            yield response.SerializeToString()

    async def render_device_list(self, request: neuron_pb2.RenderDeviceListRequest, context: Context) -> bytes:
        """Returns the table or JSON that neuron-ls prints."""
        self._settle()
        snapshot = self._store.latest.snapshot
        if self._rendered_sequence != snapshot.sequence:
            self._rendered.clear()
            self._rendered_sequence = snapshot.sequence
        await _check_devices(request, snapshot, context)
        # The cache key omits unknown fields of the request, which newer clients may send.
        flags = request.wide, request.all_processes, request.topology
        key = request.format, *flags, request.logical_neuroncore_config, *request.device_indices
        rendered = self._rendered.get(key)
        if rendered is None:
            document = _device_list(request, snapshot).encode("utf-8", "replace")
            rendered = neuron_pb2.RenderDeviceListResponse(document=document).SerializeToString()
            if len(self._rendered) < MAX_RENDERED:
                self._rendered[key] = rendered
        return rendered


def _device_list(request: neuron_pb2.RenderDeviceListRequest, snapshot: Snapshot) -> str:
    render: Callable[..., str] = partial(device_list_table, wide=request.wide, topology=request.topology)
    if request.format == neuron_pb2.RenderDeviceListRequest.FORMAT_JSON:
        render = device_list_json
    return render(
        snapshot,
        all_processes=request.all_processes,
        logical_neuroncore_config=request.logical_neuroncore_config or None,
        device_indices=tuple(request.device_indices),
    )


async def _check_devices(request: neuron_pb2.RenderDeviceListRequest, snapshot: Snapshot, context: Context) -> None:
    if len(request.device_indices) > MAX_DEVICE_INDICES:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"more than {MAX_DEVICE_INDICES} device_indices")
    known: Collection[int] = snapshot.devices_by_index
    if request.format == neuron_pb2.RenderDeviceListRequest.FORMAT_JSON:  # has no entries of missing devices
        known = [device.index for device in snapshot.devices]
    for index in request.device_indices:
        if index not in known:
            has = f"{snapshot.instance.instance_type} has {devices_text(known)}"
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no device {index}: {has}")


async def _check_seconds(value: float, name: str, context: Context) -> float:
    if not 0 <= value <= LONGEST_INTERVAL_SECONDS:  # NaN fails too
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"{name} must be a number of seconds from 0 to {LONGEST_INTERVAL_SECONDS:.0f}",
        )
    return value


MOST_REQUESTS = 1000
_LONGEST_NAME = 64
_ACKNOWLEDGE_SECONDS = 1.0  # longest wait for acknowledgements: a process may be stopped, or busy in an operator
_OPTIONAL = ("after_executions", "after_seconds", "for_seconds", "probability", "amount", "part", "peer_device_index")


class FaultService:
    """Injects and heals faults at the request of the daemon's user or root.

    `faults` is None on a host with real devices. `peer_of_call` returns the peer of a call.
    """

    def __init__(self, faults: FaultInjector | None) -> None:
        self._faults = faults
        self._armed = asyncio.Event()
        if faults is not None:
            faults.effects.on_acknowledged = self._armed.set
        self.peer_of_call: Callable[[Context], PeerCredentials | None] = lambda _context: None

    async def inject_faults(self, request: neuron_pb2.InjectFaultsRequest, context: Context) -> bytes:
        """Injects all requested faults or none. Waits up to a second until the affected processes acknowledge them."""
        faults, peer = await self._admitted(context)
        if len(request.faults) > MOST_REQUESTS:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"more than {MOST_REQUESTS} faults at once")
        try:
            injected = faults.inject([_read(each) for each in request.faults], peer.uid, peer.pid)
        except ImpossibleFault as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except NoTarget as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except TooMany as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        await self._wait_until_acknowledged(faults, {fault.number for fault in injected})
        return neuron_pb2.InjectFaultsResponse(faults=map(to_message, injected)).SerializeToString()

    async def heal_faults(self, request: neuron_pb2.HealFaultsRequest, context: Context) -> bytes:
        """Heals the faults with the requested numbers (no numbers: all faults). Returns how many it healed."""
        faults, peer = await self._admitted(context)
        try:
            healed = faults.heal(request.numbers, peer.uid, peer.pid)
        except NoSuchFault as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        return neuron_pb2.HealFaultsResponse(healed=healed).SerializeToString()

    async def _wait_until_acknowledged(self, faults: FaultInjector, numbers: set[int]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ACKNOWLEDGE_SECONDS):
                while not faults.is_acknowledged(numbers):
                    self._armed.clear()
                    await self._armed.wait()

    async def _admitted(self, context: Context) -> tuple[FaultInjector, PeerCredentials]:
        peer = await admit_daemon_user(self.peer_of_call(context), "inject and heal faults", context)
        if self._faults is None:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "its devices are not simulated, so they can't have faults; start neurond --simulate TYPE",
            )
        return self._faults, peer


async def admit_daemon_user(peer: PeerCredentials | None, action: str, context: Context) -> PeerCredentials:
    """Returns the peer of a call. Aborts the call unless the peer has the user of the daemon or is root."""
    if peer is None or peer.uid not in (os.geteuid(), 0):
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED, f"only the user of the daemon may {action}; use that account"
        )
        raise AssertionError("abort always raises")
    return peer


def _read(request: neuron_pb2.FaultRequest) -> FaultRequest:
    """Parses a fault request. Raises ImpossibleFault if it is invalid."""
    if len(request.kind) > _LONGEST_NAME or len(request.part) > _LONGEST_NAME:
        raise ImpossibleFault(f"a name is longer than {_LONGEST_NAME} characters")
    given = {name: getattr(request, name) for name in _OPTIONAL if request.HasField(name)}  # type: ignore[arg-type]
    target = request.WhichOneof("target")
    if target is not None:
        given[target] = getattr(request, target)
    return FaultRequest(kind=request.kind, seed=request.seed, **given)
