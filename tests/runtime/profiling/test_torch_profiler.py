"""Scripts that use torch.profiler, torch_xla's and torch_neuronx's profilers and torch.xla.memory, unmodified."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from neurontools.profile import read_directory
from neurontools.profile.analysis.report import build_report
from neurontools.views.drawing.glyphs import UNICODE
from neurontools.views.drawing.lines import plain_text
from neurontools.views.profile_report import profile_page
from tests.harness.profiled_scripts import WITH_PROFILER, output_of

SCHEDULED = """
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
START_AND_STOP = """
import torch_xla.debug.profiler as xp
xp.start_trace("logs")
step()
try:
    xp.start_trace("logs")
except RuntimeError as error:
    print("second:", error)
xp.stop_trace()
try:
    xp.stop_trace()
except RuntimeError as error:
    print("none:", error)
"""
PLAIN = """
with profile(with_flops=True) as profiler:
    for _ in range(4): step()
profiler.export_chrome_trace("plain.json")
print(profiler.key_averages().table(sort_by="self_device_time_total", row_limit=8))
rows = profiler.key_averages()
print("device", sum(row.self_device_time_total for row in rows if str(row.device_type).endswith("XLA")))
print("calls", sum(row.self_device_time_total for row in rows if str(row.device_type).endswith("CPU")))
print("flops", sum(row.flops for row in rows))
"""
NAMED = """
import torch_xla.debug.profiler as xp
for number in range(3):
    with xp.StepTrace("train_step", step_num=number):
        with xp.Trace("forward_part"):
            with xp.Trace("inner"): pass
            step()
"""
MEMORY = """
torch.xla.memory._record_memory_history(max_entries=100)
step()
kept = torch.ones(1000, 100).to(device)
torch.xla.synchronize()
snapshot = torch.xla.memory._snapshot()
torch.xla.memory._dump_snapshot("dump.pickle")
torch.xla.memory._record_memory_history(enabled=None)
print("snapshot", sum(segment["total_size"] for segment in snapshot["segments"]))
print("reserved", torch.xla.memory_reserved())
print(torch.xla.memory.memory_summary())
import torch_neuronx
assert torch_neuronx.memory_allocated() == torch.xla.memory_allocated()
"""
NEURONX = """
from torch_neuronx.profiling import NeuronConfig, NeuronProfiler, ProfileMode
config = NeuronConfig(modes=[ProfileMode.DEVICE, ProfileMode.RUNTIME], profile_output_dir="made")
with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.NEURON], experimental_config=config,
    schedule=schedule(wait=0, warmup=1, active=2, repeat=1), on_trace_ready=NeuronProfiler(config).export_trace,
) as profiler:
    for _ in range(3):
        step()
        profiler.step()
"""
EXPERIMENTAL = """
from torch_neuronx.experimental import profiler
with profiler.profile(port=9012, profile_type="trace", ms_duration=600_000):
    step()
with profiler.profile(neuron_tensorboard_plugin_dir="late", auto_start=False, traced_only=True) as late:
    step()
    late.start()
    step()
with profiler.profile(neuron_tensorboard_plugin_dir="never", auto_start=False):
    step()
with profiler.profile(neuron_tensorboard_plugin_dir="short", ms_duration=1):
    for _ in range(20): step()
"""
SERVER = """
import time, glob, torch_xla.debug.profiler as xp
server = xp.start_server(9012)  # a name, and no socket
xp.trace_detached("localhost:9012", "logs", duration_ms=50)
while not glob.glob("logs/plugins/profile/*/*.xplane.pb"): step()
try:
    xp.trace("10.0.0.1:9999", "logs")
except RuntimeError as error:
    print("other:", error)
"""
WITHOUT_DEVICE = """
import torch
from torch.profiler import profile
with profile() as profiler: torch.ones(3) + 1
profiler.export_chrome_trace("plain.json")
print(profiler.key_averages().table())
"""


def kernels(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event.get("cat") == "kernel"]


def inside(document: dict[str, Any], name: str) -> list[tuple[float, float]]:
    found = [e for e in document["traceEvents"] if e.get("ph") == "X" and str(e.get("name")).startswith(name)]
    return [(event["ts"], event["ts"] + event["dur"]) for event in found]


def number_of(name: str, printed: str) -> float:
    (line,) = [line for line in printed.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


def test_traces_of_a_schedule_and_of_start_and_stop(tmp_path: Path) -> None:
    printed = output_of(tmp_path, WITH_PROFILER + SCHEDULED + START_AND_STOP)
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

    assert "second: a profile has been started already" in printed
    assert "none: no profile has been started" in printed
    (path,) = (tmp_path / "logs").glob("plugins/profile/*/*.xplane.pb")
    content = path.read_bytes()
    for text in (b"/device:TPU:0", b"XLA Ops", b"forward", b"aten::linear", b"script.py:10", b"(simulated)"):
        assert text in content


def test_both_profiles_at_once_named_steps_and_a_snapshot_of_memory(tmp_path: Path) -> None:
    printed = output_of(tmp_path, WITH_PROFILER + PLAIN + NAMED + MEMORY, "--profile", "made")
    assert "Self XLA" in printed
    assert "Self XLA time total" in printed
    of_device = number_of("device", printed)
    assert of_device > 0
    assert number_of("calls", printed) == pytest.approx(of_device, rel=1e-6)
    assert number_of("flops", printed) == 4 * 2 * 8 * (2 * 16 * 32 + 3 * 32 * 4)  # forward and backward, each once
    document = json.loads((tmp_path / "plain.json").read_text())
    assert of_device == pytest.approx(sum(event["dur"] for event in kernels(document)), rel=1e-3)

    (profile,) = read_directory(tmp_path / "made")
    assert len(profile.steps) == 3 + 4 + 3 + 1
    assert sum(profile.executions.column("operator_count")) == len(profile.operator_ns)
    uses = build_report([profile]).named_spans
    paths = [("train_step",), ("train_step", "forward_part"), ("train_step", "forward_part", "inner")]
    assert [(use.path, use.count) for use in uses] == [(path, 3) for path in paths]
    assert uses[0].seconds >= uses[1].seconds >= uses[2].seconds
    shown = [plain_text(line).rstrip() for line in profile_page(build_report([profile]), 100, UNICODE, 10).lines]
    names = [line for line in shown if line.endswith(("s train_step", "s   forward_part", "s     inner"))]
    assert [line.split()[-1] for line in names] == [path[-1] for path in paths]

    assert number_of("snapshot", printed) == number_of("reserved", printed)
    assert "Neuron Memory Summary, Device xla:0, NeuronCore 0\n" in printed
    snapshot = pickle.loads((tmp_path / "dump.pickle").read_bytes())
    made = [each for each in snapshot["device_traces"][0] if each["action"] == "alloc" and each["size"] == 400_000]
    assert made
    assert made[-1]["frames"][0]["filename"].endswith("script.py")


@pytest.mark.slow
def test_a_configuration_of_torch_neuronx_and_a_server_that_takes_traces(tmp_path: Path) -> None:
    printed = output_of(tmp_path, WITH_PROFILER + NEURONX + SERVER + EXPERIMENTAL)
    assert list((tmp_path / "made").glob("*.pt.trace.json.gz"))
    assert list((tmp_path / "made").glob("plugins/profile/*/*.xplane.pb"))
    assert "other: 10.0.0.1:9999: this process has started no profile server there" in printed
    assert list((tmp_path / "logs").glob("plugins/profile/*/*.xplane.pb"))

    def executions(directory: str) -> int:
        (path,) = (tmp_path / directory).glob("*.pt.trace.json.gz")
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        return sum(event["name"] == "nrt_execute (MarkStep)" for event in events)

    assert executions("logs") == executions("late") == 1
    assert executions("short") < 20
    assert not (tmp_path / "never").exists()


@pytest.mark.slow
def test_a_script_that_uses_no_core_profiles_as_torch_does(tmp_path: Path) -> None:
    assert "Self XLA" not in output_of(tmp_path, WITHOUT_DEVICE)
    assert not kernels(json.loads((tmp_path / "plain.json").read_text()))
