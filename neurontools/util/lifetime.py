"""A process that doesn't outlive the one that started it, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import MutableMapping

VARIABLE = "NEURONTOOLS_ENDS_WITH"
"""The PID of the parent that a worker of neuron-run ends with; each process takes it out for itself."""

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int, number: signal.Signals) -> bool:
    """Has the kernel send this process a signal when its parent ends; False when it has ended already.

    More exactly when the thread that forked ends, so the parent has to start it from its main thread. It holds for
    other programs that this process executes in its place, unless they are set-user-ID, and not for its children.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number))
    return os.getppid() == parent_pid


def end_with_neuron_run(environment: MutableMapping[str, str]) -> None:
    """Has this process killed when its parent ends, where the variable names that: a killed neuron-run ends nobody.

    SIGKILL, because a script that hangs, or handles SIGTERM, would keep its NeuronCores.
    """
    named = environment.pop(VARIABLE, "")
    if named.isdecimal() and not end_with_parent(int(named), signal.SIGKILL):
        os.kill(os.getpid(), signal.SIGKILL)
