"""The hosts of a Slurm job, from scontrol."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
from time import monotonic

from neurontools.fleet.hosts import HostList, HostListBuilder
from neurontools.util.errors import EXIT_FAILURE, EXIT_NOT_FOUND, EXIT_USAGE, UserError
from neurontools.util.terminal import excerpt

_JOB = re.compile(r"[0-9]{1,10}([_+][0-9]{1,10})?")
_NODES = re.compile(r"\bNodeList=(\S+)")
_STATE = re.compile(r"\bJobState=(\w+)")
_SECONDS = 20.0
_NO_NODES = ("", "(null)", "None")


def slurm_job_hosts(job: str) -> HostList:
    """Returns the nodes of a job as hosts to reach by SSH. Raises UserError if there are none or scontrol fails."""
    if not _JOB.fullmatch(job):
        raise UserError(f"--slurm {excerpt(job, 40)}: is not a job; give its number, as squeue shows it", EXIT_USAGE)
    shown = _run_for_job(job, "show", "--oneliner", "job", job)
    lists = [found for found in _NODES.findall(shown) if found not in _NO_NODES]
    if not lists:
        state = _STATE.search(shown)
        word = state[1].lower() if state else "not running"
        raise UserError(f"--slurm {job}: the job is {word} and has no nodes; wait until it runs", EXIT_NOT_FOUND)
    collected = HostListBuilder()
    for name in dict.fromkeys(_run_for_job(job, "show", "hostnames", ",".join(lists)).split()):
        collected.add(f"{name} slurm_job={job}", f"--slurm {job}")
    return collected.hosts()


def _run_for_job(job: str, *arguments: str) -> str:
    """Runs scontrol. If it fails, raises UserError with the job and the message of scontrol."""
    try:
        return run_scontrol(*arguments, timeout_seconds=_SECONDS, next_step="see squeue")
    except ScontrolMissing as error:
        raise UserError(f"--slurm {job}: {error}, or give --hosts", error.exit_code) from None
    except UserError as error:
        raise UserError(f"--slurm {job}: {error}", error.exit_code) from None


MOST_BYTES = 8 << 20
"""Limit on the size of an answer; enough for the names of far more nodes than a cluster has."""

_REACH_IT = "is slurmctld running?"
_FATAL = "fatal: "
_NEXT_STEPS = {"Unable to contact": _REACH_IT, _FATAL: "see slurm.conf, or set SLURM_CONF"}
_MOST_REASON_BYTES = 4096
_PART_BYTES = 1 << 16
_ENVIRONMENT = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}  # fixed formats, because this module parses the output


class ScontrolMissing(UserError):
    """scontrol is not installed."""


def run_scontrol(*arguments: str, timeout_seconds: float, next_step: str) -> str:
    """Runs scontrol with limits on time and size, and returns its output.

    Raises UserError if scontrol is missing, fails or exceeds a limit.
    """
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
        raise ScontrolMissing(
            "scontrol is not installed here; run this on a host with Slurm's commands", EXIT_USAGE
        ) from None
    except OSError as error:
        raise UserError(f"{name}: {error.strerror}; check the installation of Slurm") from error
    try:
        output, complaint = _read(child, monotonic() + timeout_seconds)
    except TimeoutError:
        raise UserError(f"{name} gave no answer within {timeout_seconds:g} s; {_REACH_IT}", EXIT_USAGE) from None
    except _TooMuch:
        raise UserError(
            f"{name} printed more than {MOST_BYTES >> 20} MiB; check that it is Slurm's command", EXIT_FAILURE
        ) from None
    finally:
        _kill(child)
    if child.returncode:
        lines = (complaint.strip() or output[:_MOST_REASON_BYTES].strip()).decode("utf-8", "replace").splitlines()
        # scontrol may write other messages before the fatal error.
        line = next((each for each in lines if _FATAL in each), lines[0]) if lines else _exit_text(child.returncode)
        cause = excerpt(line.removeprefix("scontrol: "), 120)
        step = next((step for words, step in _NEXT_STEPS.items() if words in cause), next_step)
        raise UserError(f"{name}: {cause}; {step}", EXIT_NOT_FOUND)
    return output.decode("utf-8", "replace")


class _TooMuch(Exception):
    """The output of scontrol exceeds MOST_BYTES."""


def _read(child: subprocess.Popen[bytes], deadline_seconds: float) -> tuple[bytes, bytes]:
    """Returns stdout and the start of stderr. Raises TimeoutError at the deadline, _TooMuch if stdout is too long."""
    assert child.stdout is not None  # noqa: S101 - both are pipes
    assert child.stderr is not None  # noqa: S101
    outputs = {child.stdout: bytearray(), child.stderr: bytearray()}
    with selectors.DefaultSelector() as waiting:
        for stream in outputs:
            waiting.register(stream, selectors.EVENT_READ, stream)
        while waiting.get_map():
            ready = waiting.select(max(0.0, deadline_seconds - monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                part = os.read(key.fd, _PART_BYTES)
                if not part:
                    waiting.unregister(key.fileobj)
                elif key.data is child.stdout or len(outputs[key.data]) < _MOST_REASON_BYTES:
                    outputs[key.data] += part
                if len(outputs[child.stdout]) > MOST_BYTES:
                    raise _TooMuch
    try:
        child.wait(max(0.0, deadline_seconds - monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    return bytes(outputs[child.stdout]), bytes(outputs[child.stderr])


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kills the process group if it still runs."""
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _exit_text(returncode: int) -> str:
    return f"exit code {returncode}" if returncode > 0 else f"killed by {signal.Signals(-returncode).name}"
