"""The hosts of a Slurm job, asked of Slurm's own commands."""

from __future__ import annotations

import re
import subprocess

from neurontools.errors import EXIT_NOT_FOUND, EXIT_USAGE, UserError
from neurontools.fleet.hosts import Collected, Hosts
from neurontools.text.terminal import cut, visible

_JOB = re.compile(r"[0-9]{1,10}([_+][0-9]{1,10})?")
_NODES = re.compile(r"\bNodeList=(\S+)")
_STATE = re.compile(r"\bJobState=(\w+)")
_SECONDS = 20.0
_NO_NODES = ("", "(null)", "None")


def job_hosts(job: str) -> Hosts:
    """The nodes that a job runs on, reached by SSH; UserError when there are none, or Slurm doesn't tell."""
    if not _JOB.fullmatch(job):
        raise UserError(f"--slurm {cut(visible(job), 40)}: is no job; give its number, as squeue shows it", EXIT_USAGE)
    shown = _told(job, "show", "--oneliner", "job", job)
    lists = [found for found in _NODES.findall(shown) if found not in _NO_NODES]
    if not lists:
        state = _STATE.search(shown)
        word = state[1].lower() if state else "not running"
        raise UserError(f"--slurm {job}: the job is {word} and has no nodes; wait until it runs", EXIT_NOT_FOUND)
    collected = Collected()
    for name in dict.fromkeys(_told(job, "show", "hostnames", ",".join(lists)).split()):
        collected.add(f"{name} slurm_job={job}", f"--slurm {job}")
    return collected.hosts()


def _told(job: str, *arguments: str) -> str:
    """What scontrol prints; UserError in its own words when it fails."""
    try:
        done = subprocess.run(
            ["scontrol", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise UserError(
            f"--slurm {job}: there is no scontrol here; run it where Slurm's commands are, or give --hosts", EXIT_USAGE
        ) from None
    except (OSError, subprocess.TimeoutExpired):
        raise UserError(f"--slurm {job}: scontrol does not answer; is slurmctld running?", EXIT_USAGE) from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        cause = cut(visible(said[0]), 120) if said else f"it ended with {done.returncode}"
        raise UserError(f"--slurm {job}: scontrol: {cause}; see squeue", EXIT_NOT_FOUND)
    return done.stdout.decode("utf-8", "replace")
