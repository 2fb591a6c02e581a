"""Orphan reaper of neuron-run, run as `python orphan_reaper.py TOKEN`. Kills the orphans of a killed neuron-run.

neuron-run puts a token for each run into the environment variable NEURONTOOLS_RUN, which all descendants inherit.
neuron-run holds the other end of this program's standard input. A byte there means a normal end. End of file without a
byte means that neuron-run was killed. The program runs isolated from the package, so it imports only a few modules of
the standard library.
"""

from __future__ import annotations

import os
import signal
import sys
import time

RUN_VARIABLE = "NEURONTOOLS_RUN"
"""Environment variable with the tokens of a process's runs, separated by colons, the innermost run last."""

_PATIENCE_SECONDS = 60.0  # time limit for killing; the kernel cannot end some processes immediately
_PAUSE_SECONDS = 0.02


def main(arguments: list[str]) -> int:
    """Waits until neuron-run ends. If neuron-run was killed, kills the processes that it left."""
    (token,) = arguments
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not os.read(0, 1):
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while kill_run_processes(token) and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
    return 0


def kill_run_processes(token: str) -> int:
    """Kills the processes of a run. Returns how many it killed; 0 means that none was left."""
    found = 0
    for name in os.listdir("/proc"):  # noqa: PTH208  (importing pathlib is slow)
        if name.isdecimal() and belongs_to_run(name, token):
            found += _kill_process(name, token)
    return found


def belongs_to_run(pid: str, token: str) -> bool:
    """Returns whether a process inherited the token of a run; False if its environment cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            entries = file.read().split(b"\0")
    except OSError:
        return False
    named = [entry.partition(b"=")[2] for entry in entries if entry.startswith(RUN_VARIABLE.encode() + b"=")]
    return any(token.encode() in tokens.split(b":") for tokens in named)


def _kill_process(pid: str, token: str) -> bool:
    try:
        descriptor = os.pidfd_open(int(pid))
    except OSError:
        return False
    try:
        if not belongs_to_run(pid, token):  # meanwhile, the kernel may have given the PID to another process
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
