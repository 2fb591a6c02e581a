"""The hosts of a Slurm job, asked of Slurm's own commands."""

from __future__ import annotations

import re

from neurontools.fleet.hosts import Collected, Hosts
from neurontools.fleet.scontrol import NoScontrol, scontrol
from neurontools.util.errors import EXIT_NOT_FOUND, EXIT_USAGE, UserError
from neurontools.util.terminal import excerpt

_JOB = re.compile(r"[0-9]{1,10}([_+][0-9]{1,10})?")
_NODES = re.compile(r"\bNodeList=(\S+)")
_STATE = re.compile(r"\bJobState=(\w+)")
_SECONDS = 20.0
_NO_NODES = ("", "(null)", "None")


def job_hosts(job: str) -> Hosts:
    """The nodes that a job runs on, reached by SSH; UserError when there are none, or Slurm doesn't tell."""
    if not _JOB.fullmatch(job):
        raise UserError(f"--slurm {excerpt(job, 40)}: is no job; give its number, as squeue shows it", EXIT_USAGE)
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
        return scontrol(*arguments, timeout_seconds=_SECONDS, next_step="see squeue")
    except NoScontrol as error:
        raise UserError(f"--slurm {job}: {error}, or give --hosts", error.exit_code) from None
    except UserError as error:
        raise UserError(f"--slurm {job}: {error}", error.exit_code) from None
