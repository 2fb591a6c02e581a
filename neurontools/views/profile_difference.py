"""The difference between the profiles of two runs, as text and as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence

from neurontools.profile.analysis.comparison import (
    Comparison,
    FollowedAdvice,
    OperatorDifference,
    QuantityDifference,
    QuantityUnit,
)
from neurontools.profile.analysis.operators import GraphUse
from neurontools.profile.analysis.report import RunReport
from neurontools.profile.definitions import ENGINE_NAMES
from neurontools.util.formats import json_text
from neurontools.util.terminal import escape_controls
from neurontools.util.units import UNKNOWN, count_text, counted, duration_text, iec_bytes_text, percent_text
from neurontools.views.drawing.lines import TableColumn, plain_text, row_line, title_line
from neurontools.views.profile_document import line_text
from neurontools.views.profile_report import flop_text, place_label, printable_name

SCHEMA_VERSION = 1
NOISE_RATIO = 0.05  # the text output leaves out relative changes up to this size
_TITLE_CELLS, _VALUE_CELLS = 20, 14
_WIDTH = 120
_LEAST_STEP_RATIO = 0.001  # the text output leaves out operators whose time changes by less than this share of a step
_SHORT_HASH = 10


def profile_difference_text(names: Sequence[str], compared: Comparison, most: int) -> str:
    """Returns the text output: quantities that differ, operators that changed most, and graphs of only one run."""
    sides = zip("AB", names, (compared.a, compared.b), strict=True)
    lines = [f"{letter}: {_run_text(where, report)}" for letter, where, report in sides]
    lines += ["operator times, FLOP and counts are per step of one rank", ""]
    lines.append(f"{'':<{_TITLE_CELLS}}{'A':>{_VALUE_CELLS}}{'B':>{_VALUE_CELLS}}  change")
    differing = [each for each in compared.quantities if _differs(each)]
    lines += [_quantity_line(each) for each in differing] or ["no differences"]
    if compared.advice:
        lines += ["", "next steps of A, what they can save of a step, and what B saved:"]
        lines += [f"  {_advice_text(each)}" for each in compared.advice]
    changed = [each for each in compared.operators if _is_significant(each, compared)]
    if changed:
        lines += ["", f"operators by change in time ({counted(len(changed), 'change')}):"]
        placed = [(column, column.cells) for column in _OPERATOR_COLUMNS]
        lines.append(plain_text(title_line(placed, _WIDTH)))
        lines += [plain_text(row_line(placed, each, _WIDTH)) for each in changed[:most]]
    for letter, graphs in (("A", compared.only_a_graphs), ("B", compared.only_b_graphs)):
        if graphs:
            lines += ["", f"only in {letter}: {counted(len(graphs), 'graph')}"]
            lines += [f"  {_graph_text(graph)}" for graph in graphs[:most]]
    lines += ["", "left out: differences below 5 %, and operators that change by less than 0.1 % of a step"]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def profile_difference_json(names: Sequence[str], compared: Comparison) -> str:
    """Returns all compared quantities and operators, and graphs of only one run, as JSON without a final newline."""
    return json_text(
        {
            "schema_version": SCHEMA_VERSION,
            "a": _run_part(names[0], compared.a),
            "b": _run_part(names[1], compared.b),
            "quantities": {each.quantity.name: {"a": each.a, "b": each.b} for each in compared.quantities},
            "advice": [
                {
                    "cause": each.cause.text,
                    "next_step": each.cause.next_step,
                    "predicted_seconds": [0.0, each.cause.seconds],
                    "saved_seconds": each.saved_seconds,
                }
                for each in compared.advice
            ],
            "operators": [
                {
                    "name": each.name,
                    "engine": ENGINE_NAMES[each.engine],
                    "line": line_text(each.place),
                    "is_backward": each.is_backward,
                    "a": {"seconds": each.a_seconds, "count": each.a_count, "flops": each.a_flops},
                    "b": {"seconds": each.b_seconds, "count": each.b_count, "flops": each.b_flops},
                }
                for each in compared.operators
            ],
            "only_a_graphs": [graph.hash_text for graph in compared.only_a_graphs],
            "only_b_graphs": [graph.hash_text for graph in compared.only_b_graphs],
        },
        indent=2,
    )


def _advice_text(each: FollowedAdvice) -> str:
    cause, saved = each.cause, each.saved_seconds
    result = f"saved {duration_text(saved)}" if saved >= 0 else f"took {duration_text(-saved)} more"
    return f"{printable_name(cause.text)}: up to {duration_text(cause.seconds)} predicted, {result}"


def _run_part(where: str, report: RunReport) -> dict[str, object]:
    return {"path": where, "ranks": len(report.ranks), "steps_total": report.step_count}


def _run_text(where: str, report: RunReport) -> str:
    kind = printable_name(report.ranks[0].profile.metadata.instance_type or "unknown instance type")
    return (
        f"{escape_controls(where)}, {kind}, {counted(len(report.ranks), 'rank')}, {counted(report.step_count, 'step')}"
    )


def _differs(each: QuantityDifference) -> bool:
    if each.a is None or each.b is None or each.quantity.unit is QuantityUnit.COUNT:
        return each.a != each.b
    return abs(each.b - each.a) > NOISE_RATIO * max(abs(each.a), abs(each.b))


def _quantity_line(each: QuantityDifference) -> str:
    one, other = (_value_text(value, each.quantity.unit) for value in (each.a, each.b))
    return f"{each.quantity.title:<{_TITLE_CELLS}}{one:>{_VALUE_CELLS}}{other:>{_VALUE_CELLS}}  {_change_text(each)}"


def _value_text(value: float | None, unit: QuantityUnit) -> str:
    if value is None:
        return UNKNOWN
    if unit is QuantityUnit.SECONDS:
        return duration_text(value)
    if unit is QuantityUnit.RATIO:
        return percent_text(value)
    if unit is QuantityUnit.FLOPS:
        return flop_text(value)
    return iec_bytes_text(round(value)) if unit is QuantityUnit.BYTES else count_text(round(value))


def _change_text(each: QuantityDifference) -> str:
    ratio = each.ratio
    if ratio is None:
        return ""
    return f"{ratio:.2f} times" if ratio >= 2 else f"{(ratio - 1) * 100:+.1f} %"


def _is_significant(each: OperatorDifference, compared: Comparison) -> bool:
    if each.a_seconds is None or each.b_seconds is None:
        return True
    step = max(_step_seconds(compared.a), _step_seconds(compared.b))
    change = abs(each.change_seconds)
    return change > _LEAST_STEP_RATIO * step and change > NOISE_RATIO * max(each.a_seconds, each.b_seconds)


def _step_seconds(report: RunReport) -> float:
    return report.split.total_seconds / report.split_steps


def _graph_text(graph: GraphUse) -> str:
    compiled = duration_text(graph.compile_seconds)
    short = printable_name(graph.hash_text)[:_SHORT_HASH]
    reason = printable_name(graph.reason) or UNKNOWN
    return f"{short}, step {count_text(graph.first_step)}, compiled in {compiled}: {reason}"


def _signed_duration(seconds: float) -> str:
    return f"{'+' if seconds > 0 else ''}{duration_text(seconds)}"


_OPERATOR_COLUMNS: tuple[TableColumn[OperatorDifference], ...] = (
    TableColumn("CHANGE", 11, 0, lambda each: _signed_duration(each.change_seconds)),
    TableColumn("A", 10, 0, lambda each: duration_text(each.a_seconds)),
    TableColumn("B", 10, 0, lambda each: duration_text(each.b_seconds)),
    TableColumn("A FLOP", 12, 0, lambda each: UNKNOWN if each.a_flops is None else flop_text(each.a_flops)),
    TableColumn("B FLOP", 12, 0, lambda each: UNKNOWN if each.b_flops is None else flop_text(each.b_flops)),
    TableColumn(
        "OPERATOR", 32, 0, lambda each: printable_name(each.name) + (" (backward)" if each.is_backward else ""), True
    ),
    TableColumn("LINE", 24, 0, lambda each: place_label(each.place), True),
)
