"""A process of its own that attaches: prints its token and what became of the attach, then waits for orders.

    python attached_child.py SOCKET CORE_COUNT [uid [uid once connected]]

Orders on stdin, a line each: `fork` forks a child that only waits, and prints its PID; `detach` closes the
connection; `exit CODE` ends at once.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from neurontools.rpc import call, neuron_pb2

TAG = "ATTACHED_CHILD_TAG"  # the tag to attach with


def main(path: str, core_count: int, *uids: int) -> None:
    for uid in uids[:1]:
        os.setuid(uid)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(f"{path}.attach")
    with connection.makefile("r") as lines:
        token = lines.readline().strip()
    for uid in uids[1:]:
        os.setuid(uid)
    if core_count:
        request = neuron_pb2.AttachRequest(token=token, core_count=core_count, tag=os.environ.get(TAG, ""))
        call.call(path, "/neurontools.v1.RuntimeService/Attach", request.SerializeToString(), timeout_seconds=300)
    print(token, flush=True)
    for order in sys.stdin:
        if order == "fork\n":
            child = os.fork()
            if child == 0:
                signal.pause()
            print(child, flush=True)
        if order == "detach\n":
            connection.close()
        if order.startswith("exit "):
            os._exit(int(order[5:]))  # the connection and the process end together, as the kernel does it


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *(int(word) for word in sys.argv[3:5] if word.isdigit()))
