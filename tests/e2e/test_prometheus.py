"""A real Prometheus scrapes a real daemon, evaluates the shipped rules and answers the dashboards' queries."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.harness.original_families import FORMAT
from tests.harness.prometheus_server import Prometheus, needs_prometheus
from tests.harness.reporting_process import end, holder
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

pytestmark = needs_prometheus
DEPLOY = Path(__file__).parents[2] / "deploy"

# What the panels of AWS's public dashboard for neuron-monitor ask, once each: its title, for those that are drawn over
# time True, and the names and functions it combines.
AWS_QUERIES = [
    ("Instance Info", False, "instance_info"),
    ("Instance Count", True, "count(instance_info)\n"),
    ("vCPU Count", False, "sum (system_vcpu_count)"),
    ("vCPU Utilization", True, "avg(sum by (instance_id) (system_vcpu_usage_ratio))"),
    ("Host Memory Usage", True, "avg(system_memory_used_bytes / system_memory_total_bytes)"),
    ("Host Memory Usage", True, "avg(system_memory_used_bytes)"),
    ("Host vCPU Usage", True, "avg by (usage_type) (system_vcpu_usage_ratio)"),
    ("NeuronCores in Use", False, "count(neuroncore_utilization_ratio > 0)"),
    ("NeuronCore Utilization", True, "avg(neuroncore_utilization_ratio)"),
    ("NeuronCore Utilization", True, "avg by (neuroncore) (neuroncore_utilization_ratio)"),
    ("Execution Success Rate", True, 'sum(rate(execution_status_total{status_type="completed"}[1m]))'),
    ("Execution Error Rate", True, 'sum(rate(execution_status_total{status_type!="completed"}[1m]))'),
    ("Execution Latency", True, "avg by (percentile) (execution_latency_seconds)"),
    ("Neuron Runtime vCPU Usage", True, "avg by (usage_type) (neuron_runtime_vcpu_usage_ratio)"),
    (
        "Neuron Runtime Used Memory",
        True,
        "avg by (memory_location) (sum by (instance_id, memory_location) (neuron_runtime_memory_used_bytes))",
    ),
]
# What its legends show of the series.
AWS_LEGENDS = ("usage_type", "neuroncore", "percentile", "memory_location")
WAITING = "31 ranks wait for rank 0, PID "
# Queries of our own with the rest of its families.
OTHER_QUERIES = [
    "sum(increase(execution_errors_total[1m])) or vector(0)",
    "max(execution_latency_seconds{percentile='p99'})",
    "count(neuron_hardware_info)",
    "sum by (event_type) (hardware_ecc_events_total)",
]


@pytest.fixture
def daemon(start_daemon: StartDaemon, socket_directory: Path, port: int) -> RunningDaemon:
    configuration = socket_directory / "neurond.toml"
    configuration.write_text("[health]\nstuck_seconds = 1\nidle_seconds = 1\n", "utf-8")
    return start_daemon(
        *("--simulate", "trn1.32xlarge", "--load", "stuck-core", "--interval", "0.1", "--config", str(configuration)),
        *("--metrics-listen", f"127.0.0.1:{port}"),
    )


def dashboard_queries() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana/neuron.json").read_text("utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return [query.replace("$instance", ".*").replace("$__rate_interval", "1m") for query in queries]


def test_prometheus_reads_every_family(daemon: RunningDaemon, port: int, tmp_path: Path) -> None:
    with Prometheus(tmp_path, f"127.0.0.1:{port}") as server:
        server.answer("execution_latency_seconds")
        wait_until(lambda: server.last_errors() == [""])
        kinds = {name: found[0]["type"] for name, found in server.get("metadata").items()}
        for name, (kind, _) in FORMAT.items():
            # OpenMetrics, which Prometheus asks for, has the suffixes on the samples alone.
            family = re.sub(r"_(total|created|info)$", "", name)
            wanted = "info" if name.endswith("_info") else "counter" if family != name else kind
            assert kinds[family] == wanted, name
            server.answer(name)


@pytest.mark.slow
def test_prometheus_judges_and_answers_dashboards(daemon: RunningDaemon, port: int, tmp_path: Path) -> None:
    with Prometheus(tmp_path, f"127.0.0.1:{port}") as server:
        server.answer("execution_latency_seconds")
        for title, is_drawn_over_time, query in AWS_QUERIES:
            for series in server.answer(query, over_time=is_drawn_over_time):
                points = series["values"] if is_drawn_over_time else [series["value"]]
                assert all(float(value) >= 0 for _, value in points), title
                assert all(label in series["metric"] for label in AWS_LEGENDS if f"by ({label})" in query), title
        # Its variable for filters asks for the labels, and puts them into every selector.
        assert server.get("label/instance_type/values") == ["trn1.32xlarge"]
        server.answer('avg(neuroncore_utilization_ratio{instance_type="trn1.32xlarge"})')
        for query in OTHER_QUERIES:
            server.answer(query)
        for query in dashboard_queries():
            if "> " not in query and "findings" not in query:  # those are silent while all is well
                server.answer(query)
        health = server.answer('neurontools_device_health{neuron_device_index="0"} == 3')
        assert health[0]["metric"]["job"] == "neurond"

        def rules() -> set[str]:
            return {rule["health"] for group in server.get("rules")["groups"] for rule in group["rules"]}

        wait_until(lambda: "unknown" not in rules())  # every one was evaluated
        assert rules() == {"ok"}

        def alerts() -> list[tuple[str, str | None, bool]]:
            return [
                (each["labels"]["alertname"], each["labels"].get("finding"), WAITING in each["annotations"]["summary"])
                for each in server.get("alerts")["alerts"]
            ]

        # One for the host; that a busy machine was late may be another one's for a moment.
        wait_until(lambda: alerts() == [("NeuronHostUnhealthy", "stuck", True)])
        assert server.answer("neurontools_neuroncores_held == neurontools_neuroncores")
        daemon.stop()
        server.answer("up == 0")


def advised_relabelling() -> list[object]:
    """The rules of FLEET.md for processes that come and go."""
    page = (DEPLOY / "FLEET.md").read_text("utf-8").partition("### Processes that come and go")[2]
    block = re.search(r"    metric_relabel_configs:\n((?:      - .*\n)+)", page)
    assert block is not None
    rule = re.compile(r"- \{source_labels: \[(.+)\], regex: \"(.+)\", action: (\w+)\}")
    found = [rule.fullmatch(line.strip()) for line in block[1].splitlines()]
    return [{"source_labels": each[1].split(", "), "regex": each[2], "action": each[3]} for each in found if each]


def documented_joins() -> list[str]:
    """The queries of FLEET.md that join values with who a process is."""
    page = (DEPLOY / "FLEET.md").read_text("utf-8").partition("Join by what a process is known by")[2]
    lines = page.partition("\n## ")[0].splitlines()
    code = "\n".join(line[4:] for line in lines if line.startswith("    "))
    return [query.replace("\n", " ") for query in re.split(r"\n(?! )", code)]


@contextlib.contextmanager
def attached(daemon: RunningDaemon, **environment: str) -> Iterator[int]:
    """A process of its own that holds a NeuronCore; its PID."""
    process = holder(daemon.socket, NEURON_RT_NUM_CORES="1", **environment)
    try:
        yield process.pid
    finally:
        end(process)


def series_of(server: Prometheus, pid: int) -> set[str]:
    """The names of the series, stale ones too, that a process has left."""
    found = server.get("series", **{"match[]": f'{{pid="{pid}"}}'}) or []
    found += server.get("series", **{"match[]": f'{{runtime_tag="{pid}"}}'}) or []
    return {json.dumps(series, sort_keys=True) for series in found}


@pytest.mark.slow
def test_processes_come_and_go_without_leaving_much_or_breaking_joins(
    start_daemon: StartDaemon, port: int, tmp_path: Path
) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.1", "--metrics-listen", f"127.0.0.1:{port}")
    for name in ("plain", "advised"):
        (tmp_path / name).mkdir()
    advice = {"metric_relabel_configs": advised_relabelling()}
    with (
        Prometheus(tmp_path / "plain", f"127.0.0.1:{port}") as plain,
        Prometheus(tmp_path / "advised", f"127.0.0.1:{port}", scrape=advice) as advised,
    ):
        pids = []
        for _ in range(2):
            with attached(daemon) as pid:
                pids.append(pid)
                for server in (plain, advised):
                    wait_until(partial(series_of, server, pid))
                plain.answer(f'execution_status_total{{runtime_tag="{pid}"}}')
        for pid in pids:
            names = [json.loads(series)["__name__"] for series in series_of(plain, pid)]
            assert 30 < len(names) < 50
            by_tag = [name for name in names if not name.startswith("neurontools_")]
            assert set(names) - set(by_tag) >= {"neurontools_process_info", "neurontools_neuroncore_owner_info"}
            left = [json.loads(series) for series in series_of(advised, pid)]
            assert [series["__name__"] for series in left] == ["neurontools_neuroncore_owner_info"]
        advised.answer("neurontools_neuroncore_held")

        joins = documented_joins()
        assert len(joins) == len(advised_relabelling()) == 3
        job = {"NEURON_PROCESS_TAG": "job"}
        with attached(daemon, **job), attached(daemon, **job):
            wait_until(lambda: len(plain.query('neurontools_process_info{runtime_tag="job"}')) == 2)
            for query in joins:
                for series in plain.answer(query):
                    assert series["metric"]["user"]
            advised.answer('execution_status_total{runtime_tag="job"}')  # tags stay
        for query in joins:
            assert plain.query_range(query), "nor does it fail over the time in which processes came and went"
