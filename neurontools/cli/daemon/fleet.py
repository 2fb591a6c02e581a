"""Many hosts asked once, for commands that print and end."""

from __future__ import annotations

from collections.abc import Mapping

from neurontools.errors import EXIT_USAGE, UserError
from neurontools.fleet.direct_feed import DirectFeed
from neurontools.fleet.hosts import Hosts, Reach, named_hosts, read_hostfile
from neurontools.fleet.states import HostState

_ANSWER_SECONDS = {Reach.SOCKET: 8.0, Reach.SSH: 30.0}
_SECONDS_A_HOST = 0.1  # hosts are asked so many at a time


def asked_hosts(given: Mapping[str, str]) -> Hosts:
    """The hosts of --hosts or --hostfile; UserError when there is none."""
    hosts = read_hostfile(given["hostfile"]) if "hostfile" in given else named_hosts(given["hosts"])
    if not hosts.places:
        cause = hosts.troubles[0] if hosts.troubles else f"--hostfile {given.get('hostfile', '')[:200]}: names no host"
        raise UserError(f"{cause}; write a host a line", EXIT_USAGE)
    return hosts


def asked_once(hosts: Hosts) -> tuple[HostState, ...]:
    """How it stands with each once all have answered, or are known not to."""
    with DirectFeed(hosts.places) as feed:
        feed.start()
        wait_for_all(feed, hosts)
        return feed.states


def wait_for_all(feed: DirectFeed, hosts: Hosts) -> None:
    """Wait until every host has answered or is known not to, in bounded time."""
    seconds = max(_ANSWER_SECONDS[place.reach] for place in hosts.places) + _SECONDS_A_HOST * len(hosts.places)
    feed.wait_settled(seconds)
