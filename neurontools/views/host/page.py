"""The page of the host, from what is asked for most to what is asked for least."""

from __future__ import annotations

from neurontools.model import Host
from neurontools.util import units
from neurontools.util.version import __version__
from neurontools.views.drawing.columns import chosen, row_line, title_line
from neurontools.views.drawing.core_grid import heading
from neurontools.views.drawing.gauge import bar
from neurontools.views.drawing.line import Line, Page, Run, fact, fit, foreign
from neurontools.views.drawing.scene import Scene, visible_top
from neurontools.views.entry import Entry
from neurontools.views.host.traffic import COLUMNS, traffic_rows
from neurontools.views.host.vcpus import vcpu_lines

_LABEL_CELLS = 12
_LEAST_TABLE_LINES = 4
_POWER_CELLS = 30  # "ND15 ########.... 45.0% (40-51)"


def host_page(scene: Scene, width: int, height: int) -> Page:
    """Versions and cost, vCPUs and memory, power of devices, then the table of what goes in and out."""
    page = Page([heading(scene, "Host", width, foreign(scene.snapshot.instance.instance_type, 40))])
    page.add(*_facts(scene, width))
    power = _power_lines(scene, width)
    room = height - len(page.lines) - _LEAST_TABLE_LINES
    page.append(_vcpus(scene, width, max(1, (room - len(power)) * 2 // 3)))
    if power and height - len(page.lines) - len(power) - 1 >= _LEAST_TABLE_LINES:
        page.add(heading(scene, "Power of devices", width, "of their maximum, in the last full minute (least-most)"))
        page.add(*power)
    page.append(_traffic(scene, width, height - len(page.lines)))
    return page


def _facts(scene: Scene, width: int) -> list[Line]:
    snapshot = scene.snapshot
    runtimes = sorted({known for process in snapshot.processes if (known := process.runtime_version)})
    versions = (
        f"driver {foreign(snapshot.instance.driver_version or '-', 40)}, "
        f"runtime {foreign(', '.join(runtimes) or '-', 80)}, "
        f"neurond {foreign(snapshot.daemon_version or '-', 40)}, neuron-top {__version__}, "
        "firmware - (the driver tells none)"
    )
    own = scene.own_cost
    cost = f"neurond {_cost(snapshot.daemon_vcpu_ratio, snapshot.daemon_resident_bytes)}"
    if own is not None:
        cost = f"neuron-top {_cost(own.vcpu_ratio, own.resident_bytes)}, {cost}"
    return [
        _fact("versions", versions, width),
        _fact("own cost", cost, width),
        *_memory(scene, snapshot.host, width),
    ]


def _cost(vcpu_ratio: float | None, resident_bytes: int | None) -> str:
    return f"{units.percent_text(vcpu_ratio)} CPU and {units.bytes_text(resident_bytes)}"


def _fact(name: str, text: str, width: int) -> Line:
    return fact(name, text, width, _LABEL_CELLS - 2)


def _memory(scene: Scene, host: Host, width: int) -> list[Line]:
    lines = []
    for name, used, size in (
        ("memory", host.memory_used_bytes, host.memory_total_bytes),
        ("swap", host.swap_used_bytes, host.swap_total_bytes),
    ):
        if name == "swap" and not size:
            continue
        ratio = used / size if used is not None and size else None
        figure = f" {units.bytes_text(used)} of {units.bytes_text(size)}"
        runs: list[Run] = [(f" {name:<{_LABEL_CELLS - 1}}", "label")]
        runs += bar(ratio, max(0, min(60, width - _LABEL_CELLS - len(figure) - 1)), scene.glyphs)
        lines.append(fit((*runs, (figure, "text")), width))
    return lines


def _vcpus(scene: Scene, width: int, height: int) -> Page:
    host = scene.snapshot.host
    average = host.vcpu_average
    used = None if average is None else 1.0 - average.idle_ratio
    switches = units.count_text(host.context_switches_total)
    text = f"vCPUs: {'-' if host.vcpu_count is None else host.vcpu_count}, {units.percent_text(used, 1)} in use"
    page = Page([heading(scene, text, width, f"{switches} context switches")])
    page.add(*vcpu_lines(scene, width, height - 1))
    return page


def _power_lines(scene: Scene, width: int) -> list[Line]:
    known = [(device.index, device.power) for device in scene.snapshot.devices if device.power is not None]
    if not known:
        return []
    across = max(1, width // _POWER_CELLS)
    cells = width // across
    lines = []
    for first in range(0, len(known), across):
        runs: list[Run] = []
        for index, power in known[first : first + across]:
            least, most = power.minimum_ratio * 100, power.maximum_ratio * 100
            figure = f" {power.average_ratio * 100:5.1f}% ({least:.0f}-{most:.0f})"
            part: list[Run] = [(f" ND{index:<3}", "label")]
            part += bar(power.average_ratio, max(0, cells - 6 - len(figure) - 1), scene.glyphs)
            runs += fit((*part, (figure, "text")), cells)
        lines.append(fit(runs, width))
    return lines


def traffic_entries(scene: Scene) -> list[Entry]:
    """What a search sees of network, disks and EFA."""
    rows = traffic_rows(scene.snapshot.host)
    return [Entry(str(number), f"{row.kind} {row.name} {row.state or ''}") for number, row in enumerate(rows)]


def _traffic(scene: Scene, width: int, height: int) -> Page:
    rows = traffic_rows(scene.snapshot.host)
    page = Page([heading(scene, "Network, disks, EFA", width)])
    if not rows:
        page.add(fit((("   the daemon tells of none", "dim"),), width))
        return page
    columns = chosen(COLUMNS, width)
    page.add(title_line(columns, width))
    list_height = max(1, height - len(page.lines))
    top = visible_top(min(max(0, scene.cursor), len(rows) - 1), scene.top, list_height, len(rows))
    shown = rows[top : top + list_height]
    page.add_list([row_line(columns, row, width) for row in shown], len(rows), list_height, top)
    return page
