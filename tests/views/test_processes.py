"""The process list, the details of a process and where its time goes: what is shown where."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.model import (
    Attribution,
    ErrorCounters,
    ExecutionCounters,
    Finding,
    Health,
    OperatorTime,
    Process,
    ScriptAdvice,
    Severity,
    Snapshot,
    TrainingCounters,
    TrainingRates,
)
from neurontools.model.finding import FindingKind
from neurontools.model.jobs import RunningJob, running_jobs
from neurontools.model.process import Job
from neurontools.util import units
from neurontools.views.drawing.figures import Figures
from neurontools.views.drawing.lines import line_width, plain_text
from neurontools.views.drawing.render_context import RenderContext
from neurontools.views.process_table import BY_KEY, job_key, straggler_text
from neurontools.views.processes_page import combined_figures, process_page
from neurontools.views.screen import draw_screen
from tests.harness import training_process
from tests.harness.examples import examples
from tests.harness.model_parts import parts
from tests.harness.scenario_host import ScenarioHost
from tests.harness.snapshots import process_of, snapshot_of
from tests.harness.training_process import OPERATORS, with_training

HOST = ScenarioHost("trn1.2xlarge", "steady").at(30.0)
PID = HOST.processes[0].pid
OPENED = frozenset(map(job_key, running_jobs(HOST)))
PLACES = {
    "train/bert-0": Attribution(pod_name="bert-0", pod_namespace="train", container_id="ab" * 32),
    "bert-0": Attribution(pod_name="bert-0"),
    "job 77.0": Attribution(slurm_job_id="77", slurm_step_id="0"),
    "trainer": Attribution(container_name="trainer", container_id="ab" * 32),
    "abababababab": Attribution(container_id="ab" * 32),
}


def changed(**fields: object) -> Snapshot:
    """The host with its first process changed."""
    first, *others = HOST.processes
    return replace(HOST, processes=(replace(first, **fields), *others))  # type: ignore[arg-type]


def text_of(context: RenderContext, width: int) -> str:
    return "\n".join("".join(part for part, _ in line) for line in process_page(context, width, 20).lines)


@pytest.mark.parametrize("place", PLACES)
def test_pod_container_or_job_has_a_column_and_a_line(place: str) -> None:
    snapshot = changed(attribution=PLACES[place])
    listed = text_of(RenderContext.from_snapshot(snapshot, page="processes", unfolded=OPENED), 200).splitlines()
    titles = next(line for line in listed if "PID" in line and "TAG" in line)
    row = next(line for line in listed if str(snapshot.processes[0].pid) in line)
    assert row[titles.index("WHERE") :].split("  ")[0].strip() == place
    details = text_of(RenderContext.from_snapshot(snapshot, details_pid=PID), 200).splitlines()
    assert [line.split()[1:] for line in details if line.split()[:1] == ["where"]] == [place.split()]
    assert "WHERE" not in text_of(RenderContext.from_snapshot(changed(attribution=None), page="processes"), 200)


def test_a_timed_out_execution_is_one_error_and_the_job_has_its_name() -> None:
    snapshot = changed(
        executions=ExecutionCounters(timed_out_total=1),
        errors=ErrorCounters(transient_total=1),
        job=Job("process group 77"),
    )
    columns = ("pid", "errors")
    shown = RenderContext.from_snapshot(snapshot, page="processes", columns=columns, unfolded=OPENED, sort="errors")
    row = next(line for line in text_of(shown, 200).splitlines() if line.split()[:1] == [str(PID)])
    assert row.split()[1] == "1"
    assert "process group 77, attached" in text_of(replace(shown, cursor=0, is_descending=True), 200)
    details = text_of(RenderContext.from_snapshot(snapshot, details_pid=PID), 200).splitlines()
    assert ["job", "process group 77"] in [line.split(maxsplit=1) for line in map(str.strip, details)]
    named = replace(snapshot, processes=(replace(snapshot.processes[0], tag=str(PID), job=Job("train.py (77)")),))
    for is_time_shown in (False, True):
        shown = RenderContext.from_snapshot(named, details_pid=PID, is_time_shown=is_time_shown)
        assert f"Process {PID}  train.py" in text_of(shown, 200), "its title has the name of its job, not its PID twice"


COUNTERS = TrainingCounters(
    steps_total=1200,
    samples_total=38400,
    compilations_total=3,
    compile_seconds_total=1.25,
    collectives_total=1200,
    collective_seconds_total=60.0,
    collective_bytes_total=3 * 2**30,
    to_device_bytes_total=2**20,
    from_device_bytes_total=4800,
)
RATES = TrainingRates(10.0, 320.0, 0.125, 2**20, 1024.0, None)


def details(counters: TrainingCounters | None, rates: TrainingRates | None) -> dict[str, str]:
    snapshot = changed(training=counters, training_rates=rates)
    lines = text_of(RenderContext.from_snapshot(snapshot, details_pid=PID), 200).splitlines()
    assert {line[12] for line in lines[1:] if line[1:2].isalpha()} == {" "}, "names have a space behind them"
    return {line[:13].strip(): line[13:].strip() for line in lines}


def test_a_short_wait_in_a_collective_is_not_told() -> None:
    short = replace(COUNTERS, collective_since_seconds=HOST.taken_at_seconds - 0.5, latest_collective="all_reduce")
    assert "collective" not in details(short, RATES)


def test_unknown_rates_and_things_that_did_not_happen() -> None:
    shown = details(TrainingCounters(steps_total=1), None)
    assert shown["training"] == "- steps/s, 1 so far"
    assert not {"compiled", "collectives", "transfers", "input wait", "checkpoints"} & shown.keys()
    told = TrainingCounters(
        steps_total=1, input_wait_seconds_total=2.0, checkpoints_total=3, checkpoint_seconds_total=1.2
    )
    shown = details(told, TrainingRates(input_wait_ratio=0.25))
    assert shown["input wait"] == "25.00% of the time, 2.0 s so far"
    assert shown["checkpoints"] == "3 in 1.2 s"
    assert not {"training", "compiled", "collectives", "transfers"} & details(None, None).keys()


TIMED = {"training": training_process.COUNTERS, "training_rates": training_process.RATES}


def page_of(snapshot: Snapshot, width: int, height: int) -> list[str]:
    context = RenderContext.from_snapshot(
        snapshot, page="processes", details_pid=snapshot.processes[0].pid, is_time_shown=True
    )
    page = draw_screen(context, width, height)
    assert [line_width(line) for line in page.lines] == [width] * height
    return [plain_text(line) for line in page.lines]


def test_what_is_not_known_is_said() -> None:
    lines = page_of(with_training(HOST, training=None), 80, 24)
    assert any("its runtime does not report step time" in line for line in lines)
    early = page_of(
        with_training(HOST, training=training_process.COUNTERS, operators=(OperatorTime("", 0.5, 90),)), 80, 24
    )
    assert any("no timings yet" in line for line in early)
    assert not any("others" in line for line in early)
    paused = tuple(replace(operator, ratio=0.0) for operator in OPERATORS)
    lines = page_of(with_training(HOST, training=training_process.COUNTERS, operators=paused), 80, 40)
    assert any(line.startswith(" OPERATORS, whole run") for line in lines), "without a share of the last seconds"
    (mm,) = [line for line in lines if line.startswith(" aten::mm")]
    assert mm.split()[-3:] == ["50.0%", "7,200", "4.2ms"]


def test_more_rows_than_lines_are_summed_in_one() -> None:
    many = tuple(OperatorTime(f"aten::op{number}", 1.0, 10, 0.01) for number in range(16))
    lines = page_of(with_training(HOST, **TIMED, operators=many), 80, 24)
    (more,) = [line for line in lines if " more " in line]
    shown = sum(line.startswith(" aten::op") for line in lines)
    assert more.startswith(f" {16 - shown} more")
    assert f"{(16 - shown) / 16:.1%}" in more


@settings(max_examples=examples(150))
@given(
    st.tuples(st.integers(1, 400), st.integers(1, 120)),
    st.none() | parts(TrainingCounters),
    st.none() | parts(TrainingRates),
    st.lists(parts(OperatorTime), max_size=17).map(tuple),
    st.lists(parts(ScriptAdvice), max_size=4).map(tuple),
    st.booleans(),
)
def test_whatever_a_process_tells_fits_any_terminal(
    size: tuple[int, int],
    counters: TrainingCounters | None,
    rates: TrainingRates | None,
    operators: tuple[OperatorTime, ...],
    advice: tuple[ScriptAdvice, ...],
    is_time_shown: bool,
) -> None:
    told = with_training(HOST, training=counters, training_rates=rates, operators=operators, advice=advice)
    context = RenderContext.from_snapshot(
        told, page="processes", details_pid=told.processes[0].pid, is_time_shown=is_time_shown
    )
    page = draw_screen(context, *size)
    assert [line_width(line) for line in page.lines] == [size[0]] * size[1]
    assert not any(ord(character) < 32 for line in page.lines for character in plain_text(line))


def rank(number: int) -> Process:
    return replace(process_of(100 + number, "python train.py", (0,)), job=Job("Slurm job 7", number, 2))


def job_with(*findings: Finding) -> RunningJob:
    (job,) = running_jobs(replace(snapshot_of("trn1.32xlarge", [rank(0), rank(1)]), health=Health(findings=findings)))
    return job


def slow(pid: int, part: str | None) -> Finding:
    return Finding(FindingKind.SLOW_RANK, Severity.NOTICE, "reason", "action", 0.0, (0,), pid, (100, 101), part=part)


@pytest.mark.parametrize(
    ("findings", "text"),
    [
        ((), "-"),
        ((slow(101, "input wait"),), "rank 1 input wait"),
        ((slow(100, None),), "rank 0"),
        ((slow(101, "host"), replace(slow(100, None), kind=FindingKind.STUCK)), "rank 0 stuck"),
        (
            (slow(100, "host"), Finding(FindingKind.IDLE, Severity.NOTICE, "reason", "action", 0.0, (0,), 101)),
            "rank 0 host",
        ),
    ],
)
def test_the_rank_of_the_finding_is_shown_and_one_that_is_stuck_first(findings: tuple[Finding, ...], text: str) -> None:
    assert straggler_text(job_with(*findings)) == text


def test_cpu_and_elapsed_time_are_columns_for_processes_and_summed_up_for_jobs() -> None:
    now = HOST.taken_at_unix_seconds
    first, second = (
        replace(process, vcpu_user_ratio=1.5, vcpu_system_ratio=0.5, started_at_unix_seconds=now - age)
        for process, age in zip(HOST.processes, (7200.0, 60.0), strict=False)
    )
    figures = Figures(replace(HOST, processes=(first, second, *HOST.processes[2:])))
    cpu, elapsed = BY_KEY["cpu"], BY_KEY["elapsed"]
    own = figures.by_pid[second.pid]
    assert (cpu.text(own), elapsed.text(own)) == ("200.0%", units.short_duration_text(60.0))
    job = figures.jobs[0]
    both = tuple(rank for rank in job.ranks if rank.process.pid in (first.pid, second.pid))
    combined = combined_figures(figures, job, both)
    assert (cpu.text(combined), elapsed.text(combined)) == ("400.0%", units.short_duration_text(7200.0))
    unknown = replace(combined, process=replace(combined.process, vcpu_user_ratio=None), elapsed_seconds=None)
    assert (cpu.text(unknown), elapsed.text(unknown)) == ("-", "-")
