"""The pages of one host: overview, processes, topology, history, heat map, events, users and host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from neurontools import catalog
from neurontools.client.events import EventSeverity, HostEvent
from neurontools.client.samples import HostQuantity
from neurontools.faults.requests import describe_fault, injected_by
from neurontools.model import LogicalNeuronCore, Severity, SourceKind
from neurontools.model.finding import Finding
from neurontools.model.health import count_devices_by_severity, group_alike, sentence, summary, verdicts
from neurontools.util import units
from neurontools.util.units import clock_text, day_text, ranges_text
from neurontools.util.version import __version__
from neurontools.views.consumption import power_mark, power_note
from neurontools.views.drawing.core_grid import owner_text
from neurontools.views.drawing.figures import ProcessFigures
from neurontools.views.drawing.lines import printable
from neurontools.views.drawing.plots import backfill_text, bytes_label, percent_label
from neurontools.views.drawing.render_context import SEVERITY_STYLES, RenderContext, shown_events
from neurontools.views.host_page import TRAFFIC_COLUMNS, traffic_rows, traffic_texts, user_and_system_ratios
from neurontools.views.memory_sections import (
    DEVICE_CATEGORIES,
    HOST_CATEGORIES,
    MemoryNode,
    category_rows,
    visible_nodes,
)
from neurontools.views.overview_page import JobColumn, fitting_job_columns, job_rows
from neurontools.views.process_details import process_facts
from neurontools.views.process_filter import InvalidFilter, parse_filter
from neurontools.views.process_table import (
    BY_KEY,
    COMMAND,
    JobRow,
    ProcessColumn,
    columns_without_values,
    free_cores_text,
    shown_process_columns,
)
from neurontools.views.processes_page import process_cell, process_rows, row_figures
from neurontools.views.usage_page import ENDED_COLUMNS, USER_COLUMNS, ended_rows, hours_text, user_totals
from neurontools.web.charts import Chart, charts, core_class, legend
from neurontools.web.device_pages import (
    SEVERITY_NAMES,
    Address,
    heatmap_sections,
    history_of_host,
    history_sections,
    past_note,
    topology_sections,
)
from neurontools.web.nodes import Node, node
from neurontools.web.process_page import time_section
from neurontools.web.tables import PageColumn, fact_list, full_title, meter, page_columns, section, table, tiles

_EVERY_COLUMN_CELLS = 1000  # a width that fits all columns
_EVENT_STYLES = {EventSeverity.INFO: "text", EventSeverity.WARNING: "warn", EventSeverity.CRITICAL: "bad"}


def host_page(context: RenderContext, name: str, address: Address) -> Node:
    """Builds the page that `context.page` names. `name` is how viewers know the host; "" if it has no such name."""
    return node("main", _head(context, name), *_PAGES[context.page](context, address), id="page")


def _head(context: RenderContext, name: str) -> Node:
    """Builds the name of the host, the marks of simulated data, and the state of the feed."""
    instance, clock = context.snapshot.instance, context.clock
    shown_name = printable(name or instance.instance_id or "this host", 60)
    marks = ["simulated"] if context.snapshot.source is SourceKind.SIMULATED else []
    if context.snapshot.synthetic_load:
        marks.append(f"synthetic load: {printable(context.snapshot.synthetic_load, 30)}")
    is_live = clock.style != "title_bad" and clock.badge == "LIVE"
    badge = node("span", clock.badge, class_="badge good" if is_live else "badge bad") if clock.badge else None
    return node(
        "header",
        node("h1", f"{shown_name} ", node("span", printable(instance.instance_type, 40), class_="dim")),
        *[node("span", mark, class_="badge") for mark in marks],
        badge,
        node("time", clock_text(context.snapshot.taken_at_unix_seconds)),
        node("p", clock.problem, class_="bad") if clock.problem else None,
    )


def _problems(context: RenderContext, findings: Iterable[Finding], address: Address, *, least: Severity) -> Node:
    """Builds the findings from a severity on, severe ones first, each with the next step."""
    found = [pair for pair in group_alike(findings) if pair[0].severity >= least]
    found.sort(key=lambda pair: -pair[0].severity)
    items = [_finding(context, finding, devices, address) for finding, devices in found]
    text = summary(context.verdicts or verdicts(context.snapshot), context.snapshot)
    if not items:
        is_well = context.snapshot.health is not None
        items = [node("li", f"Nothing to do: {text}." if is_well else text, class_="ok" if is_well else "warning")]
    count = len(found)
    title = "Problems" if not count else f"Problems: {count}"
    return section(title, node("ul", *items, class_="findings"), name="problems", note=text if count else "")


def _finding(context: RenderContext, finding: Finding, devices: tuple[int, ...], address: Address) -> Node:
    severity = SEVERITY_NAMES.get(finding.severity, "notice")
    where: list[Node] = []
    if devices:
        target = address("topology", device=devices[0], core=None)
        where = [node("a", f"ND {ranges_text(devices)}", href=target)]
    elif finding.pid is None:
        where = ["host"]
    if finding.pid is not None:
        where += [" " if where else "", _process_link(context, finding.pid, address)]
    return node(
        "li",
        node(
            "p",
            node("strong", severity, class_="badge"),
            " ",
            *where,
            node("span", f" {printable(sentence(finding, context.snapshot))}"),
        ),
        node("p", node("b", "Next step: "), printable(finding.action)) if finding.action else None,
        class_=severity,
    )


def _process_link(context: RenderContext, pid: int, address: Address) -> Node:
    if pid not in context.figures.ranks:
        return f"PID {pid}"
    return node("a", f"PID {pid}", href=address("processes", details=pid))


def _overview(context: RenderContext, address: Address) -> Iterator[Node]:
    health = context.snapshot.health
    yield _problems(context, () if health is None else health.findings, address, least=Severity.NOTICE)
    yield _main_figures(context)
    yield _device_section(context, address)
    yield _jobs(context, address)
    yield history_of_host(context, address)
    yield _memory(context, address)


def _main_figures(context: RenderContext) -> Node:
    figures, snapshot = context.figures, context.snapshot
    device_bytes = sum(device.memory_bytes for device in snapshot.devices)
    free = list(figures.free.values())
    unknown = free.count(None)
    host = snapshot.host
    average = host.vcpu_average
    user, system = (None, None) if average is None else user_and_system_ratios(average)
    used = None if user is None or system is None else user + system
    flops, peak = figures.flops(None), figures.peak_flops_per_core
    total_peak = peak * len(snapshot.cores) if peak and snapshot.cores else None
    mfu = flops / total_peak if flops is not None and total_peak else None
    powers = [device.power.average_ratio for device in snapshot.devices if device.power]
    facts = [
        ("Free NeuronCores", f"{free.count(True)} of {len(free)}", f"{unknown} unknown" if unknown else ""),
        ("Utilization", units.percent_text(figures.average_utilization(None), 1), "mean of all NeuronCores"),
        (
            "HBM",
            units.bytes_text(figures.device_memory(None).total_bytes),
            f"of {units.memory_size_text(device_bytes)}",
        ),
        ("FLOPS", units.flops_text(flops), f"MFU {units.percent_text(mfu, 1)} of the {catalog.PEAK_DTYPE} peak"),
        (
            "vCPUs",
            units.percent_text(used, 1),
            f"of {host.vcpu_count or '-'}: user {units.percent_text(user, 1)}, system {units.percent_text(system, 1)}",
        ),
        (
            "Host memory",
            units.bytes_text(host.memory_used_bytes),
            f"of {units.memory_size_text(host.memory_total_bytes)}",
        ),
    ]
    if powers:
        facts.append(
            ("Power", units.percent_text(max(powers), 0), f"highest device, of its maximum{power_mark(snapshot)}")
        )
    traffic = traffic_texts(host)
    return node("div", tiles(facts), node("p", "Traffic: ", ", ".join(traffic), class_="dim") if traffic else None)


def _device_section(context: RenderContext, address: Address) -> Node:
    by_device: dict[int, list[LogicalNeuronCore]] = {}
    for core in context.figures.cores:
        by_device.setdefault(core.device_index, []).append(core)
    shown = [
        _device_tile(context, device.index, by_device.get(device.index, []), address)
        for device in context.snapshot.devices
        if device.index not in context.figures.hidden_devices
    ]
    grid = node("ul", *shown, class_="devices") if shown else node("p", "no devices", class_="dim")
    note = f"{free_cores_text(context.figures)}; utilization of each NeuronCore in percent"
    return section("Devices", grid, legend(), name="devices", note=note)


def _device_tile(context: RenderContext, index: int, cores: list[LogicalNeuronCore], address: Address) -> Node:
    figures = context.figures
    device = context.snapshot.devices[index]
    is_missing = index in figures.missing_devices
    severity = max(
        [
            figures.marked_devices.get(index, Severity.OK),
            *(figures.marked_cores.get(core.index, Severity.OK) for core in cores),
        ]
    )
    state = "missing" if is_missing else SEVERITY_NAMES.get(severity, "")
    used, size = figures.device_used_bytes[index], device.memory_bytes
    title = node("a", f"ND {index}", href=address("history", device=index, core=None))
    body: list[Node] = [
        node(
            "div",
            title,
            node("strong", state, class_="badge") if state else None,
            node("span", units.percent_text(figures.device_utilization[index], 0), class_="n"),
            class_="head",
        )
    ]
    if cores:
        body.append(node("ul", *[_core(context, core) for core in cores], class_="cores"))
        body.append(
            meter("HBM", figures.memory_ratio(index), f"{units.bytes_text(used)} / {units.memory_size_text(size)}")
        )
    return node("li", *body, class_=state or None)


def _core(context: RenderContext, core: LogicalNeuronCore) -> Node:
    ratio = core.utilization_ratio
    is_free = context.figures.free[core.index]
    style = (
        core_class(ratio, is_free is False, context.thresholds.idle_below_ratio) if is_free is not None else "unknown"
    )
    text = "free" if style == "free" else "?" if ratio is None else f"{ratio * 100:.0f}"
    severity = context.figures.marked_cores.get(core.index)
    mark = f" {SEVERITY_STYLES[severity]}" if severity in SEVERITY_STYLES else ""
    title = f"NC {core.index}: {owner_text(context.figures, core)}"
    return node("li", text, class_=f"core {style}{mark}", title=title)


def _jobs(context: RenderContext, address: Address) -> Node:
    rows = job_rows(context)
    columns: list[PageColumn[JobRow]] = []
    found = [column for column, _ in fitting_job_columns(context, rows, _EVERY_COLUMN_CELLS)] if rows else []
    mark = next((column for column in found if not column.title), None)

    def link(row: JobRow) -> str:
        if row.pid is not None:
            return address("processes", details=row.pid)
        return address("", open="" if row.is_open else row.key) + "#jobs"

    for column in found:
        if column.title:
            columns.append(_job_column(context, column, mark, link if not columns else None))
    jobs = len({row.job.name for row in rows if row.rank is None})
    alone = sum(row.rank is not None and not row.is_below for row in rows)
    parts = [units.counted(jobs, "job")] if jobs else []
    parts += [f"{alone} process{'es' * (alone != 1)} without a job"] if alone else []
    more = node("a", "All processes", href=address("processes"), class_="more")
    shown = table("Jobs", columns, rows, "Nobody holds a NeuronCore.")
    return section("Jobs", shown, name="jobs", note=", ".join(parts), more=more)


def _job_column(
    context: RenderContext, column: JobColumn, mark: JobColumn | None, link: Callable[[JobRow], str] | None
) -> PageColumn[JobRow]:
    def style(row: JobRow) -> str:
        found = mark.style(context, row) if link is not None and mark is not None else column.style(context, row)
        return f"below {found}" if link is not None and row.is_below else found

    return PageColumn(
        full_title(column.title),
        lambda row: column.text(context, row),
        column.need,
        not column.is_number,
        style,
        link=link or (lambda _row: ""),
    )


def _memory(context: RenderContext, address: Address) -> Node:
    figures, snapshot = context.figures, context.snapshot
    device, host = figures.device_memory(None), figures.host_memory(None)
    parts = []
    for title, memory, categories, capacity in (
        ("HBM by category", device, DEVICE_CATEGORIES, sum(each.memory_bytes for each in snapshot.devices)),
        ("Host memory of Neuron processes", host, HOST_CATEGORIES, snapshot.host.memory_total_bytes),
    ):
        (_, total), *rows = category_rows("", memory, categories)
        bars = [meter("Total", total / capacity if total is not None and capacity else None, units.bytes_text(total))]
        bars += [meter(name, _share(value, total), units.bytes_text(value)) for name, value in rows]
        parts.append(node("div", node("h3", title), *bars))
    tree: Node | None = None
    more = node(
        "a",
        "Hide devices, cores and models" if context.is_tree_shown else "By device, core and model",
        href=address("", tree=int(not context.is_tree_shown)) + "#memory",
        class_="more",
    )
    if context.is_tree_shown:
        tree = _memory_tree(context)
    return section("Memory", node("div", *parts, class_="pair"), tree, name="memory", more=more)


def _share(value: int | None, total: int | None) -> float | None:
    return value / total if value is not None and total else None


def _memory_tree(context: RenderContext) -> Node:
    opened: frozenset[str] = frozenset()
    nodes = visible_nodes(replace(context, opened=opened))
    while (keys := frozenset(each.key for each in nodes if each.has_children)) != opened:
        opened = keys
        nodes = visible_nodes(replace(context, opened=opened))
    columns: list[PageColumn[MemoryNode]] = [
        PageColumn("Where", lambda row: row.title, 0, True, lambda row: f"depth{row.depth}"),
        PageColumn("HBM", lambda row: units.bytes_text(row.device_bytes)),
        PageColumn("Host memory", lambda row: units.bytes_text(row.host_bytes)),
    ]
    return table("Memory by device, core and model", columns, nodes, "no memory is known")


def _processes(context: RenderContext, address: Address) -> Iterator[Node]:
    if context.details_pid is not None:
        yield from _details(context, context.details_pid, address)
        return
    rows = [(row, row_figures(context.figures, row)) for row in process_rows(context, every=True)]
    every = list(context.figures.by_pid.values())
    found, _ = shown_process_columns(context.columns, _EVERY_COLUMN_CELLS, columns_without_values(every))
    columns = [_process_column(context, column, address) for column in (*found, COMMAND)]
    listed = sum(len(row.ranks) for row, _ in rows if not row.is_below)
    count = f"{len(every)} process{'es' * (len(every) != 1)}"
    note = count if listed == len(every) else f"{listed} of {count}"
    problem = _filter_problem(context.filter_text)
    peak = context.figures.peak_flops_per_core
    peak_text = f"{units.flops_text(peak)} {catalog.PEAK_DTYPE} peak of a physical core" if peak else "no peak is known"
    yield section(
        "Who holds my cores",
        node("p", problem, class_="bad") if problem else None,
        table(
            "Processes",
            columns,
            rows,
            "No process passes the filter." if context.filter_text else "No process holds a NeuronCore.",
        ),
        node("p", f"MFU is the share of FLOPS in the peak: {peak_text}.", class_="dim"),
        name="processes",
        note=f"{note}; {free_cores_text(context.figures)}",
    )


def _process_column(
    context: RenderContext, column: ProcessColumn, address: Address
) -> PageColumn[tuple[JobRow, ProcessFigures]]:
    is_sorted = column.key == context.sort
    order = ("descending" if context.is_descending else "ascending") if is_sorted else ""
    is_next_descending = not context.is_descending if is_sorted else not column.is_text and column.key != "pid"

    def link(pair: tuple[JobRow, ProcessFigures]) -> str:
        return address("", details=pair[0].pid) if column.key == "pid" and pair[0].pid is not None else ""

    return PageColumn(
        full_title(column.title),
        lambda pair: process_cell(context, *pair, column)[0],
        column.rank,
        column.is_text,
        lambda pair: process_cell(context, *pair, column)[1],
        column.about,
        link,
        address("", sort=column.key, descending=int(is_next_descending)) + "#processes",
        order,
    )


def _filter_problem(text: str) -> str:
    try:
        parse_filter(text)
    except InvalidFilter as error:
        return f"The filter has no effect: {printable(str(error), 120)}"
    return ""


def _details(context: RenderContext, pid: int, address: Address) -> Iterator[Node]:
    back = node("a", "All processes", href=address("", details=None), class_="more", data_key="Escape")
    figures = context.figures.process_figures(pid)
    if figures is None:
        text = node("p", "This process holds no NeuronCores now.", class_="dim")
        yield section(f"PID {pid}", text, name="process", more=back)
        return
    health = context.snapshot.health
    findings = [each for each in (health.findings if health else ()) if each.pid == pid or pid in each.pids]
    if findings:
        yield _problems(context, findings, address, least=Severity.NOTICE)
    facts = fact_list((name, text, style) for name, text, style in process_facts(context, figures))
    yield section(f"Process {pid} {printable(figures.process.tag, 60)}", facts, name="process", more=back)
    yield section("History", charts(context, _process_charts(pid)), name="charts", note=past_note(context))
    yield time_section(figures)


def _process_charts(pid: int) -> tuple[Chart, ...]:
    return (
        Chart("Utilization", HostQuantity("utilization_ratio", pid=pid), 1.0, percent_label),
        Chart("FLOPS", HostQuantity("flops_per_second", pid=pid), None, units.flops_text),
        Chart("HBM", HostQuantity("memory_bytes", pid=pid), None, bytes_label),
        Chart("Executions a second", HostQuantity("executions_per_second", pid=pid), None, units.rate_text),
        Chart("Latency p99", HostQuantity("latency_p99_seconds", pid=pid), None, units.duration_text),
    )


def _health(context: RenderContext, address: Address) -> Iterator[Node]:
    health = context.snapshot.health
    yield _problems(context, () if health is None else health.findings, address, least=Severity.OK)
    warnings, faults = context.snapshot.warnings, context.snapshot.injected_faults
    if warnings:
        items = [node("li", printable(each), class_="warning") for each in warnings]
        yield section(f"Unknown values: {len(warnings)}", node("ul", *items, class_="findings"), name="unknown")
    if faults:
        items = []
        for fault in faults:
            by = injected_by(fault)
            items.append(node("li", printable(describe_fault(fault)) + (f" (by {by})" if by else ""), class_="warning"))
        title = f"Injected faults: {len(faults)}"
        yield section(
            title, node("ul", *items, class_="findings"), name="faults", note="neuron-fault heal removes them"
        )
    events = list(reversed(shown_events(context, None)))
    columns: tuple[PageColumn[HostEvent], ...] = (
        PageColumn("Time", lambda event: day_text(event.at_unix_seconds), 0, True),
        PageColumn("Kind", lambda event: event.kind, 0, True),
        PageColumn(
            "Event", lambda event: printable(event.text), 0, True, lambda event: f"long {_EVENT_STYLES[event.severity]}"
        ),
    )
    since = context.clock.first_at_unix_seconds
    since_text = clock_text(context.snapshot.taken_at_unix_seconds if since is None else since)
    times = sum(event.times for event in events)
    note = backfill_text(context) or f"{units.counted(times, 'event')} since {since_text}"
    yield section(
        "Events", table("Events", columns, events, f"No events since {since_text}."), name="events", note=note
    )


def _usage(context: RenderContext, _address: Address) -> Iterator[Node]:
    ended = ended_rows(context)
    users = user_totals(context.figures, ended)
    yield section(
        "Users",
        table("Users", page_columns(USER_COLUMNS), users, "Nobody holds a NeuronCore."),
        name="users",
        note="current and ended processes",
    )
    hours = sum(process.neuroncore_hours for process in ended)
    note = f"{len(ended)} known, {hours_text(hours)} NeuronCore hours" if ended else ""
    shown = table("Ended processes", page_columns(ENDED_COLUMNS), ended, "No ended process is known.")
    yield section("Ended processes", shown, name="ended", note=note)


def _host(context: RenderContext, _address: Address) -> Iterator[Node]:
    snapshot, host = context.snapshot, context.snapshot.host
    runtimes = sorted({version for process in snapshot.processes if (version := process.runtime_version)})
    cost = f"{units.percent_text(snapshot.daemon_vcpu_ratio)} CPU, {units.bytes_text(snapshot.daemon_resident_bytes)}"
    facts = [
        ("Driver", printable(snapshot.instance.driver_version or "-", 40), "text"),
        ("Runtime", printable(", ".join(runtimes) or "-", 80), "text"),
        ("neurond", f"{printable(snapshot.daemon_version or '-', 40)}; costs {cost}", "text"),
        ("This page", f"neuron-top {__version__}", "text"),
        ("Context switches", units.count_text(host.context_switches_total), "text"),
    ]
    if context.own_cost is not None:
        own_cost = context.own_cost
        own = f"{units.percent_text(own_cost.vcpu_ratio)} CPU, {units.bytes_text(own_cost.resident_bytes)}"
        facts[3] = ("This page", f"neuron-top {__version__}; costs {own}", "text")
    meters = []
    for name, used, size in (
        ("Memory", host.memory_used_bytes, host.memory_total_bytes),
        ("Swap", host.swap_used_bytes, host.swap_total_bytes),
    ):
        if name == "Memory" or size:
            meters.append(meter(name, _share(used, size), f"{units.bytes_text(used)} of {units.bytes_text(size)}"))
    yield section("Host", fact_list(facts), *meters, name="host", note=printable(snapshot.instance.instance_type, 40))
    used_ratio = None if host.vcpu_average is None else 1.0 - host.vcpu_average.idle_ratio
    vcpus = [
        meter(str(number), (total := sum(user_and_system_ratios(usage))), units.percent_text(total, 0))
        for number, usage in enumerate(context.vcpus)
    ]
    yield section(
        "vCPUs",
        node("div", *vcpus, class_="vcpus") if vcpus else node("p", "their use is not known yet", class_="dim"),
        name="vcpus",
        note=f"{host.vcpu_count or '-'}, {units.percent_text(used_ratio, 1)} in use",
    )
    powers = [(device.index, device.power) for device in snapshot.devices if device.power is not None]
    if powers:
        bars = [
            meter(
                f"ND {index}",
                power.average_ratio,
                f"{power.average_ratio:.1%} ({power.minimum_ratio:.0%} to {power.maximum_ratio:.0%})",
            )
            for index, power in powers
        ]
        yield section("Power of devices", node("div", *bars, class_="vcpus"), name="power", note=power_note(snapshot))
    rows = traffic_rows(host)
    shown = table("Traffic", page_columns(TRAFFIC_COLUMNS), rows, "The daemon reports none.")
    yield section("Network, disks and EFA", shown, name="traffic")


def problem_counts_text(context: RenderContext) -> str:
    """Returns the number of devices with critical findings and with warnings, for the title of the window."""
    found = count_devices_by_severity(context.snapshot)
    words = [(Severity.CRITICAL, "critical"), (Severity.WARNING, "warning")]
    return ", ".join(f"{found[severity]} {word}" for severity, word in words if found.get(severity))


_PAGES: dict[str, Callable[[RenderContext, Address], Iterator[Node]]] = {
    "overview": _overview,
    "processes": _processes,
    "topology": topology_sections,
    "history": history_sections,
    "heatmap": heatmap_sections,
    "health": _health,
    "usage": _usage,
    "host": _host,
}
SORT_KEYS = frozenset(BY_KEY)
