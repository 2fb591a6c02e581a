"""neuron-top and neuron-ls of many hosts as a real Prometheus knows them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from neurontools.cli.ls.command import main as neuron_ls
from neurontools.cli.top.command import main as neuron_top
from neurontools.fleet.prometheus.feed import PrometheusFeed
from neurontools.fleet.prometheus.server import PrometheusAccess, PrometheusServer
from neurontools.fleet.states import HostLink, HostState
from neurontools.model import Severity
from neurontools.testing import SimulatedFleet
from tests.harness.command import call_main
from tests.harness.dashboard_terminal import Terminal
from tests.harness.fleet import ssh_environment
from tests.harness.ports import free_port, free_ports
from tests.harness.prometheus_server import Prometheus, VictoriaMetrics, needs_prometheus, needs_victoria_metrics
from tests.harness.running_daemon import Attachment, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

pytestmark = needs_prometheus
MIX = "trn1.2xlarge/steady,inf2.24xlarge,trn1.2xlarge/ecc-burst"


@pytest.fixture
def fleet() -> Iterator[SimulatedFleet]:
    with SimulatedFleet(3, mix=MIX, interval_seconds=0.5, processes=3, metrics_from=free_ports(3)[0]) as fleet:
        yield fleet


def told(server: Prometheus, count: int = 3) -> tuple[HostState, ...]:
    """The hosts, once all are told of with their devices."""

    def look() -> tuple[HostState, ...] | None:
        with PrometheusFeed(server.url) as feed:
            feed.start()
            assert feed.wait_settled(HANG_SECONDS)
            states = feed.states
            assert feed.query_count <= 10
            assert feed.answered_bytes > 0 or not states
            whole = sum(state.summary is not None and bool(state.summary.devices) for state in states)
            return states if whole == count else None

    return wait_until(look)


def run(main: Callable[[], object], server: Prometheus, *arguments: str) -> subprocess.CompletedProcess[str]:
    return call_main(main, "--prometheus", server.url, *arguments, COLUMNS="150")


def test_hosts_are_told_and_those_that_are_lost(fleet: SimulatedFleet, tmp_path: Path) -> None:
    with Prometheus(tmp_path, file_sd=Path(fleet.directory, "file_sd.json")) as server:
        check(told(server))
        server.answer(f"neurontools_device_health >= {Severity.WARNING.value}")
        found = wait_until(lambda: d if (d := run(neuron_ls, server, "--health")).returncode == 5 else None)
        assert "host-" in found.stdout
        assert "ECC" in found.stdout
        listed = run(neuron_ls, server)
        assert (listed.returncode, listed.stderr) == (0, "")
        assert listed.stdout.count("host-") == 3
        assert "3 hosts, 3 live" in run(neuron_top, server, "--once").stdout
        fleet.stop("host-001")
        server.answer('up{node="host-001"} == 0')
        document = json.loads(run(neuron_top, server, "--json").stdout)
        (lost,) = [host for host in document["hosts"] if host["link"] == "lost"]
        assert (lost["name"], lost["trouble"]) == ("host-001", "it does not answer Prometheus")
        assert lost["neuroncore_count"] is None


def check(states: Iterable[HostState]) -> None:
    by_type = {}
    for state in states:
        assert state.link is HostLink.LIVE
        assert state.summary is not None
        by_type[state.summary.instance_type, state.summary.held_neuroncore_count] = state.summary
    assert sorted(state.place.name for state in states) == ["host-000", "host-001", "host-002"]
    idle, busy = by_type["inf2.24xlarge", 0], by_type["trn1.2xlarge", 2]
    assert (idle.neuroncore_count, idle.free_neuroncore_count, idle.utilization_ratio) == (12, 12, None)
    assert [cell.held_neuroncore_count for cell in idle.devices] == [0] * 6
    assert (idle.job_count, busy.job_count) == (0, 1)
    assert (busy.neuroncore_count, busy.free_neuroncore_count, busy.busy_neuroncore_count) == (2, 0, 2)
    assert busy.utilization_ratio is not None
    assert 0.5 < busy.utilization_ratio <= 1


@pytest.mark.slow
@needs_victoria_metrics
def test_victoria_metrics_knows_the_same_hosts_at_the_same_time(fleet: SimulatedFleet, tmp_path: Path) -> None:
    targets = Path(fleet.directory, "file_sd.json")
    with Prometheus(tmp_path, file_sd=targets) as server, VictoriaMetrics(tmp_path, file_sd=targets) as victoria:

        def view(of: Prometheus) -> list[dict[str, Any]]:
            """What each host is and does, without its rates and ages."""
            document = json.loads(run(neuron_top, of, "--json", "--group-by", "user").stdout)
            assert not [line for line in document["troubles"] if "Prometheus did" in line]
            names = ("name", "link", "trouble", "health", "instance_type", "users", "job_count")
            kept = (*names, "neuroncore_count", "held_neuroncore_count", "free_neuroncore_count")
            hosts = [{name: host[name] for name in kept} for host in document["hosts"]]
            of_job = ("name", "rank_count", "neuroncore_count")
            jobs = [{name: job[name] for name in of_job} for job in document["jobs"]]
            findings = sorted(finding["reason"] for host in document["hosts"] for finding in host["findings"])
            groups = sorted(group["value"] for group in document["groups"])
            return [*hosts, *jobs, {"findings": findings, "groups": groups}]

        def same(is_whole: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]] | None:
            ours, theirs = view(server), view(victoria)
            return ours if ours == theirs and is_whole(ours) else None

        known = wait_until(lambda: same(lambda each: len(each) == 6 and bool(each[-1]["findings"])))
        assert known[-1]["groups"] == ["no user", "synth-ada", "synth-ben"]
        with closing(PrometheusServer(victoria.url, PrometheusAccess())) as client:
            before = int(time.time())
            (now,) = client.query("time()", HANG_SECONDS).samples
            assert now.value >= before, "it answers as of now, so the ages are true"
        fleet.stop("host-001")
        lost = {"name": "host-001", "link": "lost", "trouble": "it does not answer Prometheus"}
        wait_until(lambda: same(lambda each: any(lost.items() <= host.items() for host in each)))


@pytest.mark.slow
def test_users_are_asked_for_where_hosts_are_grouped_by_them(start_daemon: StartDaemon, tmp_path: Path) -> None:
    port = free_port()
    flags = ("--simulate", "trn1.2xlarge", "--load", "steady", "--load-neuroncores", "1")
    daemon = start_daemon(*flags, "--metrics-listen", f"127.0.0.1:{port}")
    with Prometheus(tmp_path, f"127.0.0.1:{port}") as server, closing(Attachment(daemon)) as job:
        job.attach(core_count=1)
        me = next(each.user or str(each.uid) for each in daemon.snapshot().processes if not each.synthetic)
        users = sorted((me, "synth-ada"))
        wait_until(lambda: len(server.query("neurontools_user_processes == 1")) == 2)
        wait_until(lambda: server.query("neurontools_neuroncores_held == 2 and neurontools_neuroncores == 2"))

        def document(*arguments: str) -> dict[str, Any]:
            found: dict[str, Any] = json.loads(run(neuron_top, server, "--json", *arguments).stdout)
            return found

        (host,) = document()["hosts"]
        assert (host["users"], host["user_count"]) == ([], None)
        made = document("--group-by", "user")
        (host,) = made["hosts"]
        assert (host["users"], host["user_count"]) == (users, 2)
        assert (host["neuroncore_count"], host["held_neuroncore_count"]) == (2, 2)
        assert sorted((group["value"], group["live_host_count"]) for group in made["groups"]) == [
            (user, 1) for user in users
        ]
        terminal = Terminal("--prometheus", server.url, home=tmp_path)
        try:
            terminal.shows("1 host, 1 live")
            terminal.press("bbbb")
            terminal.shows("+ synth-ada, 1 host")
            terminal.press("q")
            assert terminal.ends() == 0
        finally:
            terminal.close()


@pytest.mark.slow
def test_the_page_goes_into_a_host_by_ssh(
    fleet: SimulatedFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ssh_environment(tmp_path, fleet.places[0].address).items():
        monkeypatch.setenv(name, value)
    with Prometheus(tmp_path, file_sd=Path(fleet.directory, "file_sd.json")) as server:
        told(server)
        terminal = Terminal("--prometheus", server.url, home=tmp_path)
        try:
            terminal.shows("3 hosts, 3 live")
            terminal.press("\r")
            terminal.shows("NeuronCore v2 Utilization")
            terminal.press("q")
            terminal.shows("3 hosts, 3 live")
            server.process.kill()
            terminal.press("q")
            assert terminal.ends() == 0
        finally:
            terminal.close()


def test_none_is_there() -> None:
    done = call_main(neuron_top, "--prometheus", "http://127.0.0.1:1", "--once")
    assert (done.returncode, done.stderr) == (12, "neuron-top: Prometheus: not reached: connection refused\n")
