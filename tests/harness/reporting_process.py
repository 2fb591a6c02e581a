"""Reporters of this process, and processes that hold cores, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from neurontools.runtime import Reporter
from tests.harness import python_process

PATIENT = """
from neurontools.runtime.reporting import reporter as reporting
reporting.EXIT_FLUSH_SECONDS = reporting.FIRST_ATTACH_TIMEOUT_SECONDS = reporting.CALL_TIMEOUT_SECONDS = 300.0
"""
"""What a process begins with each of whose reports is to arrive: it waits longer for a daemon on a busy machine."""

HBM_BYTES = 16 * 2**30


PID = os.getpid()


def attach(reporters: list[Reporter], socket: str, **environment: str) -> Reporter:
    reporter = Reporter.attach({"NEURONTOOLS_SOCKET": socket, **environment})
    reporters.append(reporter)
    return reporter


def holder(socket: str, does: str = "", **environment: str) -> subprocess.Popen[bytes]:
    """Another process that holds cores, until it is killed or its input ends; `does` is code with its reporter, `r`."""
    attaches = f"{PATIENT}import sys; from neurontools.runtime import Reporter; r = Reporter.attach()"
    process = python_process.popen(
        [sys.executable, "-c", f"{attaches}\n{does}\nprint(flush=True); sys.stdin.read()"],
        loaded=python_process.MONITORS,
        env={**os.environ, "NEURONTOOLS_SOCKET": socket, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"
    return process


def end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.communicate()
