"""The table of hosts in the view of many hosts, and the grid of their devices."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace

from neurontools.fleet.states import ALIKE, HostGroup, HostLink, HostState, combine_group, group_hosts, severity_rank
from neurontools.fleet.summary import DeviceCell
from neurontools.model import Severity
from neurontools.model.health import marked_reason
from neurontools.util import units
from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.heat_scale import heat_glyph, load_style
from neurontools.views.drawing.lines import (
    Line,
    Run,
    append_run,
    cell,
    fit,
    fit_marked,
    printable,
)
from neurontools.views.drawing.render_context import SEVERITY_STYLES, DisplayThresholds, severity_mark

_IDLE_BELOW_RATIO = DisplayThresholds().idle_below_ratio
_MOST_NAMES = 3
HostSort = Callable[[Iterable[HostState]], list[HostState]]
_LEAST_WIDTH_WITH_CELLS = 100  # least width of a screen whose host table shows a cell per device
_MINUTE_SECONDS = 60
_CLOCK_SECONDS = 60.0  # smaller differences between a host's clock and the clock here are not shown
_STYLES = {
    Severity.CRITICAL: "bad",
    Severity.WARNING: "warn",
    Severity.NOTICE: "text",
    Severity.OK: "good",
    None: "dim",
}


@dataclass(frozen=True, slots=True)
class AlikeHosts:
    """Hosts of one instance type whose devices have the same conditions, such as "busy" or "missing"."""

    instance_type: str
    states: tuple[HostState, ...]


def group_alike(states: Sequence[HostState]) -> list[AlikeHosts]:
    """Groups all hosts with data by instance type and device conditions; the group with the worst host comes first."""
    found: dict[tuple[bool, str, tuple[str, ...]], list[HostState]] = {}
    for state in states:
        if state.summary is not None:
            conditions = tuple([device_condition(cell) for cell in state.summary.devices])
            is_lost = state.link is HostLink.LOST
            found.setdefault((is_lost, state.summary.instance_type, conditions), []).append(state)
    alike = [AlikeHosts(instance_type, tuple(hosts)) for (_, instance_type, _), hosts in found.items()]
    return sorted(
        alike, key=lambda group: (min(map(severity_rank, group.states)), -len(group.states), group.instance_type)
    )


def device_cells(states: Sequence[HostState], glyphs: Glyphs) -> list[Run]:
    """Draws one character per device for a group of alike hosts: its condition, or mean utilization on the hosts."""
    runs: list[Run] = []
    summaries = [state.summary for state in states if state.summary is not None]
    if not summaries:
        return runs
    is_lost = states[0].link is HostLink.LOST
    for position, device in enumerate(summaries[0].devices):
        ratios = [
            ratio
            for found in summaries
            if position < len(found.devices) and (ratio := found.devices[position].utilization_ratio) is not None
        ]
        text, style = _cell_run(device, sum(ratios) / len(ratios) if ratios else None, glyphs)
        append_run(runs, text, "dim" if is_lost else style)
    return runs


def cell_grid(states: Sequence[HostState], glyphs: Glyphs, width: int, height: int) -> list[Line]:
    """Draws one line per group of alike hosts: host count, instance type, devices and the first host names."""
    groups = group_alike(states)
    if height <= 0:
        return []
    shown = groups if len(groups) <= height else groups[: height - 1]
    cells = max((len(group.states[0].summary.devices) for group in shown if group.states[0].summary), default=0)
    lines = []
    for group in shown:
        names = [printable(state.place.name, 40) for state in group.states[:_MOST_NAMES]]
        more = len(group.states) - len(names)
        shown_text = ", ".join(names) + (f" and {more} more" if more else "")
        drawn = device_cells(group.states, glyphs)
        gap = " " * (cells - sum(len(text) for text, _ in drawn))
        head = f" {len(group.states):>5} x {printable(group.instance_type, 40):<16.16} "
        lines.append(fit_marked(((head, "label"), *drawn, (f"{gap}  {shown_text}", "dim")), width))
    if len(shown) < len(groups):
        rest = sum(len(group.states) for group in groups[len(shown) :])
        text = f"       and {rest} hosts in {len(groups) - len(shown)} other states"
        lines.append(fit_marked(((text, "dim"),), width))
    return lines


def device_condition(cell: DeviceCell) -> str:
    """Returns the condition of a device, such as "free" or "missing"; hosts with equal conditions share a group."""
    if not cell.is_present:
        return "missing"
    if cell.severity is not None and cell.severity >= Severity.WARNING:
        return f"severity {cell.severity}"
    if cell.held_neuroncore_count == 0:
        return "free"
    if cell.utilization_ratio is None:
        return "unknown"
    return "busy" if cell.utilization_ratio >= _IDLE_BELOW_RATIO else "idle"


def _cell_run(cell: DeviceCell, ratio: float | None, glyphs: Glyphs) -> Run:
    condition = device_condition(cell)
    if condition == "missing":
        return "?", "bad"
    if condition.startswith("severity"):
        is_critical = cell.severity is not None and cell.severity >= Severity.CRITICAL
        return (glyphs.bad[:1], "bad") if is_critical else (glyphs.warn[:1], "warn")
    if condition == "free":
        return glyphs.free, "dim"
    if condition == "unknown" or ratio is None:
        return "?", "dim"
    if condition == "idle":
        return glyphs.held, "held"
    return heat_glyph(ratio, glyphs), load_style(ratio, _IDLE_BELOW_RATIO)


@dataclass(frozen=True, slots=True)
class HostRow:
    """A row of the host table: a host, or a group of hosts with combined values."""

    state: HostState
    name: str  # text in the column of names
    group: HostGroup | None = None

    @property
    def key(self) -> str:
        """Text that identifies the row, and that updates do not change."""
        return f"{self.group.by}={self.group.value}" if self.group is not None else self.state.place.name


def list_rows(states: Sequence[HostState], sort: HostSort, by: str = "", opened: Container[str] = ()) -> list[HostRow]:
    """Returns the sorted rows of the host table: hosts, or groups of hosts. An open group is followed by its hosts.

    `by` is the criterion of the groups; "" lists hosts. If `by` is ALIKE, a group of one host is listed as this host.
    """
    ordered = sort(states)
    if not by:
        return [HostRow(state, state.place.name) for state in ordered]
    group_of = {id(state := combine_group(group)): (state, group) for group in group_hosts(ordered, by)}
    rows: list[HostRow] = []
    for combined in sort([state for state, _ in group_of.values()]):
        state, group = group_of[id(combined)]
        if by == ALIKE and len(group.states) == 1:
            rows.append(HostRow(group.states[0], group.states[0].place.name))
            continue
        is_open = f"{group.by}={group.value}" in opened
        rows.append(HostRow(state, f"{'-' if is_open else '+'} {group.name}", group))
        if is_open:
            rows += [HostRow(member, f"  {member.place.name}") for member in group.states]
    return rows


@dataclass(frozen=True, slots=True)
class HostColumn:
    """A column of the host table. Narrower screens than `least_width` do not show it."""

    title: str
    width: int
    read: Callable[[HostState, float], str]
    least_width: int = 0
    is_right: bool = True


def _count_reader(name: str) -> Callable[[HostState, float], str]:
    def text(state: HostState, _now: float) -> str:
        count = None if state.summary is None else getattr(state.summary, name)
        return units.UNKNOWN if count is None else str(count)

    return text


def _percent_reader(name: str) -> Callable[[HostState, float], str]:
    return lambda state, _now: units.percent_text(None if state.summary is None else getattr(state.summary, name), 0)


def _type_text(state: HostState, _now: float) -> str:
    return (printable(state.summary.instance_type, 40) if state.summary else "") or units.UNKNOWN


def _steps_text(state: HostState, _now: float) -> str:
    steps = state.steps_per_second
    return units.UNKNOWN if steps is None else f"{steps:.3g}"


def _requests_text(state: HostState, _now: float) -> str:
    return units.short_rate_text(None if state.summary is None else state.summary.requests_per_second, _RATE_CELLS)


def _request_p99_text(state: HostState, _now: float) -> str:
    return units.short_duration_text(None if state.summary is None else state.summary.request_p99_seconds)


def _age_text(state: HostState, now_seconds: float) -> str:
    seconds = state.age_seconds(now_seconds)
    if seconds is None:
        return units.UNKNOWN
    return f"{seconds:.0f}s" if round(seconds) < _MINUTE_SECONDS else units.short_duration_text(seconds)


_RATE_CELLS = 7
_STEPS = HostColumn("STEPS/S", 7, _steps_text, 90)
_REQUESTS = HostColumn("REQ/S", _RATE_CELLS, _requests_text, 90)
_REQUEST_P99 = HostColumn("REQ P99", 8, _request_p99_text, 110)
HOST_COLUMNS = (
    HostColumn("TYPE", 14, _type_text, 76, is_right=False),
    HostColumn("HELD", 5, _count_reader("held_neuroncore_count"), 56),
    HostColumn("BUSY", 5, _count_reader("busy_neuroncore_count"), 64),
    HostColumn("FREE", 5, _count_reader("free_neuroncore_count")),
    HostColumn("UTIL", 5, _percent_reader("utilization_ratio")),
    HostColumn("MFU", 5, _percent_reader("mfu_ratio"), 90),
    HostColumn("JOBS", 4, _count_reader("job_count"), 80),
    _STEPS,
    _REQUESTS,
    _REQUEST_P99,
    HostColumn("AGE", 5, _age_text),
)


def host_columns(rows: Sequence[HostRow], width: int) -> list[HostColumn]:
    """Returns the columns that fit. Columns of requests and steps need a row that reports them."""
    summaries = [row.state.summary for row in rows]
    has_requests = any(found is not None and found.requests_per_second is not None for found in summaries)
    unused = set() if has_requests else {_REQUESTS, _REQUEST_P99}
    unused |= set() if any(row.state.steps_per_second is not None for row in rows) else {_STEPS}
    return [column for column in HOST_COLUMNS if width >= column.least_width and column not in unused]


def host_titles(columns: Sequence[HostColumn], width: int, name_width: int, cells: int) -> Line:
    runs: list[Run] = [(f"   {cell('HOST', name_width)}", "column")]
    runs += [(f" {cell(column.title, column.width, right=column.is_right)}", "column") for column in columns]
    if width >= _LEAST_WIDTH_WITH_CELLS:
        runs.append((f"  {cell('DEVICES', max(cells, 7))}", "column"))
    runs.append(("  WORST FINDING", "column"))
    return fit(runs, width, "column")


def host_line(
    listed: HostRow,
    columns: Sequence[HostColumn],
    now_seconds: float,
    glyphs: Glyphs,
    width: int,
    name_width: int,
    cells: int,
) -> Line:
    """Draws a row of the host table. A lost host is dim, and has the age of its data and the reason of the loss."""
    state = listed.state
    is_lost = state.link is not HostLink.LIVE
    style = "dim" if is_lost else "text" if listed.group is None else "strong"
    mark, mark_style = _mark_run(state, glyphs)
    runs: list[Run] = [(f" {mark:<1.1} ", mark_style), (cell(printable(listed.name, 260), name_width), style)]
    texts = [(column.read(state, now_seconds), column) for column in columns]
    runs += [(f" {cell(text, column.width, right=column.is_right)}", style) for text, column in texts]
    if width >= _LEAST_WIDTH_WITH_CELLS:
        drawn = device_cells((state,), glyphs)
        gap = max(cells, 7) - sum(len(text) for text, _ in drawn)
        runs += [("  ", style), *drawn, (" " * max(0, gap), style)]
    runs.append((f"  {worst_finding_text(state)}", "dim" if is_lost else _STYLES[state.severity]))
    return fit_marked(runs, width)


def worst_finding_text(state: HostState) -> str:
    """Returns the most severe finding of a host, or the reason why the host is lost."""
    if state.link is HostLink.LOST:
        return f"lost: {printable(state.loss_reason)}"
    if state.link is not HostLink.LIVE or state.summary is None:
        return str(state.link)
    found = state.summary
    texts = []
    if abs(state.clock_ahead_seconds) >= _CLOCK_SECONDS:
        direction = "ahead" if state.clock_ahead_seconds > 0 else "behind"
        texts.append(f"its clock is {units.duration_text(abs(state.clock_ahead_seconds))} {direction}")
    if not found.is_judged:
        has_daemon = found.daemon_version is not None
        texts.append("its neurond does not evaluate health" if has_daemon else "health unknown")
    elif found.findings:
        worst = found.findings[0]
        more = found.critical_count + found.warning_count + found.notice_count - 1
        text = printable(marked_reason(worst if worst.reason else replace(worst, reason=worst.kind)))
        texts.append(f"{worst.severity.name.lower()}: {text}" + (f" (and {more} more)" if more > 0 else ""))
    elif found.severity:
        texts.append(f"{found.severity.name.lower()}: press Enter for details")
    return "; ".join(reversed(texts))


def _mark_run(state: HostState, glyphs: Glyphs) -> Run:
    if state.link is not HostLink.LIVE:
        return ("-" if state.link is HostLink.LOST else ".", "dim")
    if state.severity is None:
        return "?", "dim"
    style = SEVERITY_STYLES.get(state.severity, "good")
    return severity_mark(glyphs, state.severity) if style != "good" else glyphs.good, style
