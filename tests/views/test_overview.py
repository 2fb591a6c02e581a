"""The overview: what it says of devices, cores and jobs, and how it uses its room."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from neurontools.model import Finding, Health, NeuronCore, Severity, Snapshot, TrainingCounters
from neurontools.model.process import Job
from neurontools.tui.dashboard import Dashboard
from neurontools.views.dashboard_settings import DashboardSettings
from neurontools.views.drawing.figures import DeviceFilter
from neurontools.views.drawing.glyphs import ASCII, UNICODE
from neurontools.views.drawing.lines import TextPage, plain_text
from neurontools.views.drawing.render_context import RenderContext, ShownMoment
from neurontools.views.history_panel import value_range
from neurontools.views.overview_page import job_rows, overview_page
from neurontools.views.screen import draw_screen, title_bar
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


def styles_of(page: TextPage, wanted: str) -> set[str]:
    return {style for line in page.lines for part, style in line if part.strip() == wanted}


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


def test_a_core_is_marked_where_its_holder_is_to_be_looked_at() -> None:
    stuck = replace(
        finding(Severity.CRITICAL, device_indices=(0,), pid=PID, pids=tuple(p.pid for p in SNAPSHOT.processes)),
        kind="stuck",
        job="synthetic load steady",
    )
    page = overview_page(RenderContext.from_snapshot(judged(stuck)), 120, 33)
    (row,) = [line for line in lines(page) if "✗[" in line]
    assert row.index("✗[") < row.index("NC1 ")
    assert "✗ ▸ synthetic load" in "\n".join(lines(page))
    assert "rank 0 stuck" in "\n".join(lines(page))
    assert "X[" in text(judged(stuck), glyphs=ASCII)


@pytest.mark.parametrize(
    ("ratio", "style"), [(0.97, "load8"), (0.92, "load7"), (0.6, "load4"), (0.03, "load1"), (0.0, "held")]
)
def test_colour_means_load_and_held_but_idle_is_told_from_free(ratio: float, style: str) -> None:
    page = overview_page(RenderContext.from_snapshot(changed_core(SNAPSHOT, 0, utilization_ratio=ratio)), 120, 33)
    assert styles_of(page, f"{ratio:.2%}") == {style}
    assert styles_of(page, "free") == {"dim"}


def test_the_bar_of_a_device_says_how_much_of_its_memory_is_in_use() -> None:
    assert "17.3 / 32 GB" in text(SNAPSHOT)
    nearly_full = changed_core(SNAPSHOT, 0, memory=replace(SNAPSHOT.cores[0].memory, tensors_bytes=23 * 2**30))
    (row,) = [
        line
        for line in overview_page(RenderContext.from_snapshot(nearly_full), 120, 33).lines
        if plain_text(line).startswith("ND0")
    ]
    assert "bad" in {style for _, style in row}
    of_one = next(line for line in text(SNAPSHOT, pid=PID).splitlines() if line.startswith("ND0"))
    assert " 8.6 / 32 GB" in of_one


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


def test_many_executions_a_second_are_told_in_fewer_digits_and_not_cut() -> None:
    shown = text(of_all(executions_per_second=123_456.7), 200, unfolded=frozenset({JOB})).splitlines()
    titles, job, rank = (next(line for line in shown if words in line) for words in ("EXEC/S", " ▾", "rank 3"))
    end = titles.index("EXEC/S") + len("EXEC/S")
    assert [line[:end].split()[-1] for line in (job, rank)] == ["987,654", "123,457"]


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


def test_compact_gives_the_room_to_the_jobs() -> None:
    unfolded = frozenset({"job synthetic load steady"})
    host = ScenarioHost("trn1.32xlarge", "steady").at(30.0)
    full, compact = (text(host, 120, 33, unfolded=unfolded, layout=layout) for layout in ("full", "compact"))
    assert full.count("rank ") < 20 < compact.count("rank ")
    assert "vCPU  host user  25% system  19%" in compact
    assert "devices 276.1 GB of 512 GB" in compact
    tree = text(SNAPSHOT, 300, 47, is_tree_shown=True).splitlines()
    assert len(next(line for line in tree if line.startswith("▸ ND 0")).rstrip()) < 130, "near their names"


@pytest.mark.parametrize("badge", ["LIVE", "LOST, data 12 s old"])
def test_the_title_keeps_that_it_is_simulated_and_how_it_stands_to_the_daemon(badge: str) -> None:
    context = RenderContext.from_snapshot(judged(finding(Severity.CRITICAL, pid=PID)), clock=ShownMoment(badge))
    for width in range(20, 200, 7):
        (shown,) = lines(title_bar(context, width))
        assert badge[: max(0, width - 15)] in shown, width
        assert width < 40 or "synthetic" in shown, width


def test_the_badge_in_the_title_counts_what_is_wrong_and_leads_to_the_page() -> None:
    context = RenderContext.from_snapshot(
        judged(
            finding(Severity.CRITICAL, pid=PID),
            finding(Severity.WARNING, device_indices=(1,)),
            finding(Severity.WARNING, device_indices=(2,)),  # one line on the page, and two devices
            finding(Severity.NOTICE, device_indices=(3,)),
        ),
        clock=ShownMoment("LIVE"),
    )
    page = draw_screen(context, 160, 40)
    shown = plain_text(page.lines[0])
    assert "✗ 1 critical  ▲ 2 · e" in shown
    target = page.target_at(shown.index("critical"), 0)
    assert target is not None
    assert (target.action, target.argument) == ("page", "health")
    assert "critical" not in plain_text(title_bar(RenderContext.from_snapshot(judged()), 160).lines[0])
    assert plain_text(title_bar(replace(context, glyphs=ASCII), 160).lines[0]).isascii()
    assert UNICODE.bad in shown


def test_what_is_wrong_is_told_with_what_to_do_where_there_is_room() -> None:
    sick = judged(
        finding(Severity.WARNING, device_indices=(1,)),
        finding(Severity.CRITICAL, device_indices=(2,)),
        finding(Severity.WARNING, device_indices=(3,)),
        finding(Severity.NOTICE, device_indices=(5,)),
    )
    roomy = text(sick, 120, 40).splitlines()
    begin = next(number for number, line in enumerate(roomy) if "Findings" in line)
    assert roomy[begin + 1].startswith(" ✗ ND 2  reason")
    assert roomy[begin + 2] == "     do: action"
    assert roomy[begin + 3].startswith(" ▲ ND 1,3  reason")
    assert "Findings" not in text(judged(), 120, 40)
    for height in range(2, 40):
        assert len(text(sick, 120, height).splitlines()) <= height
    wordy = " ".join(f"word{number}" for number in range(22))
    roomy = text(judged(replace(finding(Severity.WARNING, device_indices=(1,)), reason=wordy)), 120, 40).splitlines()
    assert " ".join(" ".join(roomy[begin + 1 : begin + 3]).split()).startswith(f"▲ ND 1 {wordy}")
    assert roomy[begin + 3] == "     do: action"


def compiling(snapshot: Snapshot, *ages: tuple[float | None, float | None], is_reporting: bool = True) -> Snapshot:
    """Since when each of the first processes compiles, and how long ago its latest step was."""
    now = snapshot.taken_at_seconds
    told = [
        TrainingCounters(
            steps_total=5,
            compiling_since_seconds=None if compiles is None else now - compiles,
            last_step_at_seconds=None if step is None else now - step,
        )
        for compiles, step in ages
    ]
    changed = [
        replace(process, training=counters, reporting=is_reporting)
        for process, counters in zip(snapshot.processes, told, strict=False)
    ]
    return replace(snapshot, processes=(*changed, *snapshot.processes[len(changed) :]))


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_job_says_that_it_compiles_and_how_long_ago_its_last_step_was(width: int) -> None:
    now = compiling(SNAPSHOT, (12.0, 30.0), (3.0, 30.5), (None, None))
    (row,) = [
        line for line in lines(overview_page(RenderContext.from_snapshot(now), width, 33)) if "synthetic load" in line
    ]
    assert "compiling 12.0s" in row
    assert ("30.5s" in row) == (width >= 120)
    (job,) = top_document(now).jobs
    assert job.compiling_for_seconds == pytest.approx(12.0)
    assert job.since_last_step_seconds == pytest.approx(30.5)
    unfolded = text(now, width, unfolded=frozenset([JOB]))
    assert "compiling 3.0s" in unfolded
    assert "compiling" not in text(compiling(SNAPSHOT, (12.0, 30.0), is_reporting=False), width)
    assert "LAST STEP" not in text(compiling(SNAPSHOT, (None, None)), width)


def test_a_job_says_which_of_its_ranks_are_missing() -> None:
    first, *others = SNAPSHOT.processes
    assert first.job is not None
    started = replace(first.job, first_rank_here=0, ranks_here=len(SNAPSHOT.processes) + 1)
    now = replace(SNAPSHOT, processes=(replace(first, job=started), *others))
    assert f"rank {len(SNAPSHOT.processes)} missing: " in text(now, 200)
    (job,) = top_document(now).jobs
    assert (job.missing_ranks, job.state) == ((len(SNAPSHOT.processes),), "unknown")


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
