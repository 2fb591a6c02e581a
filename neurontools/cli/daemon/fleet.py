"""Many hosts, for the commands that show them: which are meant, and by which feed."""

from __future__ import annotations

from collections.abc import Mapping

from neurontools.errors import EXIT_USAGE, UserError
from neurontools.fleet.direct_feed import DirectFeed
from neurontools.fleet.feed import FleetFeed
from neurontools.fleet.hosts import Hosts, named_hosts, read_hostfile


def opened_feed(given: Mapping[str, str], interval_seconds: float | None = None) -> tuple[FleetFeed, tuple[str, ...]]:
    """The feed of the hosts that the options name, to be started, and what is wrong with some of the names.

    UserError when no host is named.
    """
    if "prometheus" in given:
        from neurontools.fleet.prometheus.access import Access, read_access
        from neurontools.fleet.prometheus.feed import PrometheusFeed

        access = read_access(given["prometheus-config"]) if "prometheus-config" in given else Access()
        return PrometheusFeed(given["prometheus"], access, interval_seconds), ()
    hosts = asked_hosts(given)
    return DirectFeed(hosts.places, interval_seconds), hosts.troubles


def asked_hosts(given: Mapping[str, str]) -> Hosts:
    """The hosts of --hosts or --hostfile; UserError when there is none."""
    hosts = read_hostfile(given["hostfile"]) if "hostfile" in given else named_hosts(given["hosts"])
    if not hosts.places:
        cause = hosts.troubles[0] if hosts.troubles else f"--hostfile {given.get('hostfile', '')[:200]}: names no host"
        raise UserError(f"{cause}; write a host a line", EXIT_USAGE)
    return hosts
