"""The page of who uses what: users above, the processes that have ended below, newest first."""

from __future__ import annotations

from neurontools.model import EndedProcess
from neurontools.util import units
from neurontools.util.process_text import script_text
from neurontools.util.units import clock_text, day_text, ranges_text
from neurontools.views.drawing.columns import Column, chosen, count_column, row_line, title_line
from neurontools.views.drawing.core_grid import heading
from neurontools.views.drawing.line import Line, Page, clip, fit, fit_marked, foreign, styled
from neurontools.views.drawing.scene import Scene, visible_top
from neurontools.views.drawing.style import SELECTED
from neurontools.views.entry import Entry
from neurontools.views.usage.users import COLUMNS as USER_COLUMNS
from neurontools.views.usage.users import hours_text, user_totals

_LEAST_ENDED_LINES = 5
_FOOTER_HEIGHT = 16


def usage_page(scene: Scene, width: int, height: int) -> Page:
    """Both tables; of many users as many as leave room for the processes."""
    ended = ended_rows(scene)
    users = user_totals(scene.figures, ended)
    page = Page([heading(scene, "Users", width, "now, and what ended")])
    columns = chosen(USER_COLUMNS, width)
    page.add(title_line(columns, width))
    room = max(1, height - len(page.lines) - _LEAST_ENDED_LINES)
    shown = users if len(users) <= room else users[: room - 1]
    page.add(*(row_line(columns, user, width) for user in shown))
    if len(users) > len(shown):
        page.add(fit(((f"   {scene.glyphs.ellipsis} {len(users) - len(shown)} more users", "dim"),), width))
    if not users:
        page.add(fit_marked((("   nobody holds a NeuronCore", "dim"),), width))
    page.append(_ended(scene, ended, width, height - len(page.lines)))
    return page


def ended_rows(scene: Scene) -> list[EndedProcess]:
    """What had ended by the moment shown, newest first; of the current tab its earlier lives alone."""
    ended = [process for process in scene.ended if scene.pid is None or process.pid == scene.pid]
    return sorted(ended, key=lambda process: -process.ended_at_unix_seconds)


def ended_entries(scene: Scene) -> list[Entry]:
    """What a search sees of what has ended: all that its table tells in words, and the users'."""
    columns = [column for column in _ENDED_COLUMNS if column.is_text or column.title == "PID"]
    return [
        Entry(str(number), " ".join(column.text(process) for column in columns))
        for number, process in enumerate(ended_rows(scene))
    ]


def _ended(scene: Scene, ended: list[EndedProcess], width: int, height: int) -> Page:
    hours = sum(process.neuroncore_hours for process in ended)
    known = f"{len(ended)} known, {hours_text(hours)} NeuronCore hours" if ended else ""
    page = Page([heading(scene, "Ended", width, known)])
    if not ended:
        page.add(fit_marked((("   no process that held NeuronCores is known to have ended", "dim"),), width))
        return page
    columns = chosen(_ENDED_COLUMNS, width)
    page.add(title_line(columns, width))
    footer = _footer(scene, ended, width) if height >= _FOOTER_HEIGHT and scene.cursor >= 0 else []
    list_height = max(1, height - len(page.lines) - len(footer))
    cursor = min(scene.cursor, len(ended) - 1)
    top = visible_top(cursor, scene.top, list_height, len(ended))
    lines = []
    for position in range(top, min(len(ended), top + list_height)):
        line = row_line(columns, ended[position], width)
        lines.append(styled(line, SELECTED) if position == cursor else line)
    page.add_list(lines, len(ended), list_height, top)
    page.lines.extend([()] * max(0, height - len(page.lines) - len(footer)))
    page.add(*footer)
    return page


def _footer(scene: Scene, ended: list[EndedProcess], width: int) -> list[Line]:
    process = ended[min(max(0, scene.cursor), len(ended) - 1)]
    began = day_text(process.began_at_unix_seconds)
    steps = "" if process.steps_total is None else f", {units.count_text(process.steps_total)} steps"
    facts = (
        f" from {began} on ND {ranges_text(process.device_indices) or '-'}, LNC {process.logical_neuroncore_config}, "
        f"tag {foreign(process.tag, 60)}{steps}, uid {'-' if process.uid is None else process.uid}"
    )
    if process.synthetic:
        facts += ", synthetic: there was no such process"
    return [
        heading(scene, f"PID {process.pid}", width, f"ended: {process.how}"),
        fit(((f" {foreign(process.command, 2 * width) or 'command not known'}", "text"),), width),
        fit(((clip(facts, width, mark=True), "dim"),), width),
    ]


def _how_style(process: EndedProcess) -> str:
    return "bad" if process.exit_status else "good" if process.exit_status == 0 else "dim"


def _trouble(process: EndedProcess) -> int | None:
    failed, errors = process.failed_executions_total, process.errors_total
    return None if failed is None or errors is None else failed + errors


def _cores(process: EndedProcess) -> str:
    return f"{process.neuroncore_count}{'?' if 'neuroncore_count' in process.inferred_fields else ''}"


_ENDED_COLUMNS: tuple[Column[EndedProcess], ...] = (
    Column("ENDED", 8, 1, lambda row: clock_text(row.ended_at_unix_seconds), True),
    Column("HOW", 9, 0, lambda row: row.how, True, _how_style),
    Column("PID", 8, 0, lambda row: str(row.pid)),
    Column("USER", 9, 1, lambda row: foreign(row.user or "-", 40), True),
    Column("JOB", 20, 6, lambda row: foreign(row.job or "-", 60), True),
    Column("CORES", 5, 1, _cores),
    Column("HELD", 9, 2, lambda row: units.duration_text(row.held_seconds)),
    Column("CORE-H", 7, 2, lambda row: hours_text(row.neuroncore_hours)),
    Column("UTIL", 6, 0, lambda row: units.percent_text(row.utilization_ratio, 1)),
    Column("MFU", 6, 4, lambda row: units.percent_text(row.mfu_ratio, 1)),
    Column("PEAK MEM", 9, 3, lambda row: units.bytes_text(row.peak_device_memory_bytes)),
    count_column("EXECS", 10, 5, lambda row: None if row.executions is None else row.executions.completed_total),
    count_column("ERR", 5, 3, _trouble, lambda row: "bad" if _trouble(row) else "text"),
    Column("COMMAND", 0, 7, lambda row: foreign(script_text(row.command)) or "-", True),
)
