"""The profiles of a training of two workers, and their files in the programs that people open them with."""

from __future__ import annotations

import dataclasses
import gzip
import json
import pickle
import shutil
import statistics
from dataclasses import dataclass
from pathlib import Path

import pytest

from neurontools.profile import Engine, Profile, SpanKind, read_directory
from neurontools.profile.analysis.evidence import profile_evidence
from neurontools.profile.analysis.report import build_report
from neurontools.profile.analysis.steps import steady_steps
from neurontools.profile.analysis.topology import LinkKind, find_topology
from neurontools.profile.analysis.verdict import Bound, find_verdict
from neurontools.profile.formats.xplane import write_xplane
from tests.harness import chromium
from tests.harness.perfetto_ui import FOLDERS, perfetto_ui
from tests.harness.profiled_scripts import TWELVE_STEPS, output_of
from tests.harness.viewers import has_xprof, holistic_trace_analysis, rows, xprof

needs_viewers = pytest.mark.skipif(not has_xprof(), reason="make viewers installs xprof and HolisticTraceAnalysis")


@dataclass(frozen=True)
class Run:
    """A training of two workers that was profiled."""

    directory: Path
    profiles: list[Profile]

    def files(self, pattern: str) -> list[Path]:
        found = sorted(self.directory.glob(pattern), key=lambda path: path.name.partition("-rank")[2])
        assert len(found) == 2
        return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tmp_path_factory.mktemp("profiled")
    script = TWELVE_STEPS.replace("    optimizer.step()", "    xm.optimizer_step(optimizer)")
    output_of(directory, script, "--nproc-per-node", "2", "--profile", "made")
    return Run(directory / "made", read_directory(directory / "made"))


@pytest.mark.long
@needs_viewers
def test_xprof_answers_with_our_steps_and_our_flops(run: Run, tmp_path: Path) -> None:
    files = run.files("plugins/profile/*/*.xplane.pb")
    assert len({path.parent for path in files}) == 1
    for number, (path, profile) in enumerate(zip(files, run.profiles, strict=True)):
        alone = tmp_path / "plugins" / "profile" / str(number)  # it keeps answers by folder
        alone.mkdir(parents=True)
        asked = ("overview_page", "framework_op_stats", "op_profile", "hlo_stats", "memory_profile", "roofline_model")
        answers = xprof([Path(shutil.copy(path, alone))], *asked)
        assert {*asked, "trace_viewer@"} <= set(answers["names"])
        steps = rows(answers["overview_page"][1])
        assert answers["overview_page"][2]["p"]["is_training"] == "true"
        assert len(steps) == len(steady_steps(profile))
        executed = {total.graph: total.executions for total in profile.graph_totals}
        flops = sum(operator.flops * executed[operator.graph] for operator in profile.operators)
        assert int(answers["op_profile"]["byProgram"]["metrics"]["rawFlops"]) == flops
        by_name = {row["hlo_op_name"]: row for row in rows(answers["hlo_stats"])}
        infeed = by_name.pop(f"infeed.{len(profile.operators)}", None)
        assert infeed is None  # the script has no loader
        assert len(by_name) == len(profile.operators)
        occurrences = sum(row["occurrences"] for row in by_name.values())
        assert occurrences == len(profile.operator_ns)
        total_us = sum(row["total_time"] for row in by_name.values())
        assert total_us == pytest.approx(sum(profile.operator_ns) / 1e3, rel=1e-6)
        moved = sum(operator.bytes * executed[operator.graph] for operator in profile.operators)
        assert answers["op_profile"]["byProgram"]["metrics"]["rawBytesAccessedArray"][0] == pytest.approx(moved)
        (memory,) = answers["memory_profile"]["memoryProfilePerAllocator"].values()
        peak = int(memory["profileSummary"]["peakStats"]["heapAllocatedBytes"])
        assert 0 < peak <= profile.state.hbm_peak_bytes[0]
        names = {row["operation"] for row in rows(answers["framework_op_stats"][0])}
        assert any(name.endswith("aten::linear") for name in names)
        assert float(answers["roofline_model"][0]["p"]["peak_flop_rate"]) > 0


@pytest.mark.long
@needs_viewers
def test_xprof_shows_both_hosts_of_a_run(run: Run, tmp_path: Path) -> None:
    files = [tmp_path / f"{host}.xplane.pb" for host in ("alpha", "beta")]
    for path, profile in zip(files, run.profiles, strict=True):
        about = dataclasses.replace(profile.metadata, host=path.name.partition(".")[0])
        write_xplane(dataclasses.replace(profile, metadata=about), path)
    answers = xprof(files, "overview_page", "input_pipeline_analyzer", "op_profile", "hlo_stats", "trace_viewer@")
    environment = answers["overview_page"][2]["p"]
    assert (environment["host_count"], environment["device_core_count"]) == ("2", "2")
    assert len(answers["input_pipeline_analyzer"][0]["rows"][0]["c"][1:]) == len(steady_steps(run.profiles[0]))
    occurrences = sum(row["occurrences"] for row in rows(answers["hlo_stats"]))
    assert occurrences == sum(len(profile.operator_ns) for profile in run.profiles)
    processes = {e["args"]["name"] for e in answers["trace_viewer@"]["traceEvents"] if e.get("name") == "process_name"}
    assert {name.partition(" ")[0] for name in processes} >= {"alpha", "beta"}, processes
    for path, profile in zip(files, run.profiles, strict=True):  # memory_profile reads one host at a time
        (memory,) = xprof([path], "memory_profile")["memory_profile"]["memoryProfilePerAllocator"].values()
        peak = int(memory["profileSummary"]["peakStats"]["heapAllocatedBytes"])
        assert 0 < peak <= profile.state.hbm_peak_bytes[0]


BOUND = """
import time, torch, torch_xla.core.xla_model as xm, torch_xla.distributed.parallel_loader as pl
from torch.utils.data import DataLoader, Dataset
device = xm.xla_device()
class Rows(Dataset):
    def __len__(self): return 96
    def __getitem__(self, index):
        time.sleep({loader}); return torch.randn({width}), torch.zeros((), dtype=torch.long)
model = torch.nn.Sequential(torch.nn.Linear({width}, {width}), torch.nn.ReLU(), torch.nn.Linear({width}, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for value, target in pl.MpDeviceLoader(DataLoader(Rows(), batch_size=8), device):
    optimizer.zero_grad()
    for _ in range({repeats}): loss = torch.nn.functional.cross_entropy(model(value), target); loss.backward()
    xm.optimizer_step(optimizer)
    time.sleep({host} if xm.get_ordinal() else {first_host})
"""
IDLE = {"loader": 0, "width": 8, "repeats": 1, "host": 0, "first_host": 0}


@pytest.mark.long
@needs_viewers
@pytest.mark.parametrize(
    ("bound", "changes", "workers"),
    [
        (Bound.INPUT, {"loader": 0.05}, 1),
        (Bound.HOST, {"first_host": 0.4}, 1),
        (Bound.COMPUTE, {"width": 1500, "repeats": 8}, 1),
        (Bound.COMMUNICATION, {"host": 0.5, "loader": "0.002 * xm.get_ordinal()"}, 2),
    ],
)
def test_xprof_agrees_with_show_about_the_limit_of_a_run(
    bound: Bound, changes: dict[str, object], workers: int, tmp_path: Path
) -> None:
    output_of(tmp_path, BOUND.format(**{**IDLE, **changes}), "--nproc-per-node", str(workers), "--profile", "made")
    files = sorted((tmp_path / "made").glob("plugins/profile/*/*.xplane.pb"))
    assert len(files) == workers
    report = build_report(read_directory(tmp_path / "made"))
    verdict = find_verdict(profile_evidence(report))
    assert verdict is not None
    if bound is not Bound.COMMUNICATION:  # the rank that does not wait is bound by its host
        assert verdict.bound is bound
    answers = xprof(files, "overview_page", "input_pipeline_analyzer", "op_profile")
    overview = answers["overview_page"]
    told = overview[1]["p"]
    split, steps = report.split, report.split_steps
    per_step_ms = {name: 1e3 * seconds / steps for name, seconds in split.parts()}
    assert float(told["steptime_ms_average"]) == pytest.approx(1e3 * split.total_seconds / steps, rel=0.05, abs=1)
    waits_ns = [list(steady_steps(profile).column("input_wait_ns")) for profile in report.profiles]
    longest_ms = 1e-6 * statistics.mean(map(max, zip(*waits_ns, strict=True)))  # of the slower core
    assert float(told["tc_infeed_ms_average"]) == pytest.approx(longest_ms, rel=0.1, abs=2)
    assert ("HIGHLY input-bound" in told["input_conclusion"]) == (bound is Bound.INPUT)
    busy_ms = per_step_ms["execute"] + per_step_ms["collectives"]
    assert float(told["tc_active_ms_average"]) == pytest.approx(busy_ms, rel=0.1, abs=2)
    assert int(overview[2]["p"]["device_core_count"]) == workers
    names = {cell["v"] for cell in answers["input_pipeline_analyzer"][0]["rows"][1]["c"][1:]}
    assert names <= {f"{report.profiles[0].metadata.host}:{core}" for core in range(workers)}


@pytest.mark.long
@needs_viewers
def test_holistic_trace_analysis_splits_it_into_compute_communication_and_idle(run: Run) -> None:
    answers = holistic_trace_analysis(run.directory)
    for rank, profile in enumerate(run.profiles):
        split = next(row for row in answers["temporal"] if row["rank"] == rank)
        assert split["compute_time(us)"] > 0
        assert split["idle_time(us)"] > 0
        last = profile.steps[-1].step  # which it leaves out
        computed = [
            event.duration_ns // 1_000  # it counts in whole microseconds
            for event in profile.execution_events()
            if event.kind is SpanKind.OPERATOR and event.step is not None and event.step < last
        ]
        assert split["compute_time(us)"] == pytest.approx(sum(computed), rel=0.01, abs=len(computed))
    kinds = {row["kernel_type"] for row in answers["kernels"]}
    assert {"COMPUTATION", "COMMUNICATION", "MEMORY"} <= kinds


@pytest.mark.slow
def test_a_trace_is_right_for_torch(run: Run) -> None:
    from torch.profiler._trace_validator import validate_trace

    for path, profile in zip(run.files("*.pt.trace.json.gz"), run.profiles, strict=True):
        assert validate_trace(str(path)) == (True, [])
        document = json.loads(gzip.decompress(path.read_bytes()))
        kernels = [event for event in document["traceEvents"] if event.get("cat") == "kernel"]
        assert len(kernels) == len(profile.operator_ns)
        assert {event["pid"] for event in kernels} == {document["distributedInfo"]["rank"]}
        product = next(event for event in kernels if event["name"] == "aten::linear")
        assert product["args"]["source"].endswith("script.py:9")
        operators = [event for event in profile.execution_events() if event.kind is SpanKind.COLLECTIVE]
        assert {(each.name, each.engine) for each in operators} == {("neuron::all_reduce", Engine.COLLECTIVES)}
        assert sum(step.collective_ns for step in profile.steps) > 0, "in one step nobody may have had to wait"


@pytest.mark.long
@pytest.mark.skipif(not FOLDERS, reason="Perfetto's user interface is not installed; make viewers does it")
@pytest.mark.skipif(chromium.PROGRAM is None, reason="chromium is not installed")
def test_perfetto_shows_our_operators_launches_and_memory(run: Run) -> None:
    (path, *_), profile = run.files("*.pt.trace.json.gz"), run.profiles[0]
    with perfetto_ui(path) as ui:
        assert ui.rows("select name from stats where severity in ('error', 'data_loss') and value > 0") == []
        kernels = ui.rows("select count(*), sum(dur) from slice where category = 'kernel'")
        arrows = ui.rows("select count(*) from flow")
        levels = ui.rows("select distinct count(*) over (partition by track_id) from counter")  # a track a category
    assert kernels == [[len(profile.operator_ns), pytest.approx(sum(profile.operator_ns), rel=1e-6)]]
    assert arrows == [[len(profile.executions)]]
    assert levels == [[len(profile.memory_levels)]]


@pytest.mark.slow
def test_the_ranks_stand_side_by_side_in_one_trace_with_their_collectives_lined_up(run: Run) -> None:
    (path,) = run.directory.glob("all_ranks/*.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    collectives: dict[int, list[tuple[float, float]]] = {}
    for event in events:
        if event.get("cat") == "kernel" and event["name"] == "ncclDevKernel_all_reduce":
            collectives.setdefault(event["pid"], []).append((event["ts"], event["ts"] + event["dur"]))
    assert set(collectives) == {0, 1}
    slack_us = 1_000  # between the clocks of two processes
    for one, other in zip(*collectives.values(), strict=True):
        assert max(one[0], other[0]) <= min(one[1], other[1]) + slack_us
    began = [event["id"] for event in events if event["ph"] == "s"]
    assert len(began) == len(set(began)) == sum(len(profile.executions) for profile in run.profiles)
    gradient_bytes = 4 * (16 * 32 + 32 + 32 * 4 + 4)
    assert find_topology(run.profiles).collective_bytes == {LinkKind.DEVICE: 2 * 12 * gradient_bytes}


def test_torch_s_memory_visualiser_reads_the_snapshot(run: Run) -> None:
    from torch.cuda import _memory_viz

    for path, profile in zip(run.files("*.memory_snapshot.pickle"), run.profiles, strict=True):
        snapshot = pickle.loads(path.read_bytes())
        assert _memory_viz.segsum(snapshot)
        assert _memory_viz.trace(snapshot)
        assert sum(segment["allocated_size"] for segment in snapshot["segments"]) == sum(profile.blocks.column("bytes"))
        (trace,) = snapshot["device_traces"]
        made = [entry for entry in trace if entry["action"] == "alloc"]
        assert any(frame["filename"].endswith("script.py") for entry in made for frame in entry["frames"])
        assert all(entry["frames"] for entry in made)
