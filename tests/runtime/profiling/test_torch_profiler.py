"""Scripts that use torch.profiler, unmodified."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.profiled_scripts import WITH_PROFILER, output_of

WITH_SCHEDULE = """
activities = [ProfilerActivity.CPU]
with profile(
    activities=activities, schedule=schedule(wait=1, warmup=1, active=3, repeat=1), with_stack=True,
    profile_memory=True, record_shapes=True, with_flops=True,
    on_trace_ready=tensorboard_trace_handler("made", use_gzip=True),
) as profiler:
    for _ in range(6):
        step()
        profiler.step()
"""
PLAIN = """
with profile() as profiler:
    for _ in range(4): step()
profiler.export_chrome_trace("plain.json")
print(profiler.key_averages().table(sort_by="self_device_time_total", row_limit=8))
rows = profiler.key_averages()
print(sum(row.self_device_time_total for row in rows if str(row.device_type).endswith("XLA")))
print(sum(row.self_device_time_total for row in rows if str(row.device_type).endswith("CPU")))
"""


def kernels(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event.get("cat") == "kernel"]


def inside(document: dict[str, Any], name: str) -> list[tuple[float, float]]:
    found = [e for e in document["traceEvents"] if e.get("ph") == "X" and str(e.get("name")).startswith(name)]
    return [(event["ts"], event["ts"] + event["dur"]) for event in found]


def test_a_trace_of_a_schedule_has_the_operators_of_its_active_steps(tmp_path: Path) -> None:
    output_of(tmp_path, WITH_PROFILER + WITH_SCHEDULE)
    (path,) = (tmp_path / "made").iterdir()
    from torch.profiler._trace_validator import validate_trace

    assert validate_trace(str(path)) == (True, [])
    document = json.loads(gzip.decompress(path.read_bytes()))
    steps = inside(document, "ProfilerStep#")
    assert len(steps) == 3
    products = [event for event in kernels(document) if event["name"] == "aten::linear"]
    assert len(products) == 2 * 3
    slack_us = 1_000
    begin, end = min(step[0] for step in steps) - slack_us, max(step[1] for step in steps) + slack_us
    assert all(begin <= event["ts"] and event["ts"] + event["dur"] <= end for event in kernels(document))
    assert all(event["args"]["source"].endswith("script.py:10") for event in products)
    named = {
        event["args"]["name"]
        for event in document["traceEvents"]
        if event["ph"] == "M" and event["name"] == "process_name" and event["pid"] == 0
    }
    assert named == {"NeuronCore 0 (rank 0)"}
    assert any(event.get("cat") == "cpu_op" for event in document["traceEvents"])
    assert inside(document, "forward")


def test_a_table_has_columns_of_the_device_that_add_up(tmp_path: Path) -> None:
    told = output_of(tmp_path, WITH_PROFILER + PLAIN)
    assert "Self XLA" in told
    assert "Self XLA time total" in told
    *_, of_device, of_calls = told.split()
    assert float(of_device) > 0
    assert float(of_calls) == pytest.approx(float(of_device), rel=1e-6)
    document = json.loads((tmp_path / "plain.json").read_text())
    assert float(of_device) == pytest.approx(sum(event["dur"] for event in kernels(document)), rel=1e-3)


def test_both_profiles_can_be_taken_at_once(tmp_path: Path) -> None:
    from neurontools.profile import read_directory

    output_of(tmp_path, WITH_PROFILER + PLAIN, "--profile", "made")
    (profile,) = read_directory(tmp_path / "made")
    assert len(profile.steps) == 7
    assert sum(profile.executions.column("operator_count")) == len(profile.operator_ns)
    assert kernels(json.loads((tmp_path / "plain.json").read_text()))


def test_a_process_without_cores_profiles_as_torch_does(tmp_path: Path) -> None:
    script = """
import torch
from torch.profiler import profile
with profile() as profiler: torch.ones(3) + 1
profiler.export_chrome_trace("plain.json")
print(profiler.key_averages().table())
"""
    (tmp_path / "script.py").write_text(script)
    import os
    import subprocess
    import sys

    from tests.harness.paths import ROOT

    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Self XLA" not in done.stdout
    assert not kernels(json.loads((tmp_path / "plain.json").read_text()))
