"""Runs N workers with torchrun's agent, for neuron-run.

Usage: `python -m neurontools.runtime.launch.torchrun_agent N script.py …`. For a failed worker, torchrun prints a page
of its own traceback. This program prints one line instead, and its exit code is that of the worker that failed first.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

from neurontools.driver.environment import SUMMARY_DIRECTORY
from neurontools.runtime.reporting.stderr_lines import write_stderr_line
from neurontools.util.signals import (
    PARENT_PID_VARIABLE,
    blocking_interrupts,
    die_on_interrupt,
    die_with_neuron_run,
)

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_THREADS = "OMP_NUM_THREADS"
_CLOSING_SECONDS = 5.0  # further signals are ignored for this time, so that they do not interrupt the shutdown


def main(arguments: list[str]) -> int:
    """Runs the workers. Returns 0, or the exit code of the worker that failed first: 128 + N if signal N killed it."""
    die_on_interrupt()
    die_with_neuron_run(os.environ)
    os.environ[PARENT_PID_VARIABLE] = str(os.getpid())  # makes the workers end when this process ends
    count, *target = arguments
    run, failed, signalled = _import_torchrun()
    logging.disable(logging.ERROR)  # each logger of torchrun has a level of its own
    cpus = len(os.sched_getaffinity(0))
    os.environ.setdefault(_THREADS, str(max(1, cpus // int(count))))
    # Otherwise torchrun leaves a directory for logs in /tmp. neuron-run removes its own directory at its end.
    logs = ["--log-dir", os.environ[SUMMARY_DIRECTORY]] if os.environ.get(SUMMARY_DIRECTORY) else []
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
        from torch.distributed.elastic.multiprocessing import api
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler
    finally:
        del os.environ[_AUTOLOAD]
        if before is not None:
            os.environ[_AUTOLOAD] = before
    handler: Any = SubprocessHandler
    handler._popen = blocking_interrupts()(handler._popen)  # the workers are interpreters that start
    processes: Any = api
    processes._terminate_process_handler = _without_repeats(processes._terminate_process_handler)
    processes.SubprocessContext._close = _closing_together(processes.SubprocessContext._close)
    return run, ChildFailedError, api.SignalException


def _without_repeats(handler: Callable[[int, FrameType | None], None]) -> Callable[[int, FrameType | None], None]:
    """Returns a signal handler that ignores signals right after another one.

    neuron-run forwards a SIGINT that may have reached this process already. The second one would raise an error in
    torchrun's shutdown, and some workers would get SIGTERM instead of SIGINT.
    """
    ignored_until_seconds = 0.0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal ignored_until_seconds
        now_seconds = monotonic()
        if now_seconds >= ignored_until_seconds:
            ignored_until_seconds = now_seconds + _CLOSING_SECONDS
            handler(number, frame)

    return handle


def _closing_together(close: Callable[[Any, signal.Signals, float], None]) -> Callable[..., None]:
    """Returns torchrun's function that ends the workers, changed so that all of them have the signal before one ends.

    torchrun signals one worker after the other. On a busy host, the first one ended before the second had its signal,
    whose collective then failed.
    """

    def close_together(context: Any, death_sig: signal.Signals, timeout: float = 30) -> None:
        running = [each.proc for each in context.subprocess_handlers.values() if each.proc.poll() is None]
        for send, number in (
            (os.killpg, signal.SIGSTOP),
            (_signal_main_threads, death_sig),
            (os.killpg, signal.SIGCONT),
        ):
            for process in running:
                with suppress(ProcessLookupError):
                    send(process.pid, number)
        end_seconds = monotonic() + timeout
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end_seconds - monotonic()))
        close(context, death_sig, _CLOSING_SECONDS)

    return close_together


def _signal_main_threads(group: int, number: int) -> None:
    """Signals the main threads of all processes of a group.

    Any thread of a stopped process may take a signal for the process when the process continues. Python's handler would
    then wait until the main thread returns from its system call.
    """
    send = getattr(ctypes.CDLL(None), "tgkill", lambda _, pid, number: os.kill(pid, number))  # glibc 2.30
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getpgid(pid := int(path.name)) == group:
                send(pid, pid, number)


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
