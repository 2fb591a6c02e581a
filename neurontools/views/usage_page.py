"""The users page: the cores and memory of each user, and the processes that have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neurontools.model import EndedProcess, Process
from neurontools.model.process import EndedTotal, failure_count, total_by_user
from neurontools.util import units
from neurontools.util.process_text import script_text
from neurontools.util.units import clock_text, day_text, ranges_text, sum_known
from neurontools.views.drawing.figures import Figures, ProcessFigures, weighted_mean
from neurontools.views.drawing.lines import (
    Line,
    TableColumn,
    TextPage,
    clip,
    count_column,
    fit,
    fit_marked,
    fitting_columns,
    printable,
    row_line,
    title_line,
)
from neurontools.views.drawing.render_context import RenderContext, SearchEntry, add_scrolled_list, heading

_LEAST_ENDED_LINES = 5
_FOOTER_HEIGHT = 16


def usage_page(context: RenderContext, width: int, height: int) -> TextPage:
    """Draws the table of users, which is cut if necessary, and the table of ended processes."""
    ended = ended_rows(context)
    users = user_totals(context.figures, ended)
    page = TextPage([heading(context, "Users", width, "current and ended")])
    columns = fitting_columns(USER_COLUMNS, width)
    page.add_lines(title_line(columns, width))
    room = max(1, height - len(page.lines) - _LEAST_ENDED_LINES)
    shown = users if len(users) <= room else users[: room - 1]
    page.add_lines(*(row_line(columns, user, width) for user in shown))
    if len(users) > len(shown):
        page.add_lines(fit(((f"   {context.glyphs.ellipsis} {len(users) - len(shown)} more users", "dim"),), width))
    if not users:
        page.add_lines(fit_marked((("   nobody holds a NeuronCore", "dim"),), width))
    page.append_page(_ended_section(context, ended, width, height - len(page.lines)))
    return page


def ended_rows(context: RenderContext) -> list[EndedProcess]:
    """Returns the processes that ended by the shown moment, newest first.

    If the current tab shows one process, returns only ended processes with the PID of that process.
    """
    ended = [process for process in context.ended if context.pid is None or process.pid == context.pid]
    return sorted(ended, key=lambda process: -process.ended_at_unix_seconds)


def ended_entries(context: RenderContext) -> list[SearchEntry]:
    """Returns the ended processes as search entries, with their text columns and PID."""
    columns = [column for column in ENDED_COLUMNS if column.is_text or column.title == "PID"]
    return [
        SearchEntry(str(number), " ".join(column.text(process) for column in columns))
        for number, process in enumerate(ended_rows(context))
    ]


def _ended_section(context: RenderContext, ended: list[EndedProcess], width: int, height: int) -> TextPage:
    hours = sum(process.neuroncore_hours for process in ended)
    summary = f"{len(ended)} known, {hours_text(hours)} NeuronCore hours" if ended else ""
    page = TextPage([heading(context, "Ended", width, summary)])
    if not ended:
        page.add_lines(fit_marked((("   no ended process is known", "dim"),), width))
        return page
    columns = fitting_columns(ENDED_COLUMNS, width)
    page.add_lines(title_line(columns, width))
    footer = _process_footer(context, ended, width) if height >= _FOOTER_HEIGHT and context.cursor >= 0 else []
    list_height = height - len(page.lines) - len(footer)
    add_scrolled_list(
        context, page, len(ended), list_height, lambda position: row_line(columns, ended[position], width)
    )
    page.lines.extend([()] * max(0, height - len(page.lines) - len(footer)))
    page.add_lines(*footer)
    return page


def _process_footer(context: RenderContext, ended: list[EndedProcess], width: int) -> list[Line]:
    process = ended[min(max(0, context.cursor), len(ended) - 1)]
    began = day_text(process.began_at_unix_seconds)
    counted = "".join(
        f", {units.count_text(count)} {name}"
        for count, name in (
            (process.steps_total, "steps"),
            (process.requests_total, "requests"),
            (process.tokens_total, "tokens"),
        )
        if count
    )
    facts = (
        f" from {began} on ND {ranges_text(process.device_indices) or '-'}, LNC {process.logical_neuroncore_config}, "
        f"tag {printable(process.tag, 60)}{counted}, uid {'-' if process.uid is None else process.uid}"
    )
    if process.counts_are_final is False:
        facts += ", no final report: the work since the last one is missing"
    if process.synthetic:
        facts += ", synthetic: not a real process"
    return [
        heading(context, f"PID {process.pid}", width, f"ended: {process.how}"),
        fit(((f" {printable(process.command, 2 * width) or 'command unknown'}", "text"),), width),
        fit(((clip(facts, width, mark=True), "dim"),), width),
    ]


def _exit_style(process: EndedProcess) -> str:
    return "bad" if process.exit_status else "good" if process.exit_status == 0 else "dim"


def _error_count(process: EndedProcess) -> int | None:
    return failure_count(process.failed_executions_total, process.errors_total)


def _is_count_inferred(process: EndedProcess) -> bool:
    return "neuroncore_count" in process.inferred_fields


ENDED_COLUMNS: tuple[TableColumn[EndedProcess], ...] = (
    TableColumn("ENDED", 8, 1, lambda row: clock_text(row.ended_at_unix_seconds), True),
    TableColumn("HOW", 9, 0, lambda row: row.how, True, _exit_style),
    TableColumn("PID", 8, 0, lambda row: str(row.pid)),
    TableColumn("USER", 9, 1, lambda row: printable(row.user or "-", 40), True),
    TableColumn("JOB", 20, 6, lambda row: printable(row.job or "-", 60), True),
    TableColumn("CORES", 5, 1, lambda row: f"{row.neuroncore_count}{'?' if _is_count_inferred(row) else ''}"),
    TableColumn("HELD", 9, 2, lambda row: units.duration_text(row.held_seconds)),
    TableColumn("CORE-H", 7, 2, lambda row: hours_text(row.neuroncore_hours)),
    TableColumn("UTIL", 6, 0, lambda row: units.percent_text(row.utilization_ratio, 1)),
    TableColumn("MFU", 6, 4, lambda row: units.percent_text(row.mfu_ratio, 1)),
    TableColumn("PEAK MEM", 9, 3, lambda row: units.bytes_text(row.peak_device_memory_bytes)),
    count_column("EXECS", 10, 5, lambda row: None if row.executions is None else row.executions.completed_total),
    count_column("ERR", 5, 3, _error_count, lambda row: "bad" if _error_count(row) else "text"),
    TableColumn("COMMAND", 0, 7, lambda row: printable(script_text(row.command)) or "-", True),
)


@dataclass(frozen=True, slots=True)
class UserTotal:
    """Totals over the current processes of one user. `ended` has the totals over ended processes, if any."""

    name: str | None  # user name, or UID as text; None: unknown
    process_count: int
    neuroncore_count: int
    utilization_ratio: float | None  # mean utilization of the held cores
    device_memory_bytes: int | None
    host_memory_bytes: int | None
    vcpu_ratio: float | None  # CPU use; 2.0 is two busy vCPUs
    ended: EndedTotal | None


def user_totals(figures: Figures, ended: Sequence[EndedProcess]) -> list[UserTotal]:
    """Returns the totals of every user with current or ended processes; users with most cores come first."""
    now: dict[str | None, list[ProcessFigures]] = {}
    for process in figures.by_pid.values():
        user, uid = process.process.user, process.process.uid
        now.setdefault(user if user is not None or uid is None else str(uid), []).append(process)
    before = {total.name: total for total in total_by_user(ended)}
    names = [*now, *(name for name in before if name not in now)]
    totals = [_user_total(name, now.get(name, []), before.get(name)) for name in names]
    return sorted(totals, key=_sort_key)


def _sort_key(total: UserTotal) -> tuple[int, float, str]:
    return -total.neuroncore_count, -(total.ended.neuroncore_hours if total.ended else 0.0), total.name or ""


def _user_total(name: str | None, processes: list[ProcessFigures], ended: EndedTotal | None) -> UserTotal:
    return UserTotal(
        name=name,
        process_count=len(processes),
        neuroncore_count=sum(figures.core_count for figures in processes),
        utilization_ratio=weighted_mean((figures.utilization_ratio, figures.core_count) for figures in processes),
        device_memory_bytes=sum_known(figures.device_memory_bytes for figures in processes),
        host_memory_bytes=sum_known(figures.host_memory_bytes for figures in processes),
        vcpu_ratio=sum_known(_vcpu_ratio(figures.process) for figures in processes),
        ended=ended,
    )


def _vcpu_ratio(process: Process) -> float | None:
    return sum_known((process.vcpu_user_ratio, process.vcpu_system_ratio))


USER_COLUMNS: tuple[TableColumn[UserTotal], ...] = (
    TableColumn("USER", 14, 0, lambda row: printable(row.name or "-", 40), True),
    TableColumn("PROCS", 5, 1, lambda row: str(row.process_count)),
    TableColumn("CORES", 5, 0, lambda row: str(row.neuroncore_count)),
    TableColumn("UTIL", 6, 0, lambda row: units.percent_text(row.utilization_ratio, 1)),
    TableColumn("DEV MEM", 9, 2, lambda row: units.bytes_text(row.device_memory_bytes)),
    TableColumn("HOST MEM", 9, 5, lambda row: units.bytes_text(row.host_memory_bytes)),
    TableColumn("CPU", 7, 4, lambda row: units.percent_text(row.vcpu_ratio, 0)),
    TableColumn("ENDED", 6, 3, lambda row: str(row.ended.process_count) if row.ended else "-"),
    TableColumn("FAILED", 6, 7, lambda row: str(row.ended.failed_count) if row.ended else "-"),
    TableColumn("CORE HOURS", 10, 3, lambda row: hours_text(row.ended.neuroncore_hours) if row.ended else "-"),
    TableColumn(
        "MEAN UTIL", 9, 3, lambda row: units.percent_text(row.ended.utilization_ratio if row.ended else None, 1)
    ),
    TableColumn("MEAN MFU", 8, 6, lambda row: units.percent_text(row.ended.mfu_ratio if row.ended else None, 1)),
)


def hours_text(hours: float) -> str:
    """Formats NeuronCore hours: three decimals below 1 hour, one decimal otherwise."""
    return f"{hours:.3f}" if hours < 1 else f"{hours:,.1f}"
