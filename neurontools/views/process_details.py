"""Details of one process: facts, plots, time breakdown, environment and process tree."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from neurontools import catalog
from neurontools.client.samples import HostQuantity
from neurontools.driver.processes import ProcessContext, ProcessTreeEntry
from neurontools.model import (
    LoadedModel,
    OperatorTime,
    Process,
    ScriptAdvice,
    SourceKind,
    TrainingCounters,
    TrainingRates,
)
from neurontools.model.process import STEP_PARTS
from neurontools.util import units
from neurontools.util.process_text import HIDDEN
from neurontools.util.units import day_text, ranges_text, sum_known
from neurontools.views.consumption import consumption_facts
from neurontools.views.drawing.figures import ProcessFigures
from neurontools.views.drawing.glyphs import bar
from neurontools.views.drawing.lines import (
    Line,
    Run,
    TextPage,
    cell,
    clip,
    fit,
    labelled_line,
    plain_text,
    printable,
)
from neurontools.views.drawing.plots import Plot, bytes_label, percent_label, plot_lines, time_axis
from neurontools.views.drawing.render_context import RenderContext, SearchEntry, add_scrolled_list, heading
from neurontools.views.process_table import WHERE
from neurontools.views.served_models import served_model_facts

COMPILING, ADVICE = "compiling", "advice"
_FACT_NAME_CELLS = 11  # width of fact names; the longest are "checkpoints" and "collectives"
_LONG_WAIT_SECONDS = 2.0  # a collective that lasts at least this long gets a line of its own among the facts
_WIDE_CELLS = 100  # least width of a screen for the full text of the current rates
_SIDE_BY_SIDE_CELLS = 120  # screens with at least this many cells show operators and graphs side by side
_LEAST_NAME_CELLS, _MOST_NAME_CELLS, _LEAST_BAR_CELLS, _BAR_CELLS = 30, 44, 8, 20
_BRIEF_HEIGHT = 26  # screens with fewer lines leave out step parts of 0 seconds
_ADVICE_HEIGHT_DIVISOR = 4  # advice takes at most a quarter of the page height
_NUMBER_CELLS = 8
_OTHERS_NAME = "others"
TimedType = TypeVar("TimedType", OperatorTime, LoadedModel)
_VARIABLE_NAME_CELLS = 28
_SEARCHED_CELLS = 1000
_LEAST_ADVICE_WIDTH = 30


def when_text(unix_seconds: float | None) -> str:
    return "-" if unix_seconds is None else day_text(unix_seconds)


def uncertain_cores_text(process: Process) -> str:
    """Returns the reason why the cores of a process are inferred or unknown; "" if they are known."""
    if "core_indices" in process.inferred_fields:
        return "cores inferred: no other process has their devices open"
    if not process.core_indices and process.runtime_version is not None and process.device_indices:
        return f"cores unknown: other processes have ND {ranges_text(process.device_indices)} open too"
    return ""


def _title(process: Process) -> str:
    return f"Process {process.pid}" + (f"  {printable(process.label, 60)}" if process.label != str(process.pid) else "")


def process_details(context: RenderContext, figures: ProcessFigures, width: int, height: int) -> TextPage:
    """Draws the details of a process: facts and plots, or the time breakdown if the user selected it."""
    if context.is_time_shown:
        return time_page(context, figures, width, height)
    process = figures.process
    title = _title(process)
    page = TextPage([heading(context, title, width, context.key_hint("P step time, E environment, Esc back"))])
    for name, text, style in process_facts(context, figures)[: max(1, height - 2)]:
        page.add_lines(labelled_line(name, text, width, _FACT_NAME_CELLS, style))
    if context.process_context is not None:
        # Reserves at least a third of the screen for the environment that the user requested.
        del page.lines[max(2, height * 2 // 3) :]
        page.append_page(process_context_page(context, context.process_context, width, height - len(page.lines)))
        return page
    axis = time_axis(context, width)
    room = height - len(page.lines)
    if axis is None or room < 4:
        return page
    pid = process.pid
    plots = (
        Plot("Utilization", HostQuantity("utilization_ratio", pid=pid), 1.0, percent_label),
        Plot("FLOPS", HostQuantity("flops_per_second", pid=pid), None, units.flops_text),
        Plot("Device memory", HostQuantity("memory_bytes", pid=pid), None, bytes_label),
        Plot("Executions a second", HostQuantity("executions_per_second", pid=pid), None, units.rate_text),
        Plot("Latency p99", HostQuantity("latency_p99_seconds", pid=pid), None, units.duration_text),
    )
    page.add_lines(*plot_lines(context, plots, axis, width, room))
    return page


def process_facts(context: RenderContext, figures: ProcessFigures) -> list[tuple[str, str, str]]:
    """Returns the facts about a process: the name, text and style of each."""
    process = figures.process
    latency = process.total_latency
    errors = process.errors
    started = process.started_at_unix_seconds
    run_seconds = None if started is None else max(0.0, context.snapshot.taken_at_unix_seconds - started)
    completed = None if process.executions is None else process.executions.completed_total
    failed = figures.failed_executions_total
    facts = (
        ("command", printable(process.command, 1000) or "-"),
        *((("job", printable(process.job_name, 80)),) if process.job_name else ()),
        ("user", f"{printable(process.user or '-', 40)} (uid {process.uid if process.uid is not None else '-'})"),
        *((("where", WHERE.text(figures)),) if process.attribution is not None else ()),
        (
            "started",
            (
                f"{when_text(started)}, runs for {units.duration_text(run_seconds)}, "
                f"attached {when_text(process.attached_at_unix_seconds)}"
            ),
        ),
        ("CPU", _cpu_text(process)),
        ("runtime", f"{printable(process.runtime_version or '-', 40)}, LNC {process.logical_neuroncore_config}"),
        (
            "cores",
            f"NC {ranges_text(process.neuroncore_indices) or '-'} on ND {ranges_text(process.device_indices)}"
            + (f"; {doubt}" if (doubt := uncertain_cores_text(process)) else ""),
        ),
        (
            "now",
            (
                f"util {units.percent_text(figures.utilization_ratio)}  {units.flops_text(figures.flops_per_second)}  "
                f"MFU {units.percent_text(figures.mfu_ratio)} of {catalog.PEAK_DTYPE} peak"
            ),
        ),
        (
            "executions",
            (
                f"{units.rate_text(process.executions_per_second)}/s, {units.count_text(completed)} completed, "
                f"{'-' if failed is None else failed} failed, "
                f"last {units.duration_text(figures.since_last_execution_seconds)} ago"
            ),
        ),
        (
            "latency",
            ("-" if process.executions is None or context.snapshot.source is SourceKind.SYSFS else "no executions")
            if latency is None
            else "  ".join(
                f"{name} {units.duration_text(getattr(latency, f'{name}_seconds'))}"
                for name in ("p0", "p25", "p50", "p75", "p99", "p100")
            ),
        ),
        (
            "errors",
            "-"
            if errors is None
            else "  ".join(
                f"{name} {getattr(errors, f'{name}_total')}"
                for name in ("generic", "numerical", "transient", "model", "runtime", "hardware")
            ),
        ),
        (
            "memory",
            (
                f"device {units.bytes_text(figures.device_memory_bytes)}, "
                f"host {units.bytes_text(process.host_memory.total_bytes)} "
                f"of {units.bytes_text(process.resident_bytes)} resident"
            ),
        ),
        *consumption_facts((process,), context.snapshot),
        *served_model_facts(process, context.glyphs, context.snapshot.taken_at_seconds),
        *_training_facts(figures),
        *((ADVICE, _advice_text(each)) for each in process.advice),
        (
            "models",
            ", ".join(f"{printable(m.name, 80)} ({'running' if m.running else 'loaded'})" for m in process.models[:4])
            or ("-" if context.snapshot.source is SourceKind.SYSFS else "none"),
        ),
    )
    styles = {"errors": "bad" if figures.errors_total else "text", COMPILING: "warn", ADVICE: "warn"}
    return [(name, text, styles.get(name, "text")) for name, text in facts]


def _cpu_text(process: Process) -> str:
    """Returns the current CPU use and the CPU time since the process started; 200 % means two busy vCPUs."""
    now = sum_known((process.vcpu_user_ratio, process.vcpu_system_ratio))
    spent = sum_known((process.cpu_user_seconds_total, process.cpu_system_seconds_total))
    return (
        f"{units.percent_text(now, 1)} of a vCPU (user {units.percent_text(process.vcpu_user_ratio, 1)}, system "
        f"{units.percent_text(process.vcpu_system_ratio, 1)}), {units.duration_text(spent)} so far"
    )


def _training_facts(figures: ProcessFigures) -> tuple[tuple[str, str], ...]:
    """Returns the names and texts of facts from the training counters; leaves out counters that are 0."""
    counters, rates = figures.process.training, figures.process.training_rates or TrainingRates()
    if counters is None:
        return ()
    facts = []
    if figures.compiling_for_seconds is not None:
        facts.append((COMPILING, f"for {units.duration_text(figures.compiling_for_seconds)}"))
    parts = [part for part in STEP_PARTS if getattr(counters, part.counter)]
    shares = [(part.name, ratio) for part in parts if (ratio := getattr(rates, part.ratio)) is not None]
    if shares:
        facts.append(("step time", "  ".join(f"{name} {units.percent_text(ratio, 1)}" for name, ratio in shares)))
    if counters.steps_total:
        text = f"{units.rate_text(rates.steps_per_second)} steps/s, {units.count_text(counters.steps_total)} so far"
        if figures.since_last_step_seconds is not None:
            text += f"; last step {units.duration_text(figures.since_last_step_seconds)} ago"
        if counters.samples_total is not None:
            samples = units.count_text(counters.samples_total)
            text += f"; {units.rate_text(rates.samples_per_second)} samples/s, {samples} so far"
        facts.append(("training", text))
    if counters.input_wait_seconds_total is not None:
        waited = units.duration_text(counters.input_wait_seconds_total)
        facts.append(("input wait", f"{units.percent_text(rates.input_wait_ratio)} of the time, {waited} so far"))
    if counters.checkpoints_total:
        written = units.duration_text(counters.checkpoint_seconds_total)
        facts.append(("checkpoints", f"{units.count_text(counters.checkpoints_total)} in {written}"))
    if counters.compilations_total:
        seconds = units.duration_text(counters.compile_seconds_total)
        facts.append(("compiled", f"{units.count_text(counters.compilations_total)} graphs in {seconds}"))
    wait_seconds = figures.in_collective_for_seconds
    if wait_seconds is not None and wait_seconds >= _LONG_WAIT_SECONDS:
        kind = printable(counters.latest_collective or "one", 40)
        facts.append(("collective", f"in {kind} for {units.duration_text(wait_seconds)}"))
    if counters.collectives_total:
        text = (
            f"{units.percent_text(rates.collective_ratio)} of the time, "
            f"{units.byte_rate_text(rates.collective_bytes_per_second)}; "
            f"{units.count_text(counters.collectives_total)} so far, "
            f"{units.bytes_text(counters.collective_bytes_total)}"
        )
        facts.append(("collectives", text))
    if counters.to_device_bytes_total or counters.from_device_bytes_total:
        text = (
            f"to device {units.byte_rate_text(rates.to_device_bytes_per_second)}, "
            f"{units.bytes_text(counters.to_device_bytes_total)} so far; "
            f"from device {units.byte_rate_text(rates.from_device_bytes_per_second)}, "
            f"{units.bytes_text(counters.from_device_bytes_total)} so far"
        )
        facts.append(("transfers", text))
    return tuple(facts)


def _advice_text(each: ScriptAdvice) -> str:
    """Returns the rule, source line and measurement of a piece of advice, without the suggested fix."""
    where = f" at {printable(each.place)}" if each.place else ""
    return f"{printable(each.rule)}{where}: {printable(each.measured)}"


@dataclass(frozen=True, slots=True)
class TimeShare:
    """An operator or graph in the time breakdown. `ratio` is its share of the total time of operators or graphs."""

    name: str
    ratio: float
    executions_total: int
    mean_seconds: float | None


def time_page(context: RenderContext, figures: ProcessFigures, width: int, height: int) -> TextPage:
    """Draws the time breakdown of a process: step time, operators, graphs and advice, in at most `height` lines."""
    process = figures.process
    title = f"{_title(process)}: where its time goes"
    page = TextPage([heading(context, title, width, context.key_hint("P facts and plots, Esc back"))])
    rates = _current_rates(figures, is_brief=width < _WIDE_CELLS)
    page.add_lines(fit(((clip(rates, width, mark=True), "text"),), width))
    if figures.compiling_for_seconds is not None:
        text = f" compiling for {units.duration_text(figures.compiling_for_seconds)}"
        page.add_lines(fit(((text, "warn"),), width))
    page.add_lines(*_step_time_lines(context, process, width, is_brief=height < _BRIEF_HEIGHT))
    advice = advice_lines(process, width, height // _ADVICE_HEIGHT_DIVISOR)
    room = height - len(page.lines) - len(advice)
    page.add_lines(*_share_lists(context, process, width, room), *advice)
    return page


def _current_rates(figures: ProcessFigures, *, is_brief: bool) -> str:
    """Returns utilization, FLOPS, MFU and step rate of a process as text. `is_brief` shortens the text."""
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


def _step_time_lines(context: RenderContext, process: Process, width: int, *, is_brief: bool) -> list[Line]:
    """Draws a line for each part of the step time. `is_brief` leaves out parts of 0 seconds."""
    counters, rates = process.training or TrainingCounters(), process.training_rates or TrainingRates()
    if counters.host_seconds_total is None:
        return [fit(((" its runtime does not report step time", "dim"),), width)]
    per_step = rates.steps_per_second
    bar_cells = max(8, min(60, width - 48))
    titles = f" {'STEP TIME':<16} {'':<{bar_cells}}{_number_cells(('NOW', 'PER STEP', 'TOTAL'))}"
    lines = [fit(((titles, "column"),), width, "column")]
    for part in STEP_PARTS:
        ratio, seconds = getattr(rates, part.ratio), getattr(counters, part.counter)
        if is_brief and not seconds:
            continue
        in_step = ratio / per_step if ratio is not None and per_step else None
        texts = (units.percent_text(ratio, 1), units.short_duration_text(in_step), units.short_duration_text(seconds))
        numbers = _number_cells(texts)
        runs: list[Run] = [(f" {part.name:<16} ", "label"), *bar(ratio, bar_cells, context.glyphs), (numbers, "text")]
        lines.append(fit(runs, width))
    return lines


def _number_cells(texts: Sequence[str]) -> str:
    return "".join(f" {cell(text, _NUMBER_CELLS, right=True)}" for text in texts)


def _share_lists(context: RenderContext, process: Process, width: int, room: int) -> list[Line]:
    """Draws the lists of operators and graphs with their shares of time, side by side on wide screens."""
    operators, is_recent = operator_shares(process)
    graphs, _ = graph_shares(process)
    share = "LAST 10s" if is_recent else "SHARE"
    if room < 2 or not (operators or graphs):
        return []
    if width >= _SIDE_BY_SIDE_CELLS:
        left = width // 2
        first = _share_list(context, "OPERATORS, whole run", share, operators, left, room)
        second = _share_list(context, "GRAPHS, whole run", share, graphs, width - left, room)
        count = max(len(first), len(second))
        first += [fit((), left)] * (count - len(first))
        second += [fit((), width - left)] * (count - len(second))
        return [(*one, *other) for one, other in zip(first, second, strict=True)]
    for_graphs = min(len(graphs) + 1, max(2, room // 3)) if graphs else 0
    lines = _share_list(context, "OPERATORS, whole run", share, operators, width, room - for_graphs)
    return lines + (
        _share_list(context, "GRAPHS, whole run", share, graphs, width, room - len(lines)) if graphs else []
    )


def operator_shares(process: Process) -> tuple[list[TimeShare], bool]:
    """Returns the shares of operators in the execution time of a process, and whether they are recent."""
    if [operator.name for operator in process.operators] == [""]:
        return [], False
    return _recent_shares(
        process.operators,
        lambda operator: operator.ratio,
        lambda operator: operator.seconds_total,
        lambda operator: printable(operator.name, 80) or _OTHERS_NAME,
    )


def graph_shares(process: Process) -> tuple[list[TimeShare], bool]:
    """Returns the shares of graphs in the execution time of a process, and whether they are recent."""
    return _recent_shares(
        process.models,
        lambda model: model.busy_ratio,
        lambda model: model.busy_seconds_total,
        lambda model: printable(model.name, 80),
    )


def _recent_shares(
    rows: Sequence[TimedType],
    ratio: Callable[[TimedType], float | None],
    seconds: Callable[[TimedType], float | None],
    name: Callable[[TimedType], str],
) -> tuple[list[TimeShare], bool]:
    """Returns the shares of operators or graphs in execution time, highest first, and whether they are recent.

    If nothing ran recently, returns the shares of the whole run.
    """
    recent = sum(ratio(row) or 0.0 for row in rows)
    read = ratio if recent else seconds
    whole = sum(read(row) or 0.0 for row in rows)
    found = [
        TimeShare(
            name(row),
            (read(row) or 0.0) / whole if whole else 0.0,
            row.executions_total,
            spent / row.executions_total if row.executions_total and (spent := seconds(row)) is not None else None,
        )
        for row in rows
        if seconds(row) is not None
    ]
    return sorted(found, key=lambda share: (share.name == _OTHERS_NAME, -share.ratio)), bool(recent)


def _share_list(
    context: RenderContext, title: str, share: str, shares: Sequence[TimeShare], width: int, room: int
) -> list[Line]:
    """Draws a titled list of operators or graphs in at most `room` lines. The last line sums up the ones left out.

    `share` is the title of the column of shares. Counts and means are those of the whole run.
    """
    numbers = 3 * (_NUMBER_CELLS + 1)
    room_left = width - numbers - 3
    name_cells = max(min(_LEAST_NAME_CELLS, room_left), min(_MOST_NAME_CELLS, room_left - _LEAST_BAR_CELLS))
    bar_cells = max(0, min(_BAR_CELLS, room_left - name_cells))
    if len(shares) > 1 and room == 2:
        title += f", 1 of {len(shares)}"
    head = f" {cell(title, name_cells)} {'':<{bar_cells}}{_number_cells((share, 'COUNT', 'MEAN'))}"
    lines = [fit(((head, "column"),), width, "column")]
    if not shares:
        lines.append(fit(((" no timings yet: the runtime times a sample of executions", "dim"),), width))
    shown = list(shares)
    if len(shown) > room - 1 > 1:
        shown, cut = shown[: room - 2], shown[room - 2 :]
        executions = sum(each.executions_total for each in cut)
        shown.append(TimeShare(f"{len(cut)} more", sum(each.ratio for each in cut), executions, None))
    for each in shown:
        texts = (
            units.percent_text(each.ratio, 1),
            units.short_count_text(each.executions_total, _NUMBER_CELLS),
            units.short_duration_text(each.mean_seconds),
        )
        runs: list[Run] = [
            (f" {cell(each.name, name_cells)} ", "text"),
            *bar(each.ratio, bar_cells, context.glyphs),
            (_number_cells(texts), "text"),
        ]
        lines.append(fit(runs, width))
    return lines[: max(0, room)]


def process_context_page(context: RenderContext, shown: ProcessContext, width: int, height: int) -> TextPage:
    """Draws the process tree of a process, then its environment variables, as a scrolled list."""
    page = TextPage([heading(context, "Tree and environment", width, "E plots, Esc back")])
    lines = [_problem_line(shown.problem, width)] if shown.problem else _context_lines(shown, width)
    add_scrolled_list(context, page, len(lines), height - len(page.lines), lines.__getitem__)
    return page


def process_context_entries(shown: ProcessContext) -> list[SearchEntry]:
    """Returns the lines of process tree and environment as search entries."""
    return [
        SearchEntry(str(number), plain_text(line)) for number, line in enumerate(_context_lines(shown, _SEARCHED_CELLS))
    ]


def _context_lines(shown: ProcessContext, width: int) -> list[Line]:
    lines = [_relative_line(shown, relative, width) for relative in shown.tree]
    if shown.environment is None:
        lines.append(_problem_line("this user may not read the environment", width))
    else:
        lines += [_variable_line(name, value, width) for name, value in shown.environment]
        if not shown.environment:
            lines.append(_problem_line("the environment is empty", width))
    return lines


def _problem_line(text: str, width: int) -> Line:
    return fit(((clip(f" {text}", width, mark=True), "dim"),), width)


def _relative_line(shown: ProcessContext, relative: ProcessTreeEntry, width: int) -> Line:
    style = "strong" if relative.pid == shown.pid else "text"
    lead = "  " * relative.depth
    text = clip(f"{lead}{printable(relative.command, 2 * width) or '-'}", max(1, width - 10), mark=True)
    return fit(((f" {relative.pid:>8} ", "label"), (text, style)), width)


def _variable_line(name: str, value: str, width: int) -> Line:
    cells = min(_VARIABLE_NAME_CELLS, max(8, width // 3))
    shown_name = clip(printable(name, 200), cells, mark=True)
    text = clip(printable(value, 2 * width), max(1, width - cells - 3), mark=True)
    style = "warn" if value == HIDDEN else "text"
    return fit(((f" {shown_name:<{cells}} ", "label"), (text, style)), width)


def advice_lines(process: Process, width: int, room: int) -> list[Line]:
    """Draws advice, costliest first, in at most `room` lines: measurement and place, then the fix."""
    if not process.advice or room < 2 or width < _LEAST_ADVICE_WIDTH:
        return []
    lines: list[Line] = [fit(((" ADVICE", "column"),), width, "column")]
    for number, each in enumerate(process.advice):
        texts = _advice_text_lines(each, width)
        if len(lines) + len(texts) > room - (number + 1 < len(process.advice)):
            lines.append(fit(((f" {len(process.advice) - number} more with neuron-run --advise", "dim"),), width))
            break
        lines += texts
    return lines[:room]


def _advice_text_lines(each: ScriptAdvice, width: int) -> list[Line]:
    lines = [fit(((f" {clip(_advice_text(each), width - 1, mark=True)}", "warn"),), width)]
    wrapped = textwrap.wrap(f"do: {printable(each.fix)}", width - 4, break_on_hyphens=False)
    return lines + [fit(((f"   {part}", "text"),), width) for part in wrapped]
