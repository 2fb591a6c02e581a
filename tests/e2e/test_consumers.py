"""Programs that others wrote for the original tools: run for real where they are installed, else as they read.

Scalene (scalene_neuron.py) runs `neuron-ls` and `neuron-monitor -c FILE` from PATH; Ray runs
/opt/aws/neuron/bin/neuron-ls --json-output and sums nc_count; Datadog's aws_neuron check and the OpenTelemetry
collector read the exporter through a Prometheus parser.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from neurontools.exporters.exposition import openmetrics_format, text_format
from neurontools.exporters.prometheus import SnapshotMetrics
from tests.conftest import RunningDaemon, StartDaemon
from tests.exporters.test_prometheus import FORMAT
from tests.scenario_host import ScenarioHost

ROOT = Path(__file__).parents[2]


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> RunningDaemon:
    return start_daemon("--simulate", "trn1.32xlarge", "--load", "steady", "--interval", "0.1")


@pytest.fixture
def tools(tmp_path: Path, daemon: RunningDaemon) -> Path:
    """A directory with the commands, for PATH."""
    for name, arguments in (
        ("neuron-ls", str(ROOT / "scripts/neuron-ls")),
        ("neuron-monitor", "-m neurontools.cli.monitor"),
    ):
        command = tmp_path / name
        command.write_text(
            f'#!/bin/sh\nNEURONTOOLS_SOCKET={daemon.socket} exec "{sys.executable}" {arguments} "$@"\n', "utf-8"
        )
        command.chmod(0o755)
    return tmp_path


def test_scalene_reads_neuron_monitor(tools: Path) -> None:
    pytest.importorskip("scalene", reason="a public consumer that isn't installed")
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
        timeout=60,
        check=True,
    )
    has_devices, cores, utilization, memory = done.stdout.split()
    assert (has_devices, cores) == ("True", "32")
    assert 0.5 < float(utilization) <= 1.0
    assert float(memory) > 1000
    assert "error" not in done.stdout.lower()


def test_ray_reads_neuron_ls(tools: Path) -> None:
    done = subprocess.run([tools / "neuron-ls", "--json-output"], capture_output=True, check=True)
    assert sum(device.get("nc_count", 0) for device in json.loads(done.stdout)) == 32
    assert done.stderr == b""


def test_checks_read_the_metrics_with_a_prometheus_parser() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="a public consumer that isn't installed")
    openmetrics = pytest.importorskip("prometheus_client.openmetrics.parser")
    host = ScenarioHost("trn1.32xlarge")
    before, now = host.at(10), host.at(11)
    metrics = SnapshotMetrics(1_767_323_000.0)
    text = text_format(metrics.families(now, before, (), 95e12)).decode()
    names = {sample.name for family in parser.text_string_to_metric_families(text) for sample in family.samples}
    assert set(FORMAT) <= names
    text = openmetrics_format(metrics.families(now, before, (), 95e12)).decode()
    families = {family.name: family for family in openmetrics.text_string_to_metric_families(text)}
    assert families["execution_errors"].type == "counter"
    assert families["instance"].type == "info"
