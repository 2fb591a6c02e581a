"""Runs N workers with torchrun's agent, for neuron-run.

Usage: `python -m neurontools.runtime.launch.torchrun_agent N script.py …`. For a failed worker, torchrun prints a page
of its own traceback. This program prints one line instead, and its exit code is that of the worker that failed first.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neurontools.driver.environment import SUMMARY_DIRECTORY
from neurontools.runtime.reporting.stderr_lines import write_stderr_line
from neurontools.util.signals import (
    PARENT_PID_VARIABLE,
    blocking_interrupts,
    die_on_interrupt,
    die_with_neuron_run,
    raise_on_interrupt,
)

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_THREADS = "OMP_NUM_THREADS"


def main(arguments: list[str]) -> int:
    """Runs the workers. Returns 0, or the exit code of the worker that failed first: 128 + N if signal N killed it."""
    die_on_interrupt()
    die_with_neuron_run(os.environ)
    os.environ[PARENT_PID_VARIABLE] = str(os.getpid())  # makes the workers end when this process ends
    count, *target = arguments
    run, failed, signalled = _import_torchrun()
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    cpus = len(os.sched_getaffinity(0))
    os.environ.setdefault(_THREADS, str(max(1, cpus // int(count))))
    # Otherwise torchrun leaves a directory for logs in /tmp. neuron-run removes its own directory at its end.
    logs = ["--log-dir", os.environ[SUMMARY_DIRECTORY]] if os.environ.get(SUMMARY_DIRECTORY) else []
    raise_on_interrupt()
    # torchrun would give the workers this host's name, for which they wait without end if it does not resolve.
    address = ["--local-addr", "127.0.0.1"]
    options = ["--standalone", *address, "--nproc-per-node", count, *logs, "-m", "neurontools.runtime"]
    try:
        run.run(run.parse_args([*options, *target]))
    except failed as error:
        rank, failure = root_cause(error.failures, _exceptions_by_pid(os.environ.get(SUMMARY_DIRECTORY)))
        # `apart`, because a worker that was killed while it printed a traceback has left an unfinished line.
        write_stderr_line(f"neuron-run: {_failure_line(rank, failure, int(count))}", apart=True)
        exit_code = int(failure.exitcode)
        return exit_code if exit_code >= 0 else 128 - exit_code
    except signalled as error:
        return 128 + int(error.sigval)
    return 0


def root_cause(failures: Mapping[int, Any], exceptions: Mapping[int, str]) -> tuple[int, Any]:
    """Returns the rank and the failure that caused the other failures.

    `failures` are torchrun's failures by rank. `exceptions` maps a worker's PID to the exception that ended the worker.
    Workers that the agent ended by SIGTERM, or whose collective failed because of another rank, are chosen last.
    """

    def weight(item: tuple[int, Any]) -> tuple[bool, bool, float, int]:
        rank, failure = item
        is_ended = failure.exitcode == -signal.SIGTERM
        return is_ended, "CollectiveFailed" in exceptions.get(failure.pid, ""), failure.timestamp, rank

    return min(failures.items(), key=weight)


def _failure_line(rank: int, failure: Any, count: int) -> str:
    if failure.exitcode < 0:
        how = f"was killed by {failure.signal_name()}"
    else:
        how = f"ended with exit code {failure.exitcode}"
    others = "" if count == 1 else "; the other one was ended" if count == 2 else f"; the other {count - 1} were ended"
    return f"worker {rank} (PID {failure.pid}) {how}{others}"


def _import_torchrun() -> tuple[Any, type[Any], type[Any]]:
    """Imports torchrun and two of its exceptions. Does not load the device, because the agent takes no cores."""
    before = os.environ.get(_AUTOLOAD)
    os.environ[_AUTOLOAD] = "0"
    try:
        from torch.distributed import run
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler
    finally:
        del os.environ[_AUTOLOAD]
        if before is not None:
            os.environ[_AUTOLOAD] = before
    handler: Any = SubprocessHandler
    handler._popen = blocking_interrupts()(handler._popen)  # the workers are interpreters that start
    return run, ChildFailedError, SignalException


def _exceptions_by_pid(directory: str | None) -> dict[int, str]:
    """Reads the exceptions that ended workers from their summary files. Returns them by PID."""
    exceptions = {}
    for path in Path(directory).glob("*.json") if directory else ():
        try:
            document = json.loads(path.read_text())
            exceptions[int(document["pid"])] = str(document["failure"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return exceptions


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
