"""Groups of a real fleet of simulated hosts, against a count over the snapshots of its daemons."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from neurontools.cli.top.command import main as neuron_top
from neurontools.client import Client
from neurontools.testing import SimulatedFleet
from tests.harness.command import call_main
from tests.harness.waiting import HANG_SECONDS

MIX = "trn1.2xlarge/steady=3,trn1.32xlarge/steady=2,inf2.24xlarge=2,trn1.2xlarge=1"


@pytest.mark.slow
def test_groups_by_type_user_and_job_agree_with_a_count_over_all_snapshots() -> None:
    with SimulatedFleet(8, mix=MIX, interval_seconds=0.5) as fleet:
        hosts: dict[str, Counter[str]] = {by: Counter() for by in ("type", "user", "job")}
        held: dict[str, Counter[str]] = {by: Counter() for by in hosts}
        for place in fleet.places:
            with Client(place.address, timeout_seconds=HANG_SECONDS) as client:
                snapshot = client.snapshot()
            users = {process.user or "" for process in snapshot.processes}
            jobs = {process.job_name or "" for process in snapshot.processes}
            groups = {
                "type": {snapshot.instance.instance_type},
                "user": users or {"no user"},
                "job": jobs or {"no job"},
            }
            held_count = len({core for process in snapshot.processes for core in process.core_indices})
            for by, values in groups.items():
                hosts[by].update(dict.fromkeys(values, 1))
                held[by].update(dict.fromkeys(values, held_count))
        for by, host_counts in hosts.items():
            ended = call_main(neuron_top, "--hostfile", fleet.hostfile, "--json", "--group-by", by)
            found = json.loads(ended.stdout)["groups"]
            assert {group["value"]: group["live_host_count"] for group in found} == host_counts
            assert {group["value"]: group["held_neuroncore_count"] for group in found} == held[by]
        assert hosts["type"] == {"trn1.2xlarge": 4, "trn1.32xlarge": 2, "inf2.24xlarge": 2}
        assert sum(hosts["user"].values()) == 8
