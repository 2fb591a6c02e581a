"""The process page: jobs and processes that hold NeuronCores or use the Neuron runtime, with their figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from neurontools import catalog
from neurontools.model import Process, Snapshot
from neurontools.model.jobs import Rank, RunningJob
from neurontools.model.process import age_seconds
from neurontools.util import units
from neurontools.util.units import max_known, sum_known
from neurontools.views.consumption import consumption_facts
from neurontools.views.drawing.figures import Figures, ProcessFigures
from neurontools.views.drawing.heat_scale import load_style
from neurontools.views.drawing.lines import (
    ClickTarget,
    Line,
    Run,
    TextPage,
    cell,
    clip,
    fit,
    fit_marked,
    printable,
)
from neurontools.views.drawing.render_context import RenderContext, SearchEntry, add_scrolled_list, heading
from neurontools.views.process_details import process_context_entries, process_details, uncertain_cores_text, when_text
from neurontools.views.process_filter import InvalidFilter, parse_filter
from neurontools.views.process_table import (
    COMMAND,
    JobRow,
    ProcessColumn,
    columns_without_values,
    free_cores_text,
    job_and_rank_rows,
    job_key,
    job_search_entries,
    shown_process_columns,
    sort_rows,
    straggler_text,
)
from neurontools.views.process_tree import process_tree_page, tree_entries

_ValueType = TypeVar("_ValueType")


def process_page(context: RenderContext, width: int, height: int) -> TextPage:
    """Draws the process list with a footer about the selected row, or the details of one process."""
    if context.details_pid is not None:
        figures = context.figures.process_figures(context.details_pid)
        if figures is not None:
            return process_details(context, figures, width, height)
        page = TextPage([heading(context, f"PID {context.details_pid}", width)])
        text = f" this process holds no cores at the moment shown{context.key_hint('; Esc goes back')}"
        page.add_lines(fit(((text, "dim"),), width))
        return page
    if context.process_forest is not None:
        return process_tree_page(context, width, height)
    rows = process_rows(context)
    every = context.figures.tab_figures(context.pid)
    page = TextPage([_list_heading(context, rows, len(every), width)])
    columns, command_cells = shown_process_columns(context.columns, width, columns_without_values(every))
    page.append_page(_column_titles(context, columns, command_cells, width))
    footer = _footer(context, rows, width) if height >= 8 and context.cursor >= 0 else []
    list_height = height - len(page.lines) - len(footer)
    add_scrolled_list(
        context,
        page,
        len(rows),
        list_height,
        lambda position: _row_line(context, rows[position], columns, command_cells, width),
    )
    if not rows:
        empty_text = "no process holds a NeuronCore"
        if context.filter_text:
            empty_text = f"no process passes the filter{context.key_hint('; Esc clears it')}"
        page.add_lines(fit_marked(((f"  {empty_text}", "dim"),), width))
    page.lines.extend([()] * max(0, height - len(page.lines) - len(footer)))
    page.add_lines(*footer)
    return page


def process_entries(context: RenderContext, every: bool) -> list[SearchEntry]:
    """Returns the rows of the process list, or of a shown environment and process tree, as search entries."""
    if context.process_context is not None:
        return process_context_entries(context.process_context)
    if context.process_forest is not None:
        return tree_entries(context)
    if context.details_pid is not None:
        return []
    return job_search_entries(process_rows(context, every=every), context.figures)


def _list_heading(context: RenderContext, rows: list[JobRow], every: int, width: int) -> Line:
    listed = sum(len(row.ranks) for row in rows if not row.is_below)
    text = (f"{every} process" + "es" * (every != 1)) if listed == every else f"{listed} of {every} processes"
    jobs = sum(row.rank is None for row in rows)
    if jobs:
        text += f", {jobs} job{'s' * (jobs > 1)}"
    if context.tagged:
        text += f", {len(context.tagged)} tagged"
    if context.filter_text:
        text += f"  filter: {printable(context.filter_text, 80)}{_filter_error(context.filter_text)}"
    if context.search_text:
        error = _filter_error(context.search_text)
        text += f"  search: {printable(context.search_text, 80)}, {context.match_text}{error}"
    hint = context.key_hint("/: filter, s: sort")
    about = ", ".join(filter(None, (free_cores_text(context.figures), hint)))
    return heading(context, clip(text, max(1, width - 4), mark=True), width, about)


def _filter_error(text: str) -> str:
    try:
        parse_filter(text)
    except InvalidFilter as error:
        return f"  ({printable(str(error), 120)})"
    return ""


def _column_titles(context: RenderContext, columns: list[ProcessColumn], command_cells: int, width: int) -> TextPage:
    runs: list[Run] = [("  ", "column")]
    targets, left = [], 2
    orders = ((context.then_sort, context.is_then_descending), (context.sort, context.is_descending))
    glyphs = context.glyphs
    arrows = {key: glyphs.descending if is_descending else glyphs.ascending for key, is_descending in orders}
    shown = [(column, column.cells) for column in columns]
    if command_cells:
        shown.append((COMMAND, command_cells - 1))
    for column, cells in shown:
        title = cell(column.title + arrows.get(column.key, ""), cells, right=not column.is_text)
        runs += [(title, "column_sorted" if column.key == context.sort else "column"), (" ", "column")]
        targets.append(ClickTarget(0, left, left + cells + 1, "sort", column.key))
        left += cells + 1
    return TextPage([fit(runs, width, "column")], targets)


def _row_line(
    context: RenderContext, row: JobRow, columns: list[ProcessColumn], command_cells: int, width: int
) -> Line:
    figures = row_figures(context.figures, row)
    mark = context.glyphs.mark[:1] if context.tagged.issuperset(row.pids) else " "
    fold = "" if row.rank is not None else context.glyphs.opened[:1] if row.is_open else context.glyphs.closed[:1]
    runs: list[Run] = [(cell(mark + fold, 2), "strong")]
    base = "text" if figures.process.reporting or figures.process.synthetic else "dim"
    for column in columns:
        text, style = process_cell(context, row, figures, column)
        runs += [(cell(text, column.cells, right=not column.is_text), style), (" ", base)]
    if command_cells:
        runs.append((clip(COMMAND.text(figures), command_cells, mark=True), base))
    return fit(runs, width)


def process_cell(
    context: RenderContext, row: JobRow, figures: ProcessFigures, column: ProcessColumn
) -> tuple[str, str]:
    """Returns the text and the style of a cell of the process list. `figures` are those of the row."""
    base = "text" if figures.process.reporting or figures.process.synthetic else "dim"
    return _override_text(row, column) or column.text(figures), _cell_style(context, column, figures, base)


def _override_text(row: JobRow, column: ProcessColumn) -> str:
    """Returns the text that replaces the value of a cell; "" for no replacement.

    The PID column shows the rank count of a job; the tag column shows the rank of an untagged process.
    """
    if column.key == "pid" and row.rank is None:
        return f"{len(row.ranks)} ranks"
    if column.key != "tag" or row.rank is None or row.rank.number is None:
        return ""
    return f"rank {row.rank.number}" if row.rank.process.tag == str(row.pid) else ""


def _cell_style(context: RenderContext, column: ProcessColumn, figures: ProcessFigures, base: str) -> str:
    if column.key == "util" and figures.utilization_ratio is not None:
        return load_style(figures.utilization_ratio, context.thresholds.idle_below_ratio)
    if column.key == "errors" and (figures.errors_total or figures.failed_executions_total):
        return "bad"
    if column.key == "last" and (figures.since_last_execution_seconds or 0) > context.thresholds.late_after_seconds:
        return "warn"
    return base


def _footer(context: RenderContext, rows: list[JobRow], width: int) -> list[Line]:
    """Draws the lines below the list: details of the selected process or job that don't fit in its row."""
    if not rows:
        return []
    row = rows[min(context.cursor, len(rows) - 1)]
    figures = row_figures(context.figures, row)
    process = figures.process
    peak = context.figures.peak_flops_per_core
    name = f"PID {process.pid}" if row.rank is not None else printable(row.job.name or "", 80)
    dtype, peak_text = catalog.PEAK_DTYPE, f"{units.flops_text(peak)} a physical core" if peak else "which is unknown"
    explained = f"MFU: FLOPS as a share of the {dtype} peak, {peak_text}"
    if len(name) + len(explained) + 6 > width:
        explained = f"MFU: share of the {dtype} peak"
    facts = _job_facts(row, context.snapshot) if row.rank is None else _process_facts(process)
    command = clip(f" {printable(process.command, 2 * width) or 'command unknown'}", width, mark=True)
    return [
        heading(context, name, width, explained),
        fit(((command, "text"),), width),
        fit(((clip(facts, width, mark=True), "dim"),), width),
    ]


def _job_facts(row: JobRow, snapshot: Snapshot) -> str:
    count, world = len(row.ranks), row.job.world_size
    here = f"{count} ranks" if world in (None, count) else f"{count} of {world} ranks"
    slowest = straggler_text(row.job)
    facts = f" {here}, Enter {'folds' if row.is_open else 'lists'} them"
    facts += "" if slowest == "-" else f", straggler: {slowest}"
    findings = (f"; {each.severity.name.lower()}: {printable(each.reason, 200)}" for each in row.job.findings)
    processes = [rank.process for rank in row.ranks]
    consumed = (f"; {text}" for _, text in consumption_facts(processes, snapshot))
    return facts + "".join((*findings, *consumed))


def _process_facts(process: Process) -> str:
    started = when_text(process.started_at_unix_seconds)
    runtime = printable(process.runtime_version or "-", 40)
    job = f" {printable(process.job_name, 80)}," if process.job_name else ""
    facts = f"{job} attached {when_text(process.attached_at_unix_seconds)}, started {started}, runtime {runtime}"
    if process.synthetic:
        facts += ", synthetic: not a real process"
    elif not process.reporting:
        facts += ", not reporting: its numbers are old"
    if doubt := uncertain_cores_text(process):
        facts += f", {doubt}"
    return facts


def process_rows(context: RenderContext, *, every: bool = False) -> list[JobRow]:
    """Returns the sorted rows of the process list. `every` unfolds all jobs.

    A filter limits a job to its matching processes, and unfolds the job if some processes don't match. Ignores an
    invalid filter.
    """
    of_tab = shown = {figures.pid: figures for figures in context.figures.tab_figures(context.pid)}
    if context.filter_text:
        try:
            passes = parse_filter(context.filter_text)
            shown = {pid: figures for pid, figures in shown.items() if passes(figures)}
        except InvalidFilter:
            pass
    orders = ((context.sort, context.is_descending), (context.then_sort, context.is_then_descending))
    parts: list[tuple[ProcessFigures, RunningJob, tuple[Rank, ...]]] = []
    for job in context.figures.jobs:
        ranks = tuple([rank for rank in job.ranks if rank.process.pid in shown])
        if ranks:
            one = shown[ranks[0].process.pid] if len(ranks) == 1 else combined_figures(context.figures, job, ranks)
            parts.append((one, job, ranks))
    rows: list[JobRow] = []
    for _, job, ranks in sort_rows(parts, orders, lambda part: part[0]):
        is_part = len(ranks) < sum(rank.process.pid in of_tab for rank in job.ranks)
        is_open = every or is_part or job_key(job) in context.unfolded
        listed = sort_rows(ranks, orders, lambda rank: shown[rank.process.pid]) if is_open else ranks
        rows += job_and_rank_rows(job, listed, is_open=is_open)
    return rows


def row_figures(figures: Figures, row: JobRow) -> ProcessFigures:
    """Returns the figures of the row's process, or the combined figures of its job's listed processes."""
    if row.rank is not None:
        return figures.by_pid[row.rank.process.pid]
    return combined_figures(figures, row.job, row.ranks)


def combined_figures(figures: Figures, running_job: RunningJob, ranks: tuple[Rank, ...]) -> ProcessFigures:
    """Combines processes of a job into the figures of one process, which gets their lowest PID.

    Sums cores, models, memory and counts. Step rate and latency are those of the slowest process. If the processes
    have several users, the user is "several". A UID, attach time or attribution that differs becomes None.
    """
    job = replace(running_job, ranks=ranks)
    parts = [figures.by_pid[rank.process.pid] for rank in job.ranks]
    processes = [part.process for part in parts]
    first = processes[0]
    last = job.last_execution_at_unix_seconds
    started = [at for process in processes if (at := process.started_at_unix_seconds) is not None]
    latencies = [process.total_latency for process in processes if process.total_latency is not None]
    process = replace(
        first,
        pid=min(process.pid for process in processes),
        tag=job.name or "",
        user="several" if len(job.users) > 1 else next(iter(job.users), None),
        uid=_common_value([process.uid for process in processes]),
        core_indices=tuple(core.index for core in job.cores),
        neuroncore_indices=job.neuroncore_indices,
        device_indices=job.device_indices,
        models=tuple(model for process in processes for model in process.models),
        attached_at_unix_seconds=_common_value([process.attached_at_unix_seconds for process in processes]),
        attribution=_common_value([process.attribution for process in processes]),
        executions_per_second=job.executions_per_second,
        total_latency=max(latencies, key=lambda latency: latency.p99_seconds, default=None),
        reporting=all(process.reporting for process in processes),
        synthetic=any(process.synthetic for process in processes),
        started_at_unix_seconds=min(started, default=None),
        vcpu_user_ratio=sum_known([process.vcpu_user_ratio for process in processes]),
        vcpu_system_ratio=sum_known([process.vcpu_system_ratio for process in processes]),
        inferred_fields=tuple({name: None for process in processes for name in process.inferred_fields}),
    )
    return ProcessFigures(
        process=process,
        elapsed_seconds=age_seconds(process.started_at_unix_seconds, figures.snapshot.taken_at_unix_seconds),
        core_count=len(job.neuroncore_indices),
        utilization_ratio=job.utilization_ratio,
        flops_per_second=job.flops_per_second,
        mfu_ratio=job.mfu_ratio(figures.peak_flops_per_core),
        device_memory_bytes=job.device_memory_bytes,
        host_memory_bytes=sum_known([part.host_memory_bytes for part in parts]),
        errors_total=sum_known([part.errors_total for part in parts]),
        failed_executions_total=sum_known([part.failed_executions_total for part in parts]),
        since_last_execution_seconds=None if last is None else max(0.0, figures.snapshot.taken_at_unix_seconds - last),
        steps_per_second=job.steps_per_second,
        requests_per_second=job.requests_per_second,
        request_p99_seconds=job.request_p99_seconds,
        since_last_step_seconds=job.since_last_step_seconds(figures.snapshot.taken_at_seconds),
        compiling_for_seconds=age_seconds(job.compiling_since_seconds, figures.snapshot.taken_at_seconds),
        checkpoints_total=max_known([part.checkpoints_total for part in parts]),
        checkpointing_for_seconds=max_known([part.checkpointing_for_seconds for part in parts]),
        queue_depth=sum_known([part.queue_depth for part in parts]),
    )


def _common_value(values: Sequence[_ValueType | None]) -> _ValueType | None:
    return values[0] if all(value == values[0] for value in values) else None
