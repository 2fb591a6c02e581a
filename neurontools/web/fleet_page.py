"""The page of many hosts: problems, totals, jobs and hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from neurontools.fleet.jobs import FleetJob
from neurontools.fleet.models import FleetModel
from neurontools.fleet.states import HostLink, severity_rank
from neurontools.fleet.summary import DeviceCell
from neurontools.model import Severity, SourceKind
from neurontools.model.jobs import JobState
from neurontools.util import units
from neurontools.util.units import clock_text
from neurontools.views.drawing.lines import printable
from neurontools.views.drawing.render_context import SEVERITY_STYLES, DisplayThresholds
from neurontools.views.fleet_hosts import HOST_COLUMNS, HostRow, device_condition, worst_finding_text
from neurontools.views.fleet_models import MODEL_COLUMNS
from neurontools.views.fleet_page import (
    FleetContext,
    fleet_totals,
    job_columns,
    job_state_text,
    models_title,
    problem_text,
    worst_jobs_first,
)
from neurontools.web.charts import core_class, legend
from neurontools.web.nodes import Node, node
from neurontools.web.tables import PageColumn, full_title, section, table, tiles

_MOST_PROBLEMS = 20
_MOST_JOBS = 200
_MOST_MODELS = 50
_RANK_OF_WARNING = 2  # rank of hosts with warnings in `severity_rank`; worse hosts have lower ranks
_CELLS_A_COLUMN = 12  # a column of the terminal's table for wide screens has a rank of its least width divided by this
_IDLE_BELOW_RATIO = DisplayThresholds().idle_below_ratio


def fleet_page(context: FleetContext, link: Callable[[HostRow], str], host_link: Callable[[str], str]) -> Node:
    """Builds the page of many hosts.

    `link` returns the URL of a row of the table of hosts, `host_link` the URL of a host; "" for none.
    """
    return node(
        "main",
        _head(context),
        _problems(context, host_link),
        _totals(context),
        _jobs(context),
        _models(context),
        _hosts(context, link),
        id="page",
    )


def _head(context: FleetContext) -> Node:
    states = context.all_states
    counts = {each: sum(state.link is each for state in states) for each in HostLink}
    summaries = [state.summary for state in states if state.summary is not None]
    marks = ["simulated"] if any(found.source is SourceKind.SIMULATED for found in summaries) else []
    marks += ["synthetic load"] if any(found.synthetic_load for found in summaries) else []
    badges = [node("span", f"{counts[HostLink.LIVE]} live", class_="badge good")]
    badges += [
        node("span", f"{count} {each}", class_="badge bad" if each is HostLink.LOST else "badge")
        for each, count in counts.items()
        if count and each is not HostLink.LIVE
    ]
    return node(
        "header",
        node("h1", f"{units.counted(len(states), 'host')}"),
        *[node("span", mark, class_="badge") for mark in marks],
        *badges,
        node("time", f"every {context.interval_seconds:g} s, {clock_text(context.now_unix_seconds)}"),
        *[node("p", printable(note), class_="warn") for note in context.notes],
    )


def _problems(context: FleetContext, host_link: Callable[[str], str]) -> Node:
    items: list[Node] = []
    for job in worst_jobs_first(context.jobs):
        text = problem_text(job)
        if text and (job.missing_rank_count or job.standstill is not None):
            items.append(_problem("critical", f"job {printable(job.name, 80)}", "", text))
    hosts = sorted(
        (state for state in context.all_states if severity_rank(state) <= _RANK_OF_WARNING), key=severity_rank
    )
    for state in hosts:
        severity = "warning" if state.severity is Severity.WARNING else "critical"
        word, _, text = worst_finding_text(state).partition(": ")
        is_lost = state.link is HostLink.LOST
        items.append(
            _problem(
                "lost" if is_lost else severity,
                printable(state.place.name, 260),
                host_link(state.place.name),
                text or word,
            )
        )
    count = len(items)
    if not items:
        is_known = all(state.severity is not None for state in context.all_states)
        text = (
            "Nothing to do: no host has a problem."
            if is_known
            else "No problem is known; some hosts have not answered."
        )
        items = [node("li", text, class_="ok" if is_known else "notice")]
    elif count > _MOST_PROBLEMS:
        items = [*items[:_MOST_PROBLEMS], node("li", f"and {count - _MOST_PROBLEMS} more, in the table of hosts")]
    return section(
        f"Problems: {count}" if count else "Problems", node("ul", *items, class_="findings"), name="problems"
    )


def _problem(word: str, name: str, address: str, text: str) -> Node:
    shown: Node = node("a", name, href=address) if address else node("b", name)
    step = (
        node("p", node("b", "Next step: "), "open the host, which has the action for each problem") if address else None
    )
    first = node("p", node("strong", word, class_="badge"), " ", shown, node("span", f" {text}"))
    return node("li", first, step, class_="warning" if word == "warning" else "critical")


def _totals(context: FleetContext) -> Node:
    totals = fleet_totals(context)
    cores = totals.neuroncore_counts
    missing = f"{totals.missing_device_count:,} missing" if totals.missing_device_count else ""
    unknown = f", {cores['unknown']:,} unknown" if cores["unknown"] else ""
    facts = [
        (
            "Free NeuronCores",
            units.count_text(cores["free"]),
            f"of {units.count_text(totals.neuroncore_count)}{unknown}",
        ),
        ("Held NeuronCores", units.count_text(cores["held"]), f"{units.count_text(cores['busy'])} busy"),
        ("Utilization", units.percent_text(totals.utilization_ratio, 1), "mean of held NeuronCores"),
        ("FLOPS", units.flops_text(totals.flops_per_second), "all live hosts"),
        ("Devices", f"{totals.device_count:,}", missing),
        ("Jobs", units.count_text(totals.job_count), "each counted once"),
    ]
    return tiles(facts)


def _jobs(context: FleetContext) -> Node | None:
    found = worst_jobs_first(context.jobs)
    if not found:
        return None

    def style(job: FleetJob) -> str:
        if job.state == JobState.STUCK:
            return "bad"
        return "warn" if job.missing_rank_count or (job.severity or Severity.OK) >= Severity.WARNING else "text"

    columns: list[PageColumn[FleetJob]] = [
        PageColumn("Job", lambda job: printable(job.name, 80), 0, True, style),
        PageColumn("State", job_state_text, 0, True, style),
        PageColumn("Problem", problem_text, 1, True, lambda job: f"long {style(job)}"),
        *[
            PageColumn(full_title(each.title), each.read, each.least_width // _CELLS_A_COLUMN, not each.is_right)
            for each in job_columns(found)
        ],
    ]
    return section(
        f"Jobs: {len(found)}", table("Jobs", columns, found[:_MOST_JOBS], ""), name="jobs", note="problems first"
    )


def _models(context: FleetContext) -> Node | None:
    if not context.models:
        return None
    columns: list[PageColumn[FleetModel]] = [
        PageColumn("Model", lambda model: printable(model.name, 80), 0, True),
        *[
            PageColumn(full_title(each.title), each.read, each.least_width // _CELLS_A_COLUMN, False)
            for each in MODEL_COLUMNS
        ],
    ]
    return section(models_title(context), table("Models", columns, context.models[:_MOST_MODELS], ""), name="models")


def _hosts(context: FleetContext, link: Callable[[HostRow], str]) -> Node:
    def style(row: HostRow) -> str:
        if row.state.link is not HostLink.LIVE:
            return "dim"
        severity = row.state.severity
        return SEVERITY_STYLES.get(severity, "text") if severity is not None else "dim"

    rows = list(context.rows)
    columns: list[PageColumn[HostRow]] = [
        PageColumn("Host", lambda row: printable(row.name, 260), 0, True, lambda row: f"long {style(row)}", link=link),
        PageColumn(
            "Worst finding", lambda row: worst_finding_text(row.state), 1, True, lambda row: f"long {style(row)}"
        ),
        *[
            PageColumn(
                full_title(each.title),
                lambda row, each=each: each.read(row.state, context.now_seconds),  # type: ignore[misc]
                each.least_width // _CELLS_A_COLUMN,
                not each.is_right,
            )
            for each in HOST_COLUMNS
        ],
    ]
    shown = table(
        "Hosts", columns, rows, "No host passes the filter." if context.filter_text else "There are no hosts."
    )
    title = f"Hosts by {context.group_by}" if context.group_by else "Hosts"
    return section(title, _device_map(rows), shown, name="hosts", note=context.sort)


def _device_map(rows: Sequence[HostRow]) -> Node | None:
    """Builds the heat map of devices: a row for each host of the table that has data, a column for each device."""
    listed = [(row, row.state.summary.devices) for row in rows if row.state.summary is not None and row.group is None]
    if not listed:
        return None
    columns = max(len(devices) for _, devices in listed)
    paths: dict[str, list[str]] = {}
    for number, (row, devices) in enumerate(listed):
        at = 0
        is_live = row.state.link is HostLink.LIVE
        for style, run in groupby(devices, key=lambda device: _device_class(device) if is_live else "unknown"):
            length = len(list(run))
            paths.setdefault(style, []).append(f"M{at} {number}h{length}v1h-{length}z")
            at += length
    names = {"missing": "missing", "critical": "critical finding", "warning": "warning"}
    drawn = [
        node("path", d="".join(found), class_=style, data_label=names.get(style))
        for style, found in sorted(paths.items())
    ]
    picture = node(
        "svg",
        *drawn,
        viewBox=f"0 0 {columns} {len(listed)}",
        preserveAspectRatio="none",
        height=min(360, max(48, 14 * len(listed))),
        role="img",
        aria_label=f"Devices of {units.counted(len(listed), 'host')}, a row for each host",
        data_rows="|".join(printable(row.name, 60).replace("|", " ") for row, _ in listed),
        data_columns="ND",
    )
    return node(
        "figure",
        node("figcaption", legend(), node("output", aria_hidden="true")),
        node("div", picture, class_="heat"),
        class_="wide-figure",
    )


def _device_class(device: DeviceCell) -> str:
    """Returns the CSS class of a device: its finding, "missing", or the class of a core with its utilization."""
    if not device.is_present:
        return "missing"
    if device.severity is not None and device.severity >= Severity.WARNING:
        return "critical" if device.severity >= Severity.CRITICAL else "warning"
    is_free = device_condition(device) == "free"
    return core_class(device.utilization_ratio, not is_free, _IDLE_BELOW_RATIO)
