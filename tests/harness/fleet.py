"""Hosts for tests of many: an ssh that stays on this host, and states without a daemon."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from neurontools.fleet.feed import FleetFeed
from neurontools.fleet.hosts import HostAddress, Reach
from neurontools.fleet.states import HostLink, HostState
from neurontools.fleet.summary import HostSummary, summarize_host
from neurontools.model import Snapshot
from tests.harness.paths import NEURON_LS

# What ssh does as far as a tunnel needs it: options, the host, then the command by a shell of the other side.
SSH = """#!/bin/sh
while [ "$1" != "--" ]; do shift; done
shift
test "$1" = refused && { echo "ssh: connect to host $1 port 22: Connection refused" >&2; exit 255; }
test "$1" = denied && { printf 'banner\\n\\033[2Jroot@denied: Permission denied (publickey).\\n' >&2; exit 255; }
shift
exec sh -c "$*"
"""


def ssh_environment(directory: Path, socket_path: str) -> dict[str, str]:
    """Variables with which every host by SSH is the daemon at this socket; those called refused and denied are not."""
    command = directory / "ssh"
    command.write_text(SSH)
    command.chmod(0o755)
    return {
        "NEURONTOOLS_SSH": str(command),
        "NEURONTOOLS_REMOTE_LS": f"{sys.executable} {NEURON_LS} --socket {socket_path}",
    }


def live(name: str, snapshot: Snapshot, received_at_seconds: float = 100.0, **changes: object) -> HostState:
    """A host that has told this snapshot."""
    summary: HostSummary = replace(summarize_host(snapshot, name), **changes)  # type: ignore[arg-type]
    place = HostAddress(name, Reach.SOCKET, f"/run/{name}.sock")
    return HostState(place, HostLink.LIVE, summary=summary, received_at_seconds=received_at_seconds)


def lost(name: str, reason: str, before: HostState | None = None) -> HostState:
    """A host that can't be reached, or not any more."""
    state = before or HostState(HostAddress(name, Reach.SSH, name))
    return replace(state, link=HostLink.LOST, loss_reason=reason)


class StillHosts(FleetFeed):
    """Hosts of which nothing new comes."""

    interval_seconds = 5.0
    is_settled = True
    longest_wait_seconds = 0.0

    def __init__(self, *states: HostState) -> None:
        super().__init__()
        self._states = states

    @property
    def states(self) -> tuple[HostState, ...]:
        return self._states

    def socket_path(self, name: str) -> str | None:
        raise AssertionError("a view starts nothing")

    def start(self, notify: Callable[[], None] = lambda: None) -> None:
        pass

    def close(self) -> None:
        pass
