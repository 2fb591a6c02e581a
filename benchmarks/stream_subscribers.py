"""Measures 1,000 readers of the snapshot stream, half of them stalled, beside a single reader."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import Any

from measuring import Figure, compile_sources, core_share_percent, daemon, report, resident_mib

SUBSCRIBERS = 1000
STREAMS_PER_CONNECTION = 50
STREAMS_PER_PROCESS = 100
SECONDS = 30.0


async def subscribe(socket: str, readers: int, stalled: int) -> None:
    """Opens streams. Reads `readers` of them for ever, the `stalled` ones never. Prints a line once all are open."""
    import grpc

    from neurontools.rpc import neuron_pb2, neuron_pb2_grpc

    async def read(call: Any, opened: asyncio.Event) -> None:
        async for _ in call:
            opened.set()

    tasks, events, kept = [], [], []
    for number in range(readers + stalled):
        if number % STREAMS_PER_CONNECTION == 0:
            # channels to one address share a connection unless this option is set
            channel = grpc.aio.insecure_channel(
                f"unix:{socket}", [("grpc.use_local_subchannel_pool", 1), ("neurontools.channel", number)]
            )
        call: Any = neuron_pb2_grpc.MonitorServiceStub(channel).WatchSnapshots(neuron_pb2.WatchSnapshotsRequest())
        kept.append((channel, call))
        if number < readers:
            events.append(asyncio.Event())
            tasks.append(asyncio.create_task(read(call, events[-1])))
        else:
            await call.initial_metadata()
    for event in events:
        await event.wait()
    print("open", flush=True)
    await asyncio.gather(*tasks)
    await asyncio.Event().wait()


def measured(readers: int, stalled: int) -> tuple[float, float, float]:
    """Returns the daemon's percentage of a core, and its memory in MiB before and after the measurement."""
    with daemon("--simulate", "trn1.32xlarge", "--load", "steady", "--history", "0") as running:
        clients = [
            subprocess.Popen(
                [sys.executable, __file__, "--subscribe", running.socket, *map(str, share)], stdout=subprocess.PIPE
            )
            for share in shares(readers, stalled)
        ]
        try:
            for client in clients:
                assert client.stdout is not None
                if client.stdout.readline() != b"open\n":
                    raise SystemExit("the subscribers could not connect")
            time.sleep(3)
            before = resident_mib(running.process)
            share = core_share_percent(running.process, SECONDS)
            return share, before, resident_mib(running.process)
        finally:
            for client in clients:
                client.kill()
                client.wait()


def shares(readers: int, stalled: int) -> list[tuple[int, int]]:
    """Divides the streams evenly among as few processes as STREAMS_PER_PROCESS allows."""
    count = -(-(readers + stalled) // STREAMS_PER_PROCESS)
    return [(readers // count, stalled // count)] * count


def main() -> None:
    if sys.argv[1:2] == ["--subscribe"]:
        asyncio.run(subscribe(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
        return
    compile_sources()
    one = measured(1, 0)
    reading = measured(SUBSCRIBERS, 0)
    half = measured(SUBSCRIBERS // 2, SUBSCRIBERS // 2)
    report(
        f"neurond on trn1.32xlarge with 32 processes, readers of the stream at 1 Hz, {SECONDS:.0f} s each",
        [
            Figure("1 reader", one[0], "% of core"),
            Figure(f"{SUBSCRIBERS} readers", reading[0], "% of core", "at most 10"),
            Figure(f"{SUBSCRIBERS} readers, half of them stalled", half[0], "% of core", "at most 10"),
            Figure("memory, 1 reader", one[2], "MiB"),
            Figure(f"memory, {SUBSCRIBERS} readers", reading[2], "MiB"),
            Figure(f"memory, {SUBSCRIBERS} readers, half stalled", half[2], "MiB"),
            Figure(f"growth in {SECONDS:.0f} s with half of them stalled", half[2] - half[1], "MiB", "flat"),
        ],
    )


if __name__ == "__main__":
    main()
