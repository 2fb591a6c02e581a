"""Where the time of one process goes: the parts of its steps, its operators and its graphs, of the last seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from neurontools import catalog
from neurontools.model import LoadedModel, OperatorTime, Process, TrainingCounters, TrainingRates
from neurontools.model.training import STEP_PARTS
from neurontools.util import units
from neurontools.views.drawing.core_grid import heading
from neurontools.views.drawing.figures import ProcessFigures
from neurontools.views.drawing.gauge import bar
from neurontools.views.drawing.line import Line, Page, Run, cell, clip, fit, foreign
from neurontools.views.drawing.scene import Scene
from neurontools.views.processes.advice_lines import advice_lines

_WIDE = 100  # cells, below which words are left out
_SIDE_BY_SIDE = 120  # cells, from which on operators and graphs are beside each other
_LEAST_NAME, _LONGEST_NAME, _LEAST_BAR, _BAR = 30, 44, 8, 20
_BRIEF_HEIGHT = 26  # lines, below which parts that there were not are left out
_MOST_ADVICE_SHARE = 4  # at most a quarter of the page is for advice
_NUMBERS = 8  # cells of a number
_REST = "others"
Row = TypeVar("Row", OperatorTime, LoadedModel)


@dataclass(frozen=True, slots=True)
class _Share:
    """A row of a list: its name, its share of all executions, how often and how long in the mean."""

    name: str
    ratio: float
    executions_total: int
    mean_seconds: float | None


def time_page(scene: Scene, figures: ProcessFigures, width: int, height: int) -> Page:
    """The page of a process, in `height` lines at most."""
    process = figures.process
    title = f"Process {process.pid}  {foreign(process.tag, 60)}: where its time goes"
    page = Page([heading(scene, title, width, scene.key_hint("P facts and plots, Esc back"))])
    page.add(fit(((clip(_now(figures, is_brief=width < _WIDE), width, mark=True), "text"),), width))
    if figures.compiling_for_seconds is not None:
        text = f" compiling now, since {units.duration_text(figures.compiling_for_seconds)}"
        page.add(fit(((text, "warn"),), width))
    page.add(*_step_time(scene, process, width, is_brief=height < _BRIEF_HEIGHT))
    advice = advice_lines(process, width, max(0, height // _MOST_ADVICE_SHARE))
    room = height - len(page.lines) - len(advice)
    page.add(*_lists(scene, process, width, room))
    page.add(*advice)
    return page


def _now(figures: ProcessFigures, *, is_brief: bool) -> str:
    """What the process gets done."""
    rate = figures.steps_per_second
    text = (
        f" util {units.percent_text(figures.utilization_ratio)}  {units.flops_text(figures.flops_per_second)}  "
        f"MFU {units.percent_text(figures.mfu_ratio)}"
    )
    if not is_brief:
        text += f" of {catalog.PEAK_DTYPE} peak"
    if rate:
        text += f"  {rate:.1f} steps/s, {units.duration_text(1 / rate)} a step"
    if figures.since_last_step_seconds is not None:
        text += f"  last step {units.duration_text(figures.since_last_step_seconds)} ago"
    return text


def _step_time(scene: Scene, process: Process, width: int, *, is_brief: bool) -> list[Line]:
    """A line for each part of step time; brief: for each that there was."""
    counters, rates = process.training or TrainingCounters(), process.training_rates or TrainingRates()
    if counters.host_seconds_total is None:
        return [fit(((" its runtime does not tell where the time of a step goes", "dim"),), width)]
    per_step = rates.steps_per_second
    bar_cells = max(8, min(60, width - 48))
    titles = f" {'STEP TIME':<16} {'':<{bar_cells}} {'NOW':>{_NUMBERS}} {'A STEP':>{_NUMBERS}} {'SO FAR':>{_NUMBERS}}"
    lines = [fit(((titles, "column"),), width, "column")]
    for part in STEP_PARTS:
        ratio, seconds = getattr(rates, part.ratio), getattr(counters, part.counter)
        if is_brief and not seconds:
            continue
        in_step = ratio / per_step if ratio is not None and per_step else None
        numbers = "".join(
            f" {cell(text, _NUMBERS, right=True)}"
            for text in (
                units.percent_text(ratio, 1),
                units.short_duration_text(in_step),
                units.short_duration_text(seconds),
            )
        )
        runs: list[Run] = [(f" {part.name:<16} ", "label"), *bar(ratio, bar_cells, scene.glyphs), (numbers, "text")]
        lines.append(fit(runs, width))
    return lines


def _lists(scene: Scene, process: Process, width: int, room: int) -> list[Line]:
    """Operators and graphs, beside each other or one below the other."""
    operators, is_recent = _shares(
        process.operators,
        lambda operator: operator.ratio,
        lambda operator: operator.seconds_total,
        lambda operator: foreign(operator.name, 80) or _REST,
    )
    if [operator.name for operator in process.operators] == [""]:
        operators = []
    graphs, _ = _shares(
        process.models,
        lambda model: model.busy_ratio,
        lambda model: model.busy_seconds_total,
        lambda model: foreign(model.name, 80),
    )
    when = "last 10 s" if is_recent else "so far"
    if room < 2 or not (operators or graphs):
        return []
    if width >= _SIDE_BY_SIDE:
        left = width // 2
        first = _list(scene, f"OPERATORS, {when}", operators, left, room)
        second = _list(scene, f"GRAPHS, {when}", graphs, width - left, room)
        count = max(len(first), len(second))
        first += [fit((), left)] * (count - len(first))
        second += [fit((), width - left)] * (count - len(second))
        return [(*one, *other) for one, other in zip(first, second, strict=True)]
    for_graphs = min(len(graphs) + 1, max(2, room // 3)) if graphs else 0
    lines = _list(scene, f"OPERATORS, {when}", operators, width, room - for_graphs)
    return lines + (_list(scene, f"GRAPHS, {when}", graphs, width, room - len(lines)) if graphs else [])


def _shares(
    rows: Sequence[Row],
    ratio: Callable[[Row], float | None],
    seconds: Callable[[Row], float | None],
    name: Callable[[Row], str],
) -> tuple[list[_Share], bool]:
    """Rows by their shares of the last seconds where they did something then, else of all time; most first."""
    recent = sum(ratio(row) or 0.0 for row in rows)
    read = ratio if recent else seconds
    whole = sum(read(row) or 0.0 for row in rows)
    found = [
        _Share(
            name(row),
            (read(row) or 0.0) / whole if whole else 0.0,
            row.executions_total,
            spent / row.executions_total if row.executions_total and (spent := seconds(row)) is not None else None,
        )
        for row in rows
        if seconds(row) is not None
    ]
    return sorted(found, key=lambda share: (share.name == _REST, -share.ratio)), bool(recent)


def _list(scene: Scene, title: str, shares: Sequence[_Share], width: int, room: int) -> list[Line]:
    """A list with its title, in `room` lines at most; what there is no room for is one line."""
    numbers = 3 * (_NUMBERS + 1)
    name_cells = max(min(_LEAST_NAME, width - numbers - 3), min(_LONGEST_NAME, width - numbers - 3 - _LEAST_BAR))
    bar_cells = max(0, min(_BAR, width - name_cells - numbers - 3))
    if len(shares) > 1 and room == 2:
        title += f", 1 of {len(shares)}"
    head = f" {cell(title, name_cells)} {'':<{bar_cells}}" + "".join(
        f" {name:>{_NUMBERS}}" for name in ("SHARE", "TIMES", "MEAN")
    )
    lines = [fit(((head, "column"),), width, "column")]
    if not shares:
        lines.append(fit(((" not told apart yet: a few executions are timed now and then", "dim"),), width))
    shown = list(shares)
    if len(shown) > room - 1 > 1:
        cut = shown[room - 2 :]
        executions = sum(share.executions_total for share in cut)
        shown = [*shown[: room - 2], _Share(f"{len(cut)} more", sum(share.ratio for share in cut), executions, None)]
    for share in shown:
        texts = (
            units.percent_text(share.ratio, 1),
            units.short_count_text(share.executions_total, _NUMBERS),
            units.short_duration_text(share.mean_seconds),
        )
        runs: list[Run] = [
            (f" {cell(share.name, name_cells)} ", "text"),
            *bar(share.ratio, bar_cells, scene.glyphs),
            ("".join(f" {cell(text, _NUMBERS, right=True)}" for text in texts), "text"),
        ]
        lines.append(fit(runs, width))
    return lines[: max(0, room)]
