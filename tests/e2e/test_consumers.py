"""Programs that others wrote for the original tools, run for real.

Scalene (scalene_neuron.py) runs `neuron-ls` and `neuron-monitor -c FILE` from PATH; Ray runs
/opt/aws/neuron/bin/neuron-ls --json-output and sums nc_count; Datadog's aws_neuron check reads the metrics. The
OpenTelemetry collector is no Python program; it reads as the Prometheus parser does.

Ray and Datadog's check are installed by `make consumers`, in an environment of their own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from neurontools.exporters.exposition import encode_openmetrics, encode_text
from neurontools.exporters.snapshot_metrics import SnapshotMetrics
from neurontools.testing import DriverTree
from tests.harness.consumers import consumer
from tests.harness.original_families import FORMAT
from tests.harness.paths import ROOT
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.scenario_host import ScenarioHost
from tests.harness.waiting import HANG_SECONDS, wait_until


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon("--simulate", "trn1.32xlarge", "--load", "steady", "--interval", "0.1")


@pytest.fixture
def tools(tmp_path: Path, daemon: RunningDaemon) -> Path:
    """A directory with the commands, for PATH."""
    for name, arguments in (
        ("neuron-ls", str(ROOT / "scripts/neuron-ls")),
        ("neuron-monitor", "-m neurontools.cli.monitor.command"),
    ):
        command = tmp_path / name
        command.write_text(
            f'#!/bin/sh\nNEURONTOOLS_SOCKET={daemon.socket} exec "{sys.executable}" {arguments} "$@"\n', "utf-8"
        )
        command.chmod(0o755)
    return tmp_path


@pytest.mark.slow
def test_scalene_reads_neuron_monitor(tools: Path) -> None:
    if find_spec("scalene") is None:  # not imported here: it changes LC_ALL
        pytest.skip("a public consumer that isn't installed")
    program = """
        import os, time
        from scalene.scalene_neuron import ScaleneNeuron
        neuron = ScaleneNeuron()
        neuron.start_monitor()
        while not (stats := neuron.get_stats())[0]:
            time.sleep(0.1)
        print(neuron.has_gpu(), neuron.get_num_cores(), *stats, flush=True)
        neuron._neuron_monitor._process.kill()
        os._exit(0)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    )
    has_devices, cores, utilization, memory = done.stdout.split()
    assert (has_devices, cores) == ("True", "32")
    assert 0.5 < float(utilization) <= 1.0
    assert float(memory) > 1000
    assert "error" not in done.stdout.lower()


@pytest.fixture
def tree() -> Iterator[DriverTree]:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces to be had")
    with DriverTree("trn1.32xlarge") as made:
        yield made


@pytest.mark.slow
def test_ray_schedules_on_neuroncores(tree: DriverTree) -> None:
    """A cluster of one node: it finds the cores by itself, and gives a task four of them."""
    program = """
        import os, ray, sys
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20,
                 _temp_dir=sys.argv[1])
        @ray.remote(resources={"neuron_cores": 4})
        def visible_cores():
            return os.environ["NEURON_RT_VISIBLE_CORES"]
        print(int(ray.cluster_resources()["neuron_cores"]), ray.get(visible_cores.remote()))
        ray.shutdown()
    """
    # Its sockets lie in it, so the path has to be short.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as directory:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "neurontools.testing.namespace", tree.directory),
                *(consumer("python"), "-c", textwrap.dedent(program), directory),
            ],
            env=os.environ | {"HOME": directory, "RAY_USAGE_STATS_ENABLED": "0"},
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
    assert done.stdout.split() == ["32", "0,1,2,3"], done.stderr


@pytest.mark.slow
def test_datadog_gets_all_metrics_of_its_integration(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(
        "--simulate", "trn1.32xlarge", "--load", "steady", "--interval", "0.1", "--metrics-listen", "127.0.0.1:0"
    )
    wait_until(lambda: all(process.total_latency for process in daemon.snapshot().processes))
    (url,) = re.findall(r"http://\S+/metrics", daemon.log)
    check = ROOT / "tests/harness/datadog_check.py"
    done = subprocess.run(
        [consumer("python"), check, url], capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told["health"]) == {0}, "OK at both runs"
    got = {
        name.removeprefix("aws_neuron.").removesuffix(".count"): samples for name, samples in told["metrics"].items()
    }
    # Datadog's own count of vCPUs ends as its counters do.
    assert got.keys() == {name.removesuffix(".count") for name in told["expected"]}
    _, ratio, tags = got["neuroncore.utilization_ratio"][-1]
    assert 0.5 < ratio <= 1
    assert {"neuroncore:31", "runtime_tag:synthetic-31", "instance_type:trn1.32xlarge"} <= set(tags)
    latest = got["execution.status"][-6 * 32 :]
    done_executions = [count for _, count, tags in latest if "status_type:completed" in tags]
    assert len(done_executions) == 32
    assert all("python_version:" in " ".join(tags) for _, _, tags in got["python_info"])


def test_checks_read_the_metrics_with_a_prometheus_parser() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="a public consumer that isn't installed")
    openmetrics = pytest.importorskip("prometheus_client.openmetrics.parser")
    host = ScenarioHost("trn1.2xlarge")
    before, now = host.at(10), host.at(11)
    metrics = SnapshotMetrics(1_767_323_000.0)
    text = encode_text(metrics.families(now, before, 95e12)).decode()
    names = {sample.name for family in parser.text_string_to_metric_families(text) for sample in family.samples}
    assert set(FORMAT) <= names
    text = encode_openmetrics(metrics.families(now, before, 95e12)).decode()
    families = {family.name: family for family in openmetrics.text_string_to_metric_families(text)}
    assert families["execution_errors"].type == "counter"
    assert families["instance"].type == "info"
