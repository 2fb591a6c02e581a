"""The host page: versions, vCPUs, memory, power, network, disks and EFA."""

from __future__ import annotations

from dataclasses import dataclass, fields

from neurontools.model import Host, VcpuUsage
from neurontools.util import units
from neurontools.util.formats import copy_fields
from neurontools.util.units import sum_known
from neurontools.util.version import __version__
from neurontools.views.consumption import power_note, power_watts, watts_text
from neurontools.views.drawing.glyphs import bar, stacked_bar
from neurontools.views.drawing.lines import (
    Line,
    Run,
    TableColumn,
    TextPage,
    count_column,
    fit,
    fitting_columns,
    labelled_line,
    printable,
    row_line,
    title_line,
)
from neurontools.views.drawing.render_context import RenderContext, SearchEntry, heading, visible_top

_FACT_LABEL_CELLS = 12
_LEAST_TABLE_LINES = 4
_POWER_CELLS = 30  # width of an entry such as "ND15 ########.... 45.0% (40-51)"
_VCPU_BAR_CELLS = 24  # width of a vCPU such as "  12 ########....  34% "
_VCPU_NARROW_CELLS = 10  # width of a vCPU without bar, such as "  12  34% "
_VCPU_LABEL_CELLS, _VCPU_FIGURE_CELLS = 5, 6
_ALL_PORTS = "all"


def host_page(context: RenderContext, width: int, height: int) -> TextPage:
    """Draws the host page: versions, cost of the tools, memory, vCPUs, device power, and the traffic table."""
    title = heading(context, "Host", width, printable(context.snapshot.instance.instance_type, 40))
    page = TextPage([title, *_fact_lines(context, width)])
    power = _power_lines(context, width)
    room = height - len(page.lines) - _LEAST_TABLE_LINES
    page.add_lines(*_vcpu_section(context, width, max(1, (room - len(power)) * 2 // 3)))
    if power and height - len(page.lines) - len(power) - 1 >= _LEAST_TABLE_LINES:
        page.add_lines(heading(context, "Power of devices", width, power_note(context.snapshot)), *power)
    page.append_page(_traffic_section(context, width, height - len(page.lines)))
    return page


def _fact_lines(context: RenderContext, width: int) -> list[Line]:
    snapshot = context.snapshot
    runtimes = sorted({version for process in snapshot.processes if (version := process.runtime_version)})
    versions = (
        f"driver {printable(snapshot.instance.driver_version or '-', 40)}, "
        f"runtime {printable(', '.join(runtimes) or '-', 80)}, "
        f"neurond {printable(snapshot.daemon_version or '-', 40)}, neuron-top {__version__}, "
        "firmware - (not reported by the driver)"
    )
    own = context.own_cost
    cost = f"neurond {_cost_text(snapshot.daemon_vcpu_ratio, snapshot.daemon_resident_bytes)}"
    if own is not None:
        cost = f"neuron-top {_cost_text(own.vcpu_ratio, own.resident_bytes)}, {cost}"
    facts = (("versions", versions), ("overhead", cost))
    lines = [labelled_line(name, text, width, _FACT_LABEL_CELLS - 2) for name, text in facts]
    return [*lines, *_memory_lines(context, snapshot.host, width)]


def _cost_text(vcpu_ratio: float | None, resident_bytes: int | None) -> str:
    return f"{units.percent_text(vcpu_ratio)} CPU and {units.bytes_text(resident_bytes)}"


def _memory_lines(context: RenderContext, host: Host, width: int) -> list[Line]:
    lines = []
    for name, used, size in (
        ("memory", host.memory_used_bytes, host.memory_total_bytes),
        ("swap", host.swap_used_bytes, host.swap_total_bytes),
    ):
        if name == "swap" and not size:
            continue
        ratio = used / size if used is not None and size else None
        figure = f" {units.bytes_text(used)} of {units.bytes_text(size)}"
        runs: list[Run] = [(f" {name:<{_FACT_LABEL_CELLS - 1}}", "label")]
        runs += bar(ratio, max(0, width - _FACT_LABEL_CELLS - len(figure) - 1), context.glyphs)
        lines.append(fit((*runs, (figure, "text")), width))
    return lines


def _vcpu_section(context: RenderContext, width: int, height: int) -> list[Line]:
    host = context.snapshot.host
    used = None if host.vcpu_average is None else 1.0 - host.vcpu_average.idle_ratio
    text = f"vCPUs: {'-' if host.vcpu_count is None else host.vcpu_count}, {units.percent_text(used, 1)} in use"
    return [
        heading(context, text, width, f"context switches/s: {units.rate_text(context.context_switches_per_second)}"),
        *vcpu_lines(context, width, height - 1),
    ]


def _power_lines(context: RenderContext, width: int) -> list[Line]:
    powers = [(device.index, device.power) for device in context.snapshot.devices if device.power is not None]
    if not powers:
        return []
    across = max(1, width // _POWER_CELLS)
    cells = width // across
    lines = []
    for first in range(0, len(powers), across):
        runs: list[Run] = []
        for index, power in powers[first : first + across]:
            least, most = power.minimum_ratio * 100, power.maximum_ratio * 100
            watts = power_watts(power.average_ratio, context.snapshot.instance)
            figure = f" {power.average_ratio * 100:5.1f}%" + (
                f" ({least:.0f}-{most:.0f})" if watts is None else f" {watts_text(watts)}"
            )
            part: list[Run] = [(f" ND{index:<3}", "label")]
            part += bar(power.average_ratio, max(0, cells - 6 - len(figure) - 1), context.glyphs)
            runs += fit((*part, (figure, "text")), cells)
        lines.append(fit(runs, width))
    return lines


def traffic_entries(context: RenderContext) -> list[SearchEntry]:
    """Returns network interfaces, disks and EFA ports as search entries."""
    rows = traffic_rows(context.snapshot.host)
    return [SearchEntry(str(number), f"{row.kind} {row.name} {row.state or ''}") for number, row in enumerate(rows)]


def _traffic_section(context: RenderContext, width: int, height: int) -> TextPage:
    rows = traffic_rows(context.snapshot.host)
    page = TextPage([heading(context, "Network, disks, EFA", width)])
    if not rows:
        page.add_lines(fit((("   the daemon reports none", "dim"),), width))
        return page
    columns = fitting_columns(TRAFFIC_COLUMNS, width)
    page.add_lines(title_line(columns, width))
    list_height = max(1, height - len(page.lines))
    top = visible_top(min(max(0, context.cursor), len(rows) - 1), context.top, list_height, len(rows))
    shown = rows[top : top + list_height]
    page.add_list([row_line(columns, row, width) for row in shown], len(rows), list_height, top)
    return page


def user_and_system_ratios(usage: VcpuUsage) -> tuple[float, float]:
    """Returns two shares of vCPU time: user, including nice, and system, including interrupts and I/O wait."""
    system = usage.system_ratio + usage.io_wait_ratio + usage.irq_ratio + usage.soft_irq_ratio
    return usage.user_ratio + usage.nice_ratio, system


def vcpu_lines(context: RenderContext, width: int, height: int) -> list[Line]:
    """Draws all vCPUs in at most `height` lines: as bars, or as one character each if bars don't fit."""
    vcpus = context.vcpus
    if not vcpus or height < 1:
        return []
    for cells in (_VCPU_BAR_CELLS, _VCPU_NARROW_CELLS):
        across = max(1, min(len(vcpus), width // cells))
        down = -(-len(vcpus) // across)
        if down <= height:
            return [_vcpu_row(context, row, down, across, width) for row in range(down)]
    return _vcpu_levels(context, vcpus, width, height)


def _vcpu_row(context: RenderContext, row: int, down: int, across: int, width: int) -> Line:
    """Draws line `row` of the vCPU bars. A column has `down` successive vCPUs, so a line has every `down`-th."""
    runs: list[Run] = []
    for index in range(row, min(across * down, len(context.vcpus)), down):
        runs += _vcpu_bar(context, index, context.vcpus[index], width // across)
    return fit(runs, width)


def _vcpu_bar(context: RenderContext, index: int, usage: VcpuUsage, cells: int) -> list[Run]:
    user, system = user_and_system_ratios(usage)
    figure = f"{(user + system) * 100:3.0f}% ".rjust(_VCPU_FIGURE_CELLS)
    room = cells - _VCPU_LABEL_CELLS - _VCPU_FIGURE_CELLS
    drawn = stacked_bar(((user, "busy"), (system, "system")), room, context.glyphs)
    return [(f"{index:4} ", "label"), *drawn, (figure, "text")]


def _vcpu_levels(context: RenderContext, vcpus: tuple[VcpuUsage, ...], width: int, height: int) -> list[Line]:
    levels = context.glyphs.levels
    room = max(1, width - 8)
    lines = []
    for first in range(0, len(vcpus), room):
        text = "".join(
            levels[max(1, min(len(levels) - 1, round(sum(user_and_system_ratios(usage)) * (len(levels) - 1))))]
            for usage in vcpus[first : first + room]
        )
        lines.append(fit(((f"{first:5}   ", "label"), (text, "busy")), width))
    return lines[:height]


@dataclass(frozen=True, slots=True)
class TrafficRow:
    """Traffic of one network interface, disk or EFA port. None means unknown or not applicable."""

    kind: str  # "net", "disk" or "EFA"
    name: str
    state: str | None
    in_bytes_per_second: float | None  # received from the network, or read from the disk
    out_bytes_per_second: float | None
    in_bytes_total: int | None
    out_bytes_total: int | None
    rdma_read_bytes_total: int | None = None
    rdma_write_bytes_total: int | None = None
    dropped_packets_total: int | None = None
    retransmitted_bytes_total: int | None = None
    error_total: int | None = None  # sum of retransmit timeouts, unresponsive remotes and failed requests of EFA


def traffic_rows(host: Host) -> list[TrafficRow]:
    """Returns the rows of the traffic table: total of all EFA ports (if several), interfaces, disks, each EFA port."""
    ports = [
        copy_fields(
            TrafficRow,
            port,
            kind="EFA",
            name=f"{printable(port.device, 40)}/{port.port}",
            in_bytes_per_second=port.received_bytes_per_second,
            out_bytes_per_second=port.sent_bytes_per_second,
            in_bytes_total=port.received_bytes_total,
            out_bytes_total=port.sent_bytes_total,
            error_total=sum_known(
                (port.retransmit_timeouts_total, port.unresponsive_remotes_total, port.failed_requests_total)
            ),
        )
        for port in host.rdma_ports
    ]
    together = [_all_ports_row(ports)] if len(ports) > 1 else []
    interfaces = [
        TrafficRow(
            "net",
            printable(each.name, 40),
            None,
            each.received_bytes_per_second,
            each.sent_bytes_per_second,
            each.received_bytes_total,
            each.sent_bytes_total,
        )
        for each in host.network_interfaces
    ]
    disks = [
        TrafficRow(
            "disk",
            printable(each.name, 40),
            None,
            each.read_bytes_per_second,
            each.written_bytes_per_second,
            each.read_bytes_total,
            each.written_bytes_total,
        )
        for each in host.disks
    ]
    return [*together, *interfaces, *disks, *ports]


def traffic_texts(host: Host) -> tuple[str, ...]:
    """Returns the total rates of EFA, network and disks, such as "net in 1.2 MB/s out 300.0 KB/s".

    Leaves out kinds that the host does not have.
    """
    rows = traffic_rows(host)
    texts = []
    for kind, into, out in (("EFA", "in", "out"), ("net", "in", "out"), ("disk", "read", "write")):
        of_kind = [row for row in rows if row.kind == kind and row.name != _ALL_PORTS]
        if of_kind:
            texts.append(
                f"{kind} {into} {units.byte_rate_text(sum_known(row.in_bytes_per_second for row in of_kind))} "
                f"{out} {units.byte_rate_text(sum_known(row.out_bytes_per_second for row in of_kind))}"
            )
    return tuple(texts)


def _all_ports_row(ports: list[TrafficRow]) -> TrafficRow:
    down = [port.state for port in ports if port.state not in ("ACTIVE", None)]
    state = f"{len(down)} down" if down else "ACTIVE" if any(port.state for port in ports) else None
    names = [field.name for field in fields(TrafficRow)[3:]]
    totals = {name: sum_known(getattr(port, name) for port in ports) for name in names}
    return TrafficRow("EFA", _ALL_PORTS, state, **totals)


def _state_style(row: TrafficRow) -> str:
    return "text" if row.state in (None, "ACTIVE") else "bad"


TRAFFIC_COLUMNS: tuple[TableColumn[TrafficRow], ...] = (
    TableColumn("", 4, 0, lambda row: row.kind, True, lambda _row: "label"),
    TableColumn("NAME", 14, 0, lambda row: row.name, True),
    TableColumn("STATE", 8, 4, lambda row: printable(row.state or "-", 20), True, _state_style),
    TableColumn("IN", 11, 0, lambda row: units.byte_rate_text(row.in_bytes_per_second)),
    TableColumn("OUT", 11, 0, lambda row: units.byte_rate_text(row.out_bytes_per_second)),
    TableColumn("IN TOTAL", 10, 1, lambda row: units.bytes_text(row.in_bytes_total)),
    TableColumn("OUT TOTAL", 10, 1, lambda row: units.bytes_text(row.out_bytes_total)),
    TableColumn("RDMA READ", 10, 3, lambda row: units.bytes_text(row.rdma_read_bytes_total)),
    TableColumn("RDMA WRITE", 10, 3, lambda row: units.bytes_text(row.rdma_write_bytes_total)),
    count_column("DROPS", 8, 5, lambda row: row.dropped_packets_total),
    TableColumn("RETRANSMIT", 10, 5, lambda row: units.bytes_text(row.retransmitted_bytes_total)),
    count_column("ERRORS", 8, 4, lambda row: row.error_total, lambda row: "bad" if row.error_total else "text"),
)
