"""Starts the process that makes machine code, and ends it and all that it started when the training has ended.

The training holds the other end of standard input, so that its end is noticed however it ends. What the compiler
writes is in a directory of this process, which is removed with it.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile


def main() -> int:
    """`supervisor REQUEST RESULT`: descriptors, which the worker gets. Exits with the worker's status."""
    descriptors = tuple(map(int, sys.argv[1:3]))
    directory = tempfile.mkdtemp(prefix="neurontools-machine-code-")
    try:
        worker = subprocess.Popen(
            [sys.executable, "-m", "neurontools.runtime.building.compile_worker", *sys.argv[1:3]],
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            env={**os.environ, "TMPDIR": directory, "TORCHINDUCTOR_CACHE_DIR": directory},
            cwd=directory,
            start_new_session=True,
        )
        ended = os.pidfd_open(worker.pid)
        select.select([ended, sys.stdin.fileno()], [], [])  # nothing is ever written to it
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
        return worker.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
