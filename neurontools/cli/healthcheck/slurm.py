"""Slurm HealthCheckProgram: drains this node with a reason, or undrains it.

Slurm only runs this program, and kills it after 60 seconds (slurm.conf(5), HealthCheckProgram), so the program itself
drains the node. The program undrains only nodes that it drained: their drain reasons contain MARK.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from dataclasses import dataclass

from neurontools.fleet.slurm import ScontrolMissing, run_scontrol
from neurontools.model import health
from neurontools.model.health import HostVerdict, Owner
from neurontools.util.command_lifecycle import write_stderr
from neurontools.util.errors import EXIT_FAILURE, EXIT_USAGE, UserError
from neurontools.util.terminal import escape_controls, excerpt, truncate

MARK = "neuron-healthcheck: "
_PREFIXES = {Owner.NODE: "[node_problem] ", Owner.USER: "[user_problem] "}
_SCONTROL_SECONDS = 5.0  # limit of one scontrol call; three calls and the verdict must stay below Slurm's 60 s
_MOST_REASON_CHARACTERS = 250
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")


@dataclass(frozen=True)
class SlurmNode:
    """Drain state of this node in Slurm."""

    is_drained: bool
    reason: str  # the drain reason, without the user and time that scontrol appends

    @property
    def is_ours(self) -> bool:
        return self.is_drained and self.reason.startswith(tuple(prefix + MARK for prefix in _PREFIXES.values()))


def apply_verdict(verdict: HostVerdict, given: dict[str, str]) -> tuple[str, int]:
    """Drains or undrains the node by the verdict. Returns the line to print and the exit code.

    Does nothing on a host without Slurm, or if the health is unknown.
    """
    signal.setitimer(signal.ITIMER_REAL, 0)  # stops the timer of --timeout: each scontrol call has its own limit
    name = given.get("node") or os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    if not _NODE_NAME.fullmatch(name):
        raise UserError(f"{excerpt(name, 60)} is not the name of a node; give one with --node NAME", EXIT_USAGE)
    reason = f"{verdict.severity_word}: {escape_controls(verdict.sentence)}"
    try:
        done = _update_node(name, _read_node(name), verdict, given)
    except ScontrolMissing:
        return f"{reason} [no scontrol here: nothing done]", 0
    except UserError as error:
        write_stderr(f"neuron-healthcheck: {error}")
        return f"{reason} [Slurm could not be asked: nothing done]", EXIT_FAILURE
    return f"{reason} [{done}]", 0


def drain_reason(verdict: HostVerdict) -> str:
    """Returns the drain reason: owner of the problem, MARK, name of the first finding, location and cause."""
    first = verdict.findings[0]
    # The drain reason names the node's operator as owner if at least one finding is the operator's.
    owners = map(health.finding_owner, verdict.findings)
    owner = Owner.NODE if Owner.NODE in owners else Owner.USER
    cause = escape_controls(verdict.sentence).replace('"', "'")
    return truncate(f"{_PREFIXES[owner]}{MARK}{health.finding_name(first)}: {cause}", _MOST_REASON_CHARACTERS)


def _update_node(name: str, node: SlurmNode, verdict: HostVerdict, given: dict[str, str]) -> str:
    """Drains or undrains the node if the health verdict requires it. Returns a sentence that describes the change."""
    would = "would be " if "dry-run" in given else ""
    if verdict.is_healthy is None or (verdict.is_healthy and not node.is_ours):
        return f"node {name} left as it is"
    if verdict.is_healthy:
        if "no-undrain" in given:
            return f"node {name} is drained by an earlier check; undrain it by hand"
        if not would:
            _scontrol("update", f"NodeName={name}", "State=UNDRAIN")
        return f"node {name} {would}undrained"
    reason = drain_reason(verdict)
    if node.is_drained and not node.is_ours:
        return f"node {name} is drained already: {escape_controls(truncate(node.reason, 80))}"
    if node.is_ours and node.reason == reason:
        return f"node {name} stays drained"
    if not would:
        _scontrol("update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}")
    return f"node {name} {would}drained"


def _read_node(name: str) -> SlurmNode:
    output = _scontrol("show", "node", name)
    state = re.search(r"^\s*State=(\S+)", output, re.MULTILINE)
    if state is None:
        raise UserError(f"scontrol show node {name}: says no state; is the node's name right (--node NAME)?")
    reason = re.search(r"^\s*Reason=(.*)$", output, re.MULTILINE)
    flags = {flag.rstrip("*$#~%@^!-") for flag in state[1].split("+")}
    reason_text = re.sub(r" \[[^\[\]]*@[^\[\]]*\]$", "", reason[1].strip()) if reason else ""
    return SlurmNode("DRAIN" in flags, reason_text)


def _scontrol(*arguments: str) -> str:
    return run_scontrol(*arguments, timeout_seconds=_SCONTROL_SECONDS, next_step="see slurmctld")
