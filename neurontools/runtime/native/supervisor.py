"""Starts the process that builds machine code, and kills its process group when the training ends.

The training process holds the write end of the supervisor's standard input. So the supervisor reads end-of-file when
the training ends, even by SIGKILL. The supervisor removes the compiler's temporary directory
before it exits.
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
    """Entry point: `supervisor REQUEST RESULT`. Passes both descriptors to the worker and returns its exit status."""
    descriptors = tuple(map(int, sys.argv[1:3]))
    directory = tempfile.mkdtemp(prefix="neurontools-machine-code-")
    try:
        worker = subprocess.Popen(
            [sys.executable, "-m", "neurontools.runtime.native.compile_worker", *sys.argv[1:3]],
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            env={**os.environ, "TMPDIR": directory, "TORCHINDUCTOR_CACHE_DIR": directory},
            cwd=directory,
            start_new_session=True,
        )
        ended = os.pidfd_open(worker.pid)
        select.select([ended, sys.stdin.fileno()], [], [])  # standard input gets no data, only end-of-file
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
        return worker.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
