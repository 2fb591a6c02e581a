"""The overview: what it says of devices, cores and jobs, and how it uses its room."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from neurontools.model import Finding, Health, NeuronCore, Severity, Snapshot
from neurontools.model.process import Job
from neurontools.tui.dashboard import Dashboard
from neurontools.views.dashboard_settings import DashboardSettings
from neurontools.views.drawing.figures import DeviceFilter
from neurontools.views.drawing.glyphs import UNICODE
from neurontools.views.drawing.lines import TextPage, plain_text
from neurontools.views.drawing.render_context import RenderContext, ShownMoment
from neurontools.views.history_panel import value_range
from neurontools.views.overview_page import job_rows, overview_page
from neurontools.views.screen import title_bar
from neurontools.views.top_document import top_document
from tests.harness.scenario_host import ScenarioHost
from tests.harness.still_feed import StillFeed, snapshots

HALF = ScenarioHost("trn1.32xlarge", "steady", neuroncores=8)
HALF.at(29.0)
SNAPSHOT = HALF.at(30.0)  # 8 ranks on ND 0 to 3
JOB = "job synthetic load steady"
PID = SNAPSHOT.processes[0].pid


def lines(page: TextPage) -> list[str]:
    return [plain_text(line) for line in page.lines]


def text(snapshot: Snapshot, width: int = 120, height: int = 33, **choices: Any) -> str:
    return "\n".join(lines(overview_page(RenderContext.from_snapshot(snapshot, **choices), width, height)))


def of_all(**fields: Any) -> Snapshot:
    """The host with all its processes changed."""
    return replace(SNAPSHOT, processes=tuple(replace(each, **fields) for each in SNAPSHOT.processes))


def judged(*findings: Finding) -> Snapshot:
    return replace(SNAPSHOT, health=Health(tuple(range(16)), (), findings))


def finding(severity: Severity, **fields: Any) -> Finding:
    return Finding("core_errors", severity, "reason", "action", 0.0, **fields)


def changed_core(snapshot: Snapshot, index: int, **fields: Any) -> Snapshot:
    cores: list[NeuronCore] = list(snapshot.cores)
    cores[index] = replace(cores[index], **fields)
    return replace(snapshot, cores=tuple(cores))


def test_devices_that_are_alike_and_free_are_one_row() -> None:
    shown = text(SNAPSHOT)
    assert "ND3 " in shown
    assert "ND 4-15: free" in shown
    assert "ND4" not in shown
    idle = text(ScenarioHost("trn1.32xlarge", "idle").at(30.0), 80, 21)
    assert "ND 0-15: free" in idle
    assert "nobody holds a NeuronCore; start a script with: neuron-run train.py" in idle
    sick = judged(finding(Severity.WARNING, device_indices=(9,)))
    assert "ND 4-8: free" in text(sick)
    assert "ND9▲" in text(sick)
    leaked = changed_core(SNAPSHOT, 18, memory=SNAPSHOT.cores[0].memory)
    assert "ND 10-15: free" in text(leaked)
    assert "ND 4-8: free" in text(leaked)


def test_processes_of_a_job_are_one_row_until_it_is_unfolded() -> None:
    folded = job_rows(RenderContext.from_snapshot(SNAPSHOT))
    assert [(row.key, row.pid) for row in folded] == [(JOB, None)]
    unfolded = job_rows(RenderContext.from_snapshot(SNAPSHOT, unfolded=frozenset({JOB})))
    assert [row.pid for row in unfolded] == [None, *(process.pid for process in SNAPSHOT.processes)]
    assert "1 job of 8 processes" in text(SNAPSHOT)
    assert f"{PID + 3} rank 3 synthetic-3" in text(SNAPSHOT, 200, unfolded=frozenset({JOB}))
    assert "▸ bert, synthetic load steady" in text(of_all(tag="bert"), 200), "a tag that all ranks have"
    launched = text(of_all(command="/opt/venv/bin/python3 -m neurontools.runtime /work/train.py --lr 0.1"), 160)
    assert "train.py --lr 0.1" in launched
    assert "python3" not in launched


def test_a_name_is_whole_before_the_script_that_repeats_it() -> None:
    name = "torchrun train_gpt_medium.py"
    command = "python train_gpt_medium.py --layers 24"
    processes = [replace(each, command=command, job=Job(name, rank)) for rank, each in enumerate(SNAPSHOT.processes)]
    for width, has_script in ((120, False), (200, True)):
        titles, row = (
            next(
                line for line in text(replace(SNAPSHOT, processes=tuple(processes)), width).splitlines() if part in line
            )
            for part in (" JOB ", "▸ torchrun")
        )
        assert f"▸ {name} " in row
        assert ("SCRIPT" in titles, "--layers 24" in row) == (has_script, has_script)
    other = text(of_all(job=Job(name), command="python evaluate.py"), 120)
    assert "evaluate.py" in other


def test_the_document_has_the_same_jobs() -> None:
    (job,) = top_document(SNAPSHOT).jobs
    assert (job.name, job.ranks, job.world_size) == ("synthetic load steady", tuple(range(8)), 8)
    assert job.pids == tuple(process.pid for process in SNAPSHOT.processes)
    assert job.neuroncores == tuple(range(8))
    assert job.utilization_ratio == pytest.approx(sum(core.utilization_ratio or 0 for core in SNAPSHOT.cores[:8]) / 8)
    assert (job.steps_per_second, job.slowest_pid, job.finding_kinds, job.is_synthetic) == (None, None, (), True)
    assert top_document(SNAPSHOT, [PID]).jobs == (job,)
    assert top_document(SNAPSHOT, []).jobs == ()


def test_processes_that_are_alone_are_rows_and_a_tab_shows_its_own() -> None:
    alone = of_all(job=None)
    assert "Jobs: 8 processes" in text(alone)
    assert f"synthetic-0 {PID}" in text(alone, 160)
    named = of_all(job=Job("train.py (4711)"))
    assert "▸ train.py (4711) " in text(named, 160)
    of_one = replace(named, processes=(replace(named.processes[0], tag=str(PID)),))
    assert f"  train.py {PID} " in text(of_one, 160), "the row of one process has the name of its job before its PID"
    assert [row.pid for row in job_rows(RenderContext.from_snapshot(SNAPSHOT, pid=PID + 2))] == [PID + 2]


def test_ranks_on_other_hosts_are_counted() -> None:
    wide = [replace(p, job=Job("Slurm job 7", rank, 64)) for rank, p in enumerate(SNAPSHOT.processes)]
    assert " 8/64 " in text(replace(SNAPSHOT, processes=tuple(wide)))


@pytest.mark.parametrize("badge", ["LIVE", "LOST, data 12 s old"])
def test_the_title_keeps_that_it_is_simulated_and_how_it_stands_to_the_daemon(badge: str) -> None:
    context = RenderContext.from_snapshot(judged(finding(Severity.CRITICAL, pid=PID)), clock=ShownMoment(badge))
    for width in range(20, 200, 7):
        (shown,) = lines(title_bar(context, width))
        assert badge[: max(0, width - 15)] in shown, width
        assert width < 40 or "synthetic" in shown, width


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([], (0.0, 1.0)),
        ([0.0, 0.0], (0.0, 1.0)),
        ([0.0, 0.03], (0.0, 0.05)),
        ([0.1, 0.6], (0.0, 1.0)),
        ([0.85, 0.96], (0.8, 1.0)),
        ([0.93, 0.99], (0.9, 1.0)),
        ([0.0, 0.99], (0.0, 1.0)),
    ],
)
def test_the_scale_of_the_history_shows_small_changes(values: list[float], ends: tuple[float, float]) -> None:
    assert value_range(values) == ends


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["idle", "steady", "ecc-burst"])
def test_the_history_fills_the_lines_that_are_left_and_the_frame_ends_every_line(scenario: str) -> None:
    dashboard = Dashboard(StillFeed(snapshots(scenario=scenario)), DashboardSettings(), UNICODE)
    for size in ((200, 50), (300, 80)):
        shown = [plain_text(line) for line in dashboard.draw(*size).lines]
        assert shown[-4].strip(" │"), "the last line of the page"
        assert {row[0] + row[-1] for row in shown[1:-2]} <= {"╭╮", "├┤", "││", "╰╯"}
        assert any("Utilization of " in row for row in shown)
        blank = sum(not row.strip(" │") for row in shown)
        # The curve of an idle host stays in the lowest line of each plot.
        assert scenario == "idle" or blank <= size[1] // 5, blank
    assert ("HBM of all cores" if scenario == "idle" else "HBM of ND 12-15") in "".join(shown)
    assert "free" in "".join(plain_text(line) for line in dashboard.draw(80, 24).lines)


@pytest.mark.parametrize(
    ("scenario", "names"), [("idle", {"all cores"}), ("training-ramp", {"ND 0"}), ("stuck-core", {"ND 0-4", "ND 5-9"})]
)
def test_the_history_leaves_out_devices_that_were_free_all_the_time(scenario: str, names: set[str]) -> None:
    host = ScenarioHost("trn1.32xlarge", scenario, neuroncores=20 if scenario == "stuck-core" else 2)
    taken = [host.at(float(second)) for second in range(1, 61)]
    dashboard = Dashboard(StillFeed(taken), DashboardSettings(), UNICODE)
    shown = "\n".join(plain_text(line) for line in dashboard.draw(200, 50).lines)
    assert set(re.findall("HBM of (.+?):", shown)) == names


def test_the_history_of_some_devices_has_nothing_of_the_devices_between_them() -> None:
    busy = tuple(
        replace(core, utilization_ratio=1.0 if core.device_index == 4 else 0.5) for core in snapshots()[0].cores
    )
    taken = [replace(snapshot, cores=busy) for snapshot in snapshots()]
    dashboard = Dashboard(StillFeed(taken), DashboardSettings(), UNICODE, device_filter=DeviceFilter(frozenset((3, 5))))
    shown = "".join(plain_text(line) for line in dashboard.draw(120, 24).lines)
    assert "Utilization of ND 3,5: 50%" in shown
    assert "100% " not in shown.partition("HBM of ND 3,5")[0].partition("Utilization of ND 3,5")[2]
