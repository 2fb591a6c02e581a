"""The view of many hosts: totals, grid of devices, table of jobs and table of hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from neurontools.fleet.jobs import FleetJob, FleetStandstill
from neurontools.fleet.models import FleetModel
from neurontools.fleet.states import HostLink, HostState, by_name, worst_first
from neurontools.fleet.summary import MOST_MODELS
from neurontools.model import Severity, SourceKind
from neurontools.model.jobs import JobState
from neurontools.util import units
from neurontools.util.units import clock_text, ranges_text, sum_known
from neurontools.util.version import __version__
from neurontools.views.drawing.figures import weighted_mean
from neurontools.views.drawing.glyphs import ASCII, UNICODE, Glyphs
from neurontools.views.drawing.lines import (
    SELECTED,
    ClickTarget,
    Line,
    Run,
    TextPage,
    ascii_only,
    cell,
    clip,
    fit,
    fit_marked,
    line_width,
    printable,
    styled,
    width_of,
)
from neurontools.views.drawing.render_context import visible_top
from neurontools.views.fleet_hosts import HostRow, cell_grid, host_columns, host_line, host_titles, worst_finding_text
from neurontools.views.fleet_models import fleet_model_lines

_MOST_NAME_CELLS, _LEAST_NAME_CELLS = 34, 8
_ROOMY_HEIGHT = 16
_LEAST_WIDE_CELLS = 100
_KEYS = (
    ("q", "quit", "q"),
    ("Enter", "open", "enter"),
    ("s", "sort", "s"),
    ("b", "group by", "b"),
    ("/", "filter", "slash"),
    ("g", "devices", "g"),
    ("?", "keys", "question_mark"),
)
_LEAST_NAME, _MOST_NAME = 12, 34
_STATE_STYLES = {JobState.STUCK: "bad", JobState.COMPILING: "warn", JobState.WAITING: "warn"}
_STATE_WIDTH = 16
_MARK_CELLS = 3  # cells of the mark before the name of a job


def _busiest_first(states: Iterable[HostState]) -> list[HostState]:
    return sorted(by_name(states), key=lambda state: -((state.summary and state.summary.utilization_ratio) or 0.0))


def _most_free_first(states: Iterable[HostState]) -> list[HostState]:
    def free(state: HostState) -> int:
        count = None if state.summary is None else state.summary.free_neuroncore_count
        return -1 if count is None else count

    return sorted(by_name(states), key=free, reverse=True)


SORTS: dict[str, Callable[[Iterable[HostState]], list[HostState]]] = {
    "worst first": worst_first,
    "by name": by_name,
    "busiest first": _busiest_first,
    "most free first": _most_free_first,
}


@dataclass(slots=True)
class FleetContext:
    """All input for drawing the view of many hosts."""

    rows: Sequence[HostRow]  # rows of the host table, sorted and filtered
    all_states: tuple[HostState, ...]
    jobs: tuple[FleetJob, ...]
    models: tuple[FleetModel, ...]
    now_seconds: float  # current time.monotonic()
    now_unix_seconds: float
    interval_seconds: float
    sort: str = "worst first"
    group_by: str = ""
    filter_text: str = ""
    is_filter_edited: bool = False
    cursor: int = -1  # selected row of the host table; -1: none
    top: int = 0
    is_grid_shown: bool = True
    message: str = ""
    notes: tuple[str, ...] = ()  # problems with the data
    glyphs: Glyphs = UNICODE


def matches_filter(state: HostState, text: str) -> bool:
    """Returns whether each word of a filter occurs in a host's name, type, state, worst finding, jobs or labels."""
    if not text:
        return True
    found = state.summary
    jobs = " ".join((*(job.name for job in found.jobs if job.name), *found.users)) if found is not None else ""
    kind = found.instance_type if found is not None else ""
    labels = " ".join(f"{name}={value}" for name, value in state.place.labels)
    where = f"{state.place.name} {kind} {state.link} {worst_finding_text(state)} {jobs} {labels}".lower()
    return all(word in where for word in text.lower().split())


def fleet_page(context: FleetContext, width: int, height: int) -> TextPage:
    """Draws the view of many hosts: exactly `height` lines of `width` cells."""
    page = TextPage([_title_line(context, width), _totals_line(context, width)][:height])
    for note in context.notes[: max(0, height // 8)]:
        page.add_lines(fit_marked(((f" {context.glyphs.warn} {printable(note)}", "warn"),), width))
    if height >= _ROOMY_HEIGHT and context.is_grid_shown:
        rows = cell_grid(context.all_states, context.glyphs, width, max(2, (height - 6) // 3))
        if rows:
            page.add_lines(_section_rule(context, "Devices, similar hosts grouped", width), *rows)
    if height >= _ROOMY_HEIGHT:
        found = worst_jobs_first(context.jobs)
        room = min(len(found) + 1, max(3, (height - len(page.lines)) // 3))
        if found:
            page.add_lines(_section_rule(context, f"Jobs: {len(found)}, problems first", width))
            page.add_lines(*fleet_job_lines(found, context.glyphs, width, room))
        if context.models:
            room = min(len(context.models) + 1, max(3, (height - len(page.lines)) // 4))
            page.add_lines(_section_rule(context, models_title(context), width))
            page.add_lines(*fleet_model_lines(context.models, width, room))
    title = f"Hosts by {context.group_by}" if context.group_by else "Hosts"
    page.add_lines(_section_rule(context, f"{title}, {context.sort}", width))
    longest = max([_LEAST_NAME_CELLS, *(len(listed.name) for listed in context.rows)])
    name_width = min(_MOST_NAME_CELLS, longest, max(_LEAST_NAME_CELLS, width // 4))
    summaries = [listed.state.summary for listed in context.rows]
    cells = max((len(found.devices) for found in summaries if found is not None), default=0)
    columns = host_columns(context.rows, width)
    page.add_lines(host_titles(columns, width, name_width, cells))
    room = max(1, height - len(page.lines) - 1)
    top = visible_top(max(0, context.cursor), context.top, room, len(context.rows))
    shown = []
    for number, listed in enumerate(context.rows[top : top + room], top):
        line = host_line(listed, columns, context.now_seconds, context.glyphs, width, name_width, cells)
        shown.append(styled(line, SELECTED) if number == context.cursor else line)
    page.add_list(shown, len(context.rows), room, top)
    page.add_lines(*[fit((), width)] * (height - 1 - len(page.lines)))
    page.lines = page.lines[: max(0, height - 1)]
    page.append_page(_key_bar(context, width))
    if context.glyphs is ASCII:
        page.lines = [ascii_only(line) for line in page.lines]
    return page


def fleet_lines(context: FleetContext, width: int) -> list[Line]:
    """Returns the view of many hosts in full length and without key bar, for printing it once."""
    page = fleet_page(context, width, len(context.rows) + 8 + max(8, len(context.all_states)))
    return [line for line in page.lines[:-1] if any(text.strip() for text, _ in line)]


def _title_line(context: FleetContext, width: int) -> Line:
    states = context.all_states
    count = {link: sum(state.link is link for state in states) for link in HostLink}
    parts = [f"{count[HostLink.LIVE]} live"]
    parts += [f"{count[link]} {link}" for link in (HostLink.LOST, HostLink.CONNECTING, HostLink.WAITING) if count[link]]
    summaries = [state.summary for state in states if state.summary is not None]
    notes = ["simulated"] if any(found.source is SourceKind.SIMULATED for found in summaries) else []
    notes += ["synthetic load"] if any(found.synthetic_load for found in summaries) else []
    note = f" [{', '.join(notes)}]" if notes else ""
    short = f" [{notes[-1].split()[0]}]" if notes else ""
    hosts = f"{len(states)} host{'s' * (len(states) != 1)}, {', '.join(parts)}"
    right: list[Run] = []
    for severity, noun, style in (
        (Severity.CRITICAL, "critical", "title_critical"),
        (Severity.WARNING, "with warnings", "title_warning"),
    ):
        sick = sum(state.severity is severity for state in states)
        if sick:
            mark = context.glyphs.bad if severity is Severity.CRITICAL else context.glyphs.warn
            right.append((f" {mark} {sick} {noun} ", style))
    moment = clock_text(context.now_unix_seconds)
    right.append((f" every {context.interval_seconds:g} s {moment} ", "title_dim"))
    while right and line_width(right) > width // 2:
        right.pop()
    room = max(0, width - line_width(right))
    name = " neuron-top"
    for left in (f"{name} {__version__}: {hosts}{note}", f"{name}: {hosts}{note}", f"{name}: {hosts}{short}"):
        if width_of(left) <= room:
            break
    left = clip(left, room, mark=True)
    gap = " " * (width - line_width(right) - line_width([(left, "")]))
    return fit(((left, "title"), (gap, "title"), *right), width, "title")


def models_title(context: FleetContext) -> str:
    """Returns the title of the table of models. It says so if a host serves more models than its summary lists."""
    summaries = (state.summary for state in context.all_states if state.link is HostLink.LIVE)
    is_short = any(found is not None and (found.model_count or 0) > len(found.models) for found in summaries)
    return f"Models: {len(context.models)}" + f", the {MOST_MODELS} largest of each host" * is_short


@dataclass(frozen=True, slots=True)
class FleetTotals:
    """Totals over the live hosts. None means unknown."""

    device_count: int
    missing_device_count: int
    neuroncore_count: int | None
    neuroncore_counts: dict[str, int | None]  # by state: "held", "busy", "free" and "unknown"
    utilization_ratio: float | None  # mean utilization of the held NeuronCores
    flops_per_second: float | None
    job_count: int | None  # each job once, on however many hosts it runs


def fleet_totals(context: FleetContext) -> FleetTotals:
    """Returns the totals over the live hosts."""
    live = [state.summary for state in context.all_states if state.link is HostLink.LIVE and state.summary is not None]

    def total(name: str) -> int | None:
        """Sums a field over the live hosts that report it; None if no live host reports it; 0 without live hosts."""
        counts = [count for found in live if (count := getattr(found, name)) is not None]
        return sum(counts) if counts or not live else None

    jobs = total("job_count")
    # Counts each job once, although every host of a multi-host job has counted it.
    again = sum(max(0, (job.host_count or 1) - 1) for job in context.jobs)
    return FleetTotals(
        sum(len(found.devices) for found in live),
        sum(not cell.is_present for found in live for cell in found.devices),
        total("neuroncore_count"),
        {word: total(f"{word}_neuroncore_count") for word in ("held", "busy", "free", "unknown")},
        weighted_mean((found.utilization_ratio, found.held_neuroncore_count or 0) for found in live),
        sum_known(found.flops_per_second for found in live),
        None if jobs is None else max(len(context.jobs), jobs - again),
    )


def _totals_line(context: FleetContext, width: int) -> Line:
    """Draws the totals over the live hosts: devices, cores, and of utilization, FLOPS and jobs those that fit."""
    totals = fleet_totals(context)
    missing_text = f" ({totals.missing_device_count:,} missing)" if totals.missing_device_count else ""
    cores = totals.neuroncore_counts.items()
    noun = "NeuronCores" if width >= _LEAST_WIDE_CELLS else "cores"
    text = f" {totals.device_count:,} devices{missing_text}, {_count_text(totals.neuroncore_count)} {noun}: "
    text += ", ".join(f"{_count_text(count)} {word}" for word, count in cores if count or word != "unknown")
    more = [f"utilization {units.percent_text(totals.utilization_ratio, 1)}"]
    more.append(units.flops_text(totals.flops_per_second))
    count = totals.job_count
    more += [] if count is None else [f"{count:,} job{'s' * (count != 1)}"]
    for part in more:
        text += f"   {part}" if len(text) + 3 + len(part) <= width else ""
    return fit(((clip(text, width, mark=True), "strong"),), width)


def _count_text(count: int | None) -> str:
    return units.UNKNOWN if count is None else f"{count:,}"


def _section_rule(context: FleetContext, text: str, width: int) -> Line:
    if (context.filter_text or context.is_filter_edited) and text.startswith("Hosts"):
        text += f", filter: {printable(context.filter_text)}"
    line = context.glyphs.rule * max(0, width - line_width([(f" {text} ", "")]) - 1)
    return fit(((f"{context.glyphs.rule}", "rule"), (f" {text} ", "heading"), (line, "rule")), width)


def _key_bar(context: FleetContext, width: int) -> TextPage:
    if context.is_filter_edited:
        return TextPage([fit(((" filter: ", "label"), (f"{printable(context.filter_text)}_", "strong")), width)])
    if context.message:
        return TextPage([fit(((f" {clip(printable(context.message), width - 2, mark=True)}", "strong"),), width)])
    runs: list[Run] = []
    targets, left = [], 0
    for key, text, name in _KEYS:
        cells = len(key) + len(text) + 3
        if left + cells > width:
            break
        runs += [(f" {key}", "key"), (f" {text} ", "dim")]
        targets.append(ClickTarget(0, left, left + cells, "key", name))
        left += cells
    return TextPage([fit(runs, width)], targets)


@dataclass(frozen=True, slots=True)
class FleetJobColumn:
    """A column of the table of jobs. Narrower screens than `least_width` do not show it."""

    title: str
    width: int
    read: Callable[[FleetJob], str]
    least_width: int = 0
    is_right: bool = True


def _user_text(job: FleetJob) -> str:
    """Returns the user of a job, or the number of its users; "?" or "+" marks that there may be more users."""
    known, count = len(job.users), job.user_count
    if known == 1 and count in (1, None):
        return printable(job.users[0], 40) + " + ?" * (count is None)
    if count is None:
        return f"{known}+ users" if known else units.UNKNOWN
    return f"{count} user{'s' * (count != 1)}"


def _ranks_text(job: FleetJob) -> str:
    return str(job.rank_count) if job.world_size in (None, job.rank_count) else f"{job.rank_count}/{job.world_size}"


def job_state_text(job: FleetJob) -> str:
    """Returns the state of a job, and how long it has lasted unless the job is training."""
    state = printable(job.state, 12)
    if job.state_seconds is None or job.state == JobState.TRAINING:
        return state
    return f"{state} {units.short_duration_text(job.state_seconds)}"


def _steps_text(job: FleetJob) -> str:
    return units.UNKNOWN if job.steps_per_second is None else f"{job.steps_per_second:.3g}"


def _hosts_text(job: FleetJob) -> str:
    """Returns the name of the only host of a job, or the number of its hosts."""
    if job.host_count == len(job.host_names) == 1:
        return clip(printable(job.host_names[0], 40), 12, mark=True)
    return units.UNKNOWN if job.host_count is None else str(job.host_count)


_STEPS = FleetJobColumn("STEPS/S", 7, _steps_text)
_REQUESTS = FleetJobColumn("REQ/S", 7, lambda job: units.short_rate_text(job.requests_per_second, 7))
_REQUEST_P99 = FleetJobColumn("REQ P99", 8, lambda job: units.short_duration_text(job.request_p99_seconds), 90)
_JOB_COLUMNS = (
    FleetJobColumn("USER", 10, _user_text, 120, is_right=False),
    FleetJobColumn("HOSTS", 12, _hosts_text, is_right=False),
    FleetJobColumn("RANKS", 9, _ranks_text),
    FleetJobColumn("CORES", 6, lambda job: str(job.neuroncore_count), 90),
    _STEPS,
    _REQUESTS,
    _REQUEST_P99,
    FleetJobColumn(
        "STEP", 7, lambda job: units.short_duration_text(job.step_seconds.median if job.step_seconds else None), 132
    ),
    FleetJobColumn("UTIL", 5, lambda job: units.percent_text(job.utilization_ratio, 0), 90),
    FleetJobColumn("MFU", 5, lambda job: units.percent_text(job.mfu_ratio, 0), 90),
)


def worst_jobs_first(jobs: Sequence[FleetJob]) -> list[FleetJob]:
    """Sorts jobs: stuck ones, those with missing ranks, those with a straggler or finding, then healthy ones.

    Within each of these groups, jobs with the most cores come first.
    """

    def sort_key(job: FleetJob) -> tuple[bool, bool, bool, int]:
        return (
            job.state != JobState.STUCK,
            not job.missing_rank_count,
            job.slow_rank is None and (job.severity or Severity.OK) <= Severity.NOTICE,
            -job.neuroncore_count,
        )

    return sorted(jobs, key=sort_key)


def job_columns(jobs: Sequence[FleetJob]) -> list[FleetJobColumn]:
    """Returns the columns of the table of these jobs. Columns of requests and steps need a job that reports them."""
    unused = set() if any(job.requests_per_second is not None for job in jobs) else {_REQUESTS, _REQUEST_P99}
    unused |= set() if any(job.steps_per_second is not None for job in jobs) else {_STEPS}
    return [column for column in _JOB_COLUMNS if column not in unused]


def fleet_job_lines(jobs: Sequence[FleetJob], glyphs: Glyphs, width: int, height: int) -> list[Line]:
    """Draws the title line, the jobs that fit in `height` lines, and the number of jobs left out."""
    shown = list(jobs[: max(0, height - 1)])
    if len(shown) < len(jobs):
        shown = shown[:-1]
    columns = [column for column in job_columns(jobs) if width >= column.least_width]
    titles = "".join(f" {cell(column.title, column.width, right=column.is_right)}" for column in columns)
    titles += f"  {cell('STATE', _STATE_WIDTH)}"
    room = width // 4
    if any(map(problem_text, shown)):
        titles += " PROBLEM"
    else:
        room = max(room, width - len(titles) - _MARK_CELLS)
    name_width = min(_MOST_NAME, max([_LEAST_NAME, *(len(job.name) for job in shown)]), max(_LEAST_NAME, room))
    text = f"{' ' * _MARK_CELLS}{cell('JOB', name_width)}{titles}"
    lines = [fit(((text, "column"),), width, "column")]
    lines += [_job_line(job, glyphs, columns, name_width, width) for job in shown]
    if len(shown) < len(jobs):
        lines.append(fit(((f"{' ' * _MARK_CELLS}and {len(jobs) - len(shown)} more jobs", "dim"),), width))
    return lines[: max(0, height)]


def _job_line(job: FleetJob, glyphs: Glyphs, columns: Sequence[FleetJobColumn], name_width: int, width: int) -> Line:
    is_stuck = job.state == JobState.STUCK
    is_short = is_stuck or bool(job.missing_rank_count) or (job.severity or Severity.OK) >= Severity.WARNING
    state = JobState(job.state) if job.state in tuple(JobState) else JobState.UNKNOWN
    good: Run = ("?", "dim") if state is JobState.UNKNOWN else (glyphs.good, "good")
    mark: Run = (glyphs.bad, "bad") if is_stuck else (glyphs.warn, "warn") if is_short else good
    runs: list[Run] = [(" ", "text"), mark, (" ", "text"), (cell(printable(job.name, 80), name_width), "text")]
    runs += [(f" {cell(column.read(job), column.width, right=column.is_right)}", "text") for column in columns]
    runs.append((f"  {cell(job_state_text(job), _STATE_WIDTH)}", _STATE_STYLES.get(state, "text")))
    runs.append((f" {problem_text(job)}", "warn" if job.missing_rank_count else "text"))
    return fit_marked(runs, width)


def problem_text(job: FleetJob) -> str:
    """Returns the problems of a job as text: missing ranks, and the stuck rank or straggler. "" for a healthy job."""
    texts = []
    if job.missing_rank_count:
        texts.append(_missing_text(job))
    if job.standstill is not None:
        texts.append(_standstill_text(job.standstill))
    slow = job.slow_rank
    if slow is not None and job.standstill is None:
        rank_text = f"PID {slow.pid}" if slow.rank is None else f"rank {slow.rank}"
        part = f" ({slow.part})" if slow.part is not None else ""
        gain = units.percent_text(slow.gain_ratio, 0)
        texts.append(f"{rank_text} of {printable(slow.host_name, 60)}{part}: {gain} of each step")
    return "; ".join(texts)


def _standstill_text(standstill: FleetStandstill) -> str:
    """Returns a text on the ranks that block a collective: "3 ranks wait in all_reduce for rank 3 of host b"."""
    where = printable(standstill.collective, 32) or "a collective"
    count = standstill.waiting_rank_count
    text = f"{count} rank{'s wait' if count > 1 else ' waits'} in {where}"
    by_host: dict[str, list[int]] = {}
    for each in standstill.absent_ranks:
        by_host.setdefault(each.host_name, []).append(each.rank)
    names = [
        f"rank{'s' * (len(found) > 1)} {ranges_text(found)} of {printable(host, 60)}" for host, found in by_host.items()
    ]
    more = standstill.absent_rank_count - len(standstill.absent_ranks)
    if more > 0:
        names.append(f"{more} more" if names else f"{more} rank{'s' * (more > 1)}")
    return f"{text} for {', '.join(names)}" if names else f"{text}, and none is absent"


def _missing_text(job: FleetJob) -> str:
    """Returns the missing ranks by host, for example "rank 3 of host b is missing"."""
    by_place: dict[tuple[str, bool], list[int]] = {}
    for each in job.missing_ranks:
        by_place.setdefault((each.host_name or "", each.is_host_lost), []).append(each.rank)
    if not by_place:
        count = job.missing_rank_count
        return f"{count} rank{'s' * (count > 1)} missing"
    texts = []
    for (host, is_lost), found in by_place.items():
        host_part = f" of {printable(host, 60)}" if host else ""
        texts.append(f"rank{'s' * (len(found) > 1)} {ranges_text(found)}{host_part}" + " (lost)" * is_lost)
    more = job.missing_rank_count - len(job.missing_ranks)
    verb = "is" if job.missing_rank_count == 1 else "are"
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "") + f" {verb} missing"
