"""Measures attaching, and freeing the cores of a killed process, beside the time until its parent is notified."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from statistics import median

from measuring import Figure, compile_sources, daemon, report

from neurontools.rpc import neuron_pb2
from neurontools.rpc.call import UnaryConnection

ROUNDS = 30
CHILD = """
import socket, sys, time
from neurontools.rpc import socket_path
from neurontools.rpc import neuron_pb2
from neurontools.rpc.call import call
api = sys.argv[1]
connection = socket.socket(socket.AF_UNIX)
connection.connect(socket_path.attach_socket(api))
token = connection.recv(64).decode().strip()
request = neuron_pb2.AttachRequest(token=token, core_count=2)
call(api, "/neurontools.v1.RuntimeService/Attach", request.SerializeToString(), timeout_seconds=5)
print(time.monotonic(), flush=True)
time.sleep(600)
"""


def main() -> None:
    compile_sources()
    seen, freed, reaped = [], [], []
    with daemon("--simulate", "trn1.32xlarge") as running, UnaryConnection(running.socket, 5.0) as connection:

        def owned() -> bool:
            reply = connection.call("/neurontools.v1.MonitorService/GetSnapshot", b"")
            snapshot = neuron_pb2.GetSnapshotResponse.FromString(reply).snapshot
            return any(core.HasField("owner_pid") for core in snapshot.cores)

        for _ in range(ROUNDS):
            child = subprocess.Popen([sys.executable, "-c", CHILD, running.socket], stdout=subprocess.PIPE, text=True)
            assert child.stdout is not None
            attached_at = float(child.stdout.readline())
            while not owned():
                pass
            seen.append((time.monotonic() - attached_at) * 1e3)
            killed_at = time.monotonic()
            os.kill(child.pid, signal.SIGKILL)
            while owned():
                pass
            freed.append((time.monotonic() - killed_at) * 1e3)
            child.wait()
            plain = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
            time.sleep(0.05)
            killed_at = time.monotonic()
            os.kill(plain.pid, signal.SIGKILL)
            plain.wait()
            reaped.append((time.monotonic() - killed_at) * 1e3)
    report(
        f"Ownership on trn1.32xlarge at 1 Hz, {ROUNDS} rounds",
        [
            Figure("attach to seen in a snapshot, median", median(seen), "ms", "at most a tick, 1000"),
            Figure("attach to seen in a snapshot, worst", max(seen), "ms", "at most a tick, 1000"),
            Figure("SIGKILL to cores free in a snapshot, median", median(freed), "ms", "at most 50"),
            Figure("SIGKILL to cores free in a snapshot, worst", max(freed), "ms", "at most 50"),
            Figure("SIGKILL to its parent's wait() returning, median", median(reaped), "ms"),
        ],
    )


if __name__ == "__main__":
    main()
