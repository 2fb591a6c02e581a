"""The page that says where the time of a process goes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.model import OperatorTime, ScriptAdvice, Snapshot, TrainingCounters, TrainingRates
from neurontools.views.drawing.line import line_width, plain
from neurontools.views.drawing.scene import Scene
from neurontools.views.frame import frame
from neurontools.views.top.document import csv_text, document
from tests.harness.examples import examples
from tests.harness.model_parts import parts
from tests.harness.scenario_host import ScenarioHost
from tests.harness.told_process import ADVICE, COUNTERS, OPERATORS, RATES, with_told

HOST = ScenarioHost("trn1.2xlarge", "steady").at(30.0)


def snapshot_of(**told: object) -> Snapshot:
    return with_told(HOST, **told)


def page_of(snapshot: Snapshot, width: int, height: int) -> list[str]:
    scene = Scene.of(snapshot, page="processes", details_pid=snapshot.processes[0].pid, is_time_shown=True)
    page = frame(scene, width, height)
    assert [line_width(line) for line in page.lines] == [width] * height
    return [plain(line) for line in page.lines]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 36), (200, 50)])
def test_parts_operators_graphs_and_advice_have_room(width: int, height: int) -> None:
    lines = page_of(
        snapshot_of(training=COUNTERS, training_rates=RATES, operators=OPERATORS, advice=ADVICE), width, height
    )
    (compute,) = [line for line in lines if line.startswith(" compute")]
    assert compute.split()[-3:] == ["63.0%", "63.0ms", "1m"]
    assert any("10.0 steps/s, 100.0 ms a step" in line for line in lines)
    assert any("MFU" in line for line in lines)
    (mm,) = [line for line in lines if line.startswith(" aten::mm")]
    assert mm.split("%")[0].split()[-1] == "50.0", "of the time of all operators"
    (rest,) = [line for line in lines if line.startswith(" others")]
    assert lines.index(rest) > lines.index(mm)
    assert any("train_step.neff" in line for line in lines)
    assert any("host-read at train.py:41: a value was read 9 times" in line for line in lines)
    is_brief = height == 24
    assert any(line.startswith(" collective wait") for line in lines) != is_brief, "what there was not makes room"


def test_operators_without_a_share_of_the_last_seconds_are_told_of_all_time() -> None:
    paused = tuple(replace(operator, ratio=0.0) for operator in OPERATORS)
    lines = page_of(snapshot_of(training=COUNTERS, operators=paused), 80, 40)
    assert any(line.startswith(" OPERATORS, so far") for line in lines)
    (mm,) = [line for line in lines if line.startswith(" aten::mm")]
    assert mm.split()[-3:] == ["50.0%", "7,200", "4.2ms"]


def test_what_is_not_known_is_said() -> None:
    lines = page_of(snapshot_of(training=None), 80, 24)
    assert any("its runtime does not tell where the time of a step goes" in line for line in lines)
    early = page_of(snapshot_of(training=COUNTERS, operators=(OperatorTime("", 0.5, 90),)), 80, 24)
    assert any("not told apart yet" in line for line in early)
    assert not any("others" in line for line in early)


def test_more_rows_than_lines_are_summed_in_one() -> None:
    many = tuple(OperatorTime(f"aten::op{number}", 1.0, 10, 0.01) for number in range(16))
    lines = page_of(snapshot_of(training=COUNTERS, training_rates=RATES, operators=many), 80, 24)
    (more,) = [line for line in lines if " more " in line]
    shown = sum(line.startswith(" aten::op") for line in lines)
    assert more.startswith(f" {16 - shown} more")
    assert f"{(16 - shown) / 16:.1%}" in more


def test_text_of_the_process_reaches_no_terminal_as_it_is() -> None:
    evil = "\x1b[2Jevil\n"
    told = snapshot_of(
        training=COUNTERS,
        operators=(OperatorTime(evil, 1.0, 1, 0.5),),
        advice=(ScriptAdvice(evil, evil, evil, evil, evil),),
    )
    for width in (80, 200):
        assert not any("\x1b" in line or "\n" in line for line in page_of(told, width, 40))


def test_the_document_has_operators_graphs_and_advice() -> None:
    (told, *_) = document(snapshot_of(operators=OPERATORS, advice=ADVICE)).processes
    assert told.operators == OPERATORS
    assert told.advice == ADVICE
    assert (told.models[0].busy_seconds_total, told.models[0].busy_ratio) == (33.0, 0.25)
    assert "aten::mm" not in csv_text(document(snapshot_of(operators=OPERATORS)))


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
    told = snapshot_of(training=counters, training_rates=rates, operators=operators, advice=advice)
    scene = Scene.of(told, page="processes", details_pid=told.processes[0].pid, is_time_shown=is_time_shown)
    page = frame(scene, *size)
    assert [line_width(line) for line in page.lines] == [size[0]] * size[1]
    assert not any(ord(character) < 32 for line in page.lines for character in plain(line))
