"""Where the time of a process goes: parts of a training step, operators, graphs, and advice."""

from __future__ import annotations

from neurontools.model import TrainingCounters, TrainingRates
from neurontools.model.process import STEP_PARTS
from neurontools.util import units
from neurontools.views.drawing.figures import ProcessFigures
from neurontools.views.drawing.lines import printable
from neurontools.views.process_details import TimeShare, graph_shares, operator_shares
from neurontools.web.nodes import Node, node
from neurontools.web.tables import PageColumn, meter, section, table


def time_section(figures: ProcessFigures) -> Node:
    """Builds the section on the time of a process."""
    process = figures.process
    counters, rates = process.training or TrainingCounters(), process.training_rates or TrainingRates()
    parts: list[Node] = []
    if counters.host_seconds_total is None:
        parts.append(node("p", "The runtime of this process does not report step time.", class_="dim"))
    else:
        bars = []
        for part in STEP_PARTS:
            ratio, seconds = getattr(rates, part.ratio), getattr(counters, part.counter)
            in_step = ratio / rates.steps_per_second if ratio is not None and rates.steps_per_second else None
            text = f"{units.percent_text(ratio, 1)}, {units.short_duration_text(in_step)} a step, "
            bars.append(meter(part.name, ratio, f"{text}{units.short_duration_text(seconds)} in all"))
        parts.append(node("div", node("h3", "Step time"), *bars))
    tables: list[Node] = []
    for title, (shares, is_recent) in (("Operators", operator_shares(process)), ("Graphs", graph_shares(process))):
        columns: tuple[PageColumn[TimeShare], ...] = (
            PageColumn("Name", lambda row: row.name, 0, True),
            PageColumn("Last 10 s" if is_recent else "Share", lambda row: units.percent_text(row.ratio, 1)),
            PageColumn("Count", lambda row: units.count_text(row.executions_total)),
            PageColumn("Mean", lambda row: units.short_duration_text(row.mean_seconds)),
        )
        if shares:
            tables.append(node("div", node("h3", title), table(title, columns, shares, "")))
    if tables:
        parts.append(node("div", *tables, class_="pair"))
    if process.advice:
        items = []
        for each in process.advice:
            where = f" at {printable(each.place)}" if each.place else ""
            said = node("p", f"{printable(each.rule)}{where}: {printable(each.measured)}")
            items.append(node("li", said, node("p", node("b", "Next step: "), printable(each.fix)), class_="warning"))
        parts.append(node("div", node("h3", "Advice"), node("ul", *items, class_="findings")))
    return section("Where its time goes", *parts, name="time")
