"""Parses the options that name hosts, and opens the feed of these hosts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from neurontools.fleet.feed import DirectFeed, FleetFeed
from neurontools.fleet.hosts import HostAddress, HostList, Reach, parse_hosts_option, read_file_sd, read_hostfile
from neurontools.fleet.slurm import slurm_job_hosts
from neurontools.util.errors import EXIT_USAGE, UserError

if TYPE_CHECKING:
    from neurontools.rpc.tunnel_registry import TunnelSet


def open_fleet_feed(
    given: Mapping[str, str], interval_seconds: float | None = None
) -> tuple[FleetFeed, tuple[str, ...]]:
    """Returns a feed of snapshots from the named hosts, not started yet, and error texts for invalid names.

    Raises UserError if no host is named.
    """
    if "prometheus" in given:
        from neurontools.fleet.prometheus.feed import PrometheusFeed
        from neurontools.fleet.prometheus.server import PrometheusAccess, read_prometheus_access

        file = given.get("prometheus-config")
        access = PrometheusAccess() if file is None else read_prometheus_access(file)
        return PrometheusFeed(given["prometheus"], access, interval_seconds), ()
    hosts = requested_hosts(given)
    return open_direct_feed(hosts.places, given, interval_seconds), hosts.problems


def open_direct_feed(
    places: Sequence[HostAddress], given: Mapping[str, str], interval_seconds: float | None = None
) -> DirectFeed:
    """Returns a feed of snapshots from these hosts, not started yet. `given` has the options of TLS."""
    tunnels: TunnelSet | None = None
    if any(place.reach is Reach.TLS for place in places):
        from neurontools.rpc.tunnel_registry import TunnelSet, client_tls

        tunnels = TunnelSet(client_tls(given, os.environ))
    return DirectFeed(places, interval_seconds, tunnels)


def requested_hosts(given: Mapping[str, str]) -> HostList:
    """Returns the hosts that an option names. Raises UserError if no host is named."""
    if "hosts" in given:
        return parse_hosts_option(given["hosts"])
    name = next(name for name in _READ if name in given)
    hosts = _READ[name](given[name])
    if not hosts.places:
        cause = hosts.problems[0] if hosts.problems else f"--{name} {given[name][:200]}: names no host"
        raise UserError(f"{cause}; name one", EXIT_USAGE)
    return hosts


_READ: dict[str, Callable[[str], HostList]] = {
    "hostfile": read_hostfile,
    "file-sd": read_file_sd,
    "slurm": slurm_job_hosts,
}
