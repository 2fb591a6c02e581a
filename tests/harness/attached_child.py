"""A process of its own that attaches: prints its token and what became of the attach, then waits for orders.

    python attached_child.py SOCKET CORE_COUNT [uid [tag]]

Orders on stdin, a line each: `fork` forks a child that only waits, and prints its PID.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from neurontools.rpc import call, neuron_pb2


def main(path: str, core_count: int, uid: int, tag: str) -> None:
    os.setuid(uid)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(f"{path}.attach")
    token = connection.makefile("r").readline().strip()
    if core_count:
        request = neuron_pb2.AttachRequest(token=token, core_count=core_count, tag=tag)
        call.call(path, "/neurontools.v1.RuntimeService/Attach", request.SerializeToString(), timeout_seconds=30)
    print(token, flush=True)
    for order in sys.stdin:
        if order == "fork\n":
            child = os.fork()
            if child == 0:
                signal.pause()
            print(child, flush=True)


if __name__ == "__main__":
    given = sys.argv[3:]
    main(sys.argv[1], int(sys.argv[2]), int(given[0]) if given else os.getuid(), given[1] if len(given) > 1 else "")
