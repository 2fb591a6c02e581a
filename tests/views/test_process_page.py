"""The process list and the details of a process: what is shown where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neurontools.model import Attribution, ScriptAdvice, Snapshot, TrainingCounters, TrainingRates
from neurontools.model.jobs.running_job import jobs
from neurontools.views.drawing.scene import Scene
from neurontools.views.job_rows import job_key
from neurontools.views.processes.page import process_page
from neurontools.views.top.document import document
from tests.harness.scenario_host import ScenarioHost

HOST = ScenarioHost("trn1.2xlarge", "steady").at(30.0)
OPENED = frozenset(map(job_key, jobs(HOST)))
PLACES = {
    "train/bert-0": Attribution(pod_name="bert-0", pod_namespace="train", container_id="ab" * 32),
    "bert-0": Attribution(pod_name="bert-0"),
    "job 77.0": Attribution(slurm_job_id="77", slurm_step_id="0"),
    "trainer": Attribution(container_name="trainer", container_id="ab" * 32),
    "abababababab": Attribution(container_id="ab" * 32),
}


def placed(attribution: Attribution | None) -> Snapshot:
    first, *others = HOST.processes
    return replace(HOST, processes=(replace(first, attribution=attribution), *others))


def text_of(scene: Scene, width: int) -> str:
    return "\n".join("".join(part for part, _ in line) for line in process_page(scene, width, 20).lines)


@pytest.mark.parametrize("place", PLACES)
def test_pod_container_or_job_has_a_column_and_a_line(place: str) -> None:
    snapshot = placed(PLACES[place])
    listed = text_of(Scene.of(snapshot, page="processes", unfolded=OPENED), 200).splitlines()
    titles = next(line for line in listed if "PID" in line and "TAG" in line)
    row = next(line for line in listed if str(snapshot.processes[0].pid) in line)
    assert row[titles.index("WHERE") :].split("  ")[0].strip() == place
    details = text_of(Scene.of(snapshot, details_pid=snapshot.processes[0].pid), 200).splitlines()
    assert [line.split()[1:] for line in details if line.split()[:1] == ["where"]] == [place.split()]


def test_the_column_is_not_there_while_it_would_be_empty() -> None:
    assert "WHERE" not in text_of(Scene.of(placed(None), page="processes"), 200)


def test_many_executions_a_second_are_told_in_fewer_digits_and_not_cut() -> None:
    first, *others = HOST.processes
    busy = replace(HOST, processes=(replace(first, executions_per_second=123_456.7), *others))
    titles, row = [
        line
        for line in text_of(Scene.of(busy, page="processes", unfolded=OPENED), 200).splitlines()
        if "EXEC/S" in line or str(first.pid) in line
    ]
    end = titles.index("EXEC/S") + len("EXEC/S")
    assert row[:end].split()[-1] == "123,457"
    assert row[end] == " "


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
    first, *others = HOST.processes
    changed = replace(HOST, processes=(replace(first, training=counters, training_rates=rates), *others))
    lines = text_of(Scene.of(changed, details_pid=first.pid), 200).splitlines()
    assert {line[12] for line in lines[1:] if line[1:2].isalpha()} == {" "}, "names have a space behind them"
    return {line[:13].strip(): line[13:].strip() for line in lines}


def test_what_a_training_runtime_counts_is_among_the_details() -> None:
    shown = details(COUNTERS, RATES)
    assert shown["training"] == "10.0 steps/s, 1,200 so far; 320.0 samples/s, 38,400 so far"
    assert shown["compiled"] == "3 graphs in 1.2 s"
    assert shown["collectives"] == "12.50% of the time, 1.0 MB/s; 1,200 so far, 3.0 GB"
    assert shown["transfers"] == "to device 1.0 KB/s, 1.0 MB so far; from device -, 4.7 KB so far"


def test_where_the_time_goes_and_since_when_it_compiles() -> None:
    now = HOST.taken_at_seconds
    told = replace(
        COUNTERS,
        compiling_since_seconds=now - 12.0,
        last_step_at_seconds=now - 3.1,
        compute_seconds_total=9.0,
        host_seconds_total=9.0,
        compile_wait_seconds_total=9.0,
        collective_wait_seconds_total=0.0,
    )
    rates = replace(RATES, compute_ratio=0.5, host_ratio=0.25, compile_wait_ratio=0.0, collective_wait_ratio=0.0)
    shown = details(told, rates)
    assert shown["compiling"] == "now, since 12.0 s"
    assert shown["step time"] == "compute 50.0%  host 25.0%  compile 0.0%", "what there was"
    assert shown["training"].startswith("10.0 steps/s, 1,200 so far; last step 3.1 s ago; 320.0 samples/s")
    shown = details(COUNTERS, RATES)
    assert not {"compiling", "step time"} & shown.keys()
    assert "last step" not in shown["training"]


def test_who_waits_in_a_collective_for_long_says_in_which() -> None:
    told = replace(COUNTERS, collective_since_seconds=HOST.taken_at_seconds - 12.0, latest_collective="all_reduce")
    first, *others = HOST.processes
    changed = replace(HOST, processes=(replace(first, training=told, reporting=True), *others))
    assert "in all_reduce since 12.0 s" in text_of(Scene.of(changed, details_pid=first.pid), 200)
    short = replace(told, collective_since_seconds=HOST.taken_at_seconds - 0.5)
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


def test_the_document_has_them_too() -> None:
    first, *others = HOST.processes
    changed = replace(HOST, processes=(replace(first, training=COUNTERS, training_rates=RATES), *others))
    told, *silent = document(changed).processes
    assert told.training is not None
    assert (told.training.compiling_for_seconds, told.training.since_last_step_seconds) == (None, None)
    (job,) = document(changed).jobs
    assert (job.compiling_for_seconds, job.since_last_step_seconds) == (None, None)
    assert told.training is not None
    assert (told.training.samples_total, told.training.samples_per_second) == (38400, 320.0)
    assert (told.training.collective_ratio, told.training.from_device_bytes_per_second) == (0.125, None)
    assert [each.training for each in silent] == [None] * len(others)


def test_what_the_script_could_do_better_is_among_the_details() -> None:
    first, *others = HOST.processes
    advice = (
        ScriptAdvice("host-read", "read 9 times", "train.py:41", "read seldom", "faster"),
        ScriptAdvice("float32", "97% \x1b[2Jfloat32", None, "bfloat16", "faster"),
    )
    changed = replace(HOST, processes=(replace(first, advice=advice), *others))
    lines = text_of(Scene.of(changed, details_pid=first.pid), 80).splitlines()
    told = [line.split(maxsplit=1)[1] for line in lines if line.startswith(" advice")]
    assert told[0] == "host-read at train.py:41: read 9 times".ljust(len(told[0]))
    assert "\x1b" not in told[1]
    assert len(told) == 2
