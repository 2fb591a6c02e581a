"""torch_xla.debug.profiler, torch_neuronx.profiling and snapshots by torch.xla.memory, as scripts use them."""

from __future__ import annotations

import pickle
from pathlib import Path

from neurontools.profile import read_directory
from tests.harness.profiled_scripts import WITH_PROFILER, output_of

XP = """
import torch_xla.debug.profiler as xp
xp.start_trace("logs")
for number in range(3):
    with xp.StepTrace("train_step", step_num=number):
        with xp.Trace("forward_part"):
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
SERVER = """
import time, glob, torch_xla.debug.profiler as xp
server = xp.start_server(9012)
xp.trace_detached("localhost:9012", "logs", duration_ms=300)
while not glob.glob("logs/plugins/profile/*/*.xplane.pb"): step()
try:
    xp.trace("10.0.0.1:9999", "logs")
except RuntimeError as error:
    print("other:", error)
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
MEMORY = """
torch.xla.memory._record_memory_history(max_entries=100)
step()
kept = torch.ones(1000, 100).to(device)
torch.xla.synchronize()
snapshot = torch.xla.memory._snapshot()
torch.xla.memory._dump_snapshot("dump.pickle")
torch.xla.memory._record_memory_history(enabled=None)
print(sum(segment["total_size"] for segment in snapshot["segments"]), torch.xla.memory_reserved())
print(torch.xla.memory.memory_summary())
import torch_neuronx
assert torch_neuronx.memory_allocated() == torch.xla.memory_allocated()
"""


def test_start_trace_and_stop_trace_leave_a_run_for_the_profile_tab(tmp_path: Path) -> None:
    told = output_of(tmp_path, WITH_PROFILER + XP)
    assert "second: a profile has been started already" in told
    assert "none: no profile has been started" in told
    (path,) = (tmp_path / "logs").glob("plugins/profile/*/*.xplane.pb")
    content = path.read_bytes()
    for text in (b"/device:TPU:0", b"XLA Ops", b"forward_part", b"aten::linear", b"script.py:10", b"(simulated)"):
        assert text in content


def test_a_server_of_the_script_takes_a_trace_while_it_trains_and_reaches_no_other(tmp_path: Path) -> None:
    told = output_of(tmp_path, WITH_PROFILER + SERVER)
    assert "other: 10.0.0.1:9999: this process has started no profile server there" in told
    assert list((tmp_path / "logs").glob("plugins/profile/*/*.xplane.pb"))


def test_the_configuration_of_torch_neuronx_goes_into_torch_s_profiler(tmp_path: Path) -> None:
    output_of(tmp_path, WITH_PROFILER + NEURONX)
    assert list((tmp_path / "made").glob("*.pt.trace.json.gz"))
    assert list((tmp_path / "made").glob("plugins/profile/*/*.xplane.pb"))


def test_a_memory_snapshot_has_what_the_cores_hold_and_its_lines(tmp_path: Path) -> None:
    told = output_of(tmp_path, WITH_PROFILER + MEMORY)
    of_snapshot, of_device = map(int, told.splitlines()[0].split())
    assert of_snapshot == of_device
    assert "NeuronCore 0:" in told
    snapshot = pickle.loads((tmp_path / "dump.pickle").read_bytes())
    made = [each for each in snapshot["device_traces"][0] if each["action"] == "alloc" and each["size"] == 400_000]
    assert made
    assert made[-1]["frames"][0]["filename"].endswith("script.py")


def test_steps_under_a_name_are_parts_of_the_profile(tmp_path: Path) -> None:
    output_of(
        tmp_path,
        WITH_PROFILER + XP.replace("xp.start_trace", "print").replace("xp.stop_trace", "print"),
        "--profile",
        "made",
    )
    (profile,) = read_directory(tmp_path / "made")
    names = [profile.names[span.name] for span in profile.spans]
    assert names.count("train_step") == 3
    assert names.count("forward_part") == 3
