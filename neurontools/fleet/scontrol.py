"""Slurm's own command: what it prints, in bounded time and size, or in a line why it prints nothing."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
from time import monotonic

from neurontools.util.errors import EXIT_FAILURE, EXIT_NOT_FOUND, EXIT_USAGE, UserError
from neurontools.util.terminal import excerpt

MOST_BYTES = 8 << 20
"""Of an answer: the names of far more nodes than a cluster has."""

_REACH_IT = "is slurmctld running?"
_FATAL = "fatal: "
_NEXT_STEPS = {"Unable to contact": _REACH_IT, _FATAL: "see slurm.conf, or set SLURM_CONF"}
_MOST_REASON_BYTES = 4096
_PART_BYTES = 1 << 16
_ENVIRONMENT = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}  # its answers are read by a program


class NoScontrol(UserError):
    """There is no such command here."""


def scontrol(*arguments: str, timeout_seconds: float, next_step: str) -> str:
    """What scontrol prints; UserError with the cause, and what to do where scontrol itself has refused."""
    name = f"scontrol {arguments[0]}"
    try:
        child = subprocess.Popen(
            ["scontrol", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **_ENVIRONMENT},
            start_new_session=True,
        )
    except FileNotFoundError:
        raise NoScontrol("there is no scontrol here; run it where Slurm's commands are", EXIT_USAGE) from None
    except OSError as error:
        raise UserError(f"{name}: {error.strerror}; see whether Slurm is installed whole") from error
    try:
        said, complaint = _read(child, monotonic() + timeout_seconds)
    except TimeoutError:
        raise UserError(f"{name} gave no answer within {timeout_seconds:g} s; {_REACH_IT}", EXIT_USAGE) from None
    except _TooMuch:
        raise UserError(f"{name} says more than {MOST_BYTES >> 20} MiB; is it Slurm's own?", EXIT_FAILURE) from None
    finally:
        _end(child)
    if child.returncode:
        lines = (complaint.strip() or said[:_MOST_REASON_BYTES].strip()).decode("utf-8", "replace").splitlines()
        # What ends it comes after what it has tried.
        line = next((each for each in lines if _FATAL in each), lines[0]) if lines else _how(child.returncode)
        cause = excerpt(line.removeprefix("scontrol: "), 120)
        step = next((step for words, step in _NEXT_STEPS.items() if words in cause), next_step)
        raise UserError(f"{name}: {cause}; {step}", EXIT_NOT_FOUND)
    return said.decode("utf-8", "replace")


class _TooMuch(Exception):
    """It says more than is read."""


def _read(child: subprocess.Popen[bytes], deadline_seconds: float) -> tuple[bytes, bytes]:
    """All of its standard output and the beginning of the other, when it has ended. TimeoutError, _TooMuch."""
    assert child.stdout is not None  # noqa: S101  both were made with it
    assert child.stderr is not None  # noqa: S101
    said = {child.stdout: bytearray(), child.stderr: bytearray()}
    with selectors.DefaultSelector() as waiting:
        for stream in said:
            waiting.register(stream, selectors.EVENT_READ, stream)
        while waiting.get_map():
            ready = waiting.select(max(0.0, deadline_seconds - monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                part = os.read(key.fd, _PART_BYTES)
                if not part:
                    waiting.unregister(key.fileobj)
                elif key.data is child.stdout or len(said[key.data]) < _MOST_REASON_BYTES:
                    said[key.data] += part
                if len(said[child.stdout]) > MOST_BYTES:
                    raise _TooMuch
    try:
        child.wait(max(0.0, deadline_seconds - monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    return bytes(said[child.stdout]), bytes(said[child.stderr])


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends what is left of it, with what it has started."""
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _how(returncode: int) -> str:
    return f"it ended with {returncode}" if returncode > 0 else f"it was ended by {signal.Signals(-returncode).name}"
