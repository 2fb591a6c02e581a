"""The topology page: devices, the NeuronLink connections between them, and their distances in hops."""

from __future__ import annotations

from functools import lru_cache

from neurontools.catalog.topology import Topology, TopologyKind, kind_of
from neurontools.model.health import sentence
from neurontools.util import units
from neurontools.util.units import ranges_text
from neurontools.views.drawing.core_grid import owner_text
from neurontools.views.drawing.glyphs import bar, memory_style
from neurontools.views.drawing.heat_scale import load_style
from neurontools.views.drawing.lines import (
    SELECTED,
    ClickTarget,
    Line,
    Run,
    TextPage,
    cell,
    fit,
    fit_marked,
    labelled_line,
    styled,
)
from neurontools.views.drawing.render_context import RenderContext, heading
from neurontools.views.topology_picture import device_links_text, ultraserver_text

_BOX_CELLS, _ROOMY_BOX_CELLS = 14, 16
_WIDEST_BOX_CELLS = 72
_LINK_CELLS = 2
_KIND_NAMES = {
    TopologyKind.RING: "ring",
    TopologyKind.LINE: "line",
    TopologyKind.SINGLE: "single device",
}


class DeviceArrangement:
    """Positions of the devices on the topology page: `rows` lists the indices of the devices in each row."""

    def __init__(self, links: tuple[tuple[int, ...], ...], width: int) -> None:
        self.links = links
        kind = kind_of(links)
        self.topology = Topology(kind, links) if kind is not None else None
        shape = self.topology.grid_shape() if self.topology is not None else None
        count = len(links)
        self.is_torus = shape is not None
        if shape is not None:
            self.name = f"{shape[0]}x{shape[1]} 2D torus"
            self.rows = [list(range(row * shape[1], (row + 1) * shape[1])) for row in range(shape[0])]
            return
        irregular = "irregular links" if any(links) else "no links"
        self.name = irregular if kind is None else _KIND_NAMES[kind]
        order = list(range(count))
        if kind is TopologyKind.RING and self.topology is not None:
            order = list(self.topology.rings()[0])
        columns = max(1, min(count, (width - 4) // (_BOX_CELLS + _LINK_CELLS), 4))
        self.rows = [order[start : start + columns] for start in range(0, count, columns)]

    def hops(self, start: int, end: int) -> int | None:
        """Returns the number of links on a shortest path between two devices; None without a path."""
        if self.topology is not None:
            return self.topology.hops(start, end)
        return _hops_from(self.links, start)[end]

    def position(self, device: int) -> tuple[int, int]:
        """Returns row and column of a device on the page."""
        found = ((row, devices.index(device)) for row, devices in enumerate(self.rows) if device in devices)
        return next(found, (0, 0))


@lru_cache(64)
def _hops_from(links: tuple[tuple[int, ...], ...], start: int) -> tuple[int | None, ...]:
    found: list[int | None] = [None] * len(links)
    found[start] = 0
    edge = [start]
    while edge:
        following = []
        for device in edge:
            for other in links[device]:
                if 0 <= other < len(links) and found[other] is None:
                    found[other] = (found[device] or 0) + 1
                    following.append(other)
        edge = following
    return tuple(found)


_cached_arrangement = lru_cache(16)(DeviceArrangement)


def arrange_devices(context: RenderContext, width: int = 200) -> DeviceArrangement:
    """Returns the positions of all devices on the topology page. Ignores links to devices that do not exist."""
    count = len(context.snapshot.devices)
    links = tuple(
        tuple(other for other in device.connected_to if 0 <= other < count) for device in context.snapshot.devices
    )
    return _cached_arrangement(links, width)


def neighbour_in_direction(context: RenderContext, device: int, direction: str) -> int:
    """Returns the next device in a direction ("up", "down", "left" or "right"); wraps around at the edges."""
    arrangement = arrange_devices(context)
    rows = arrangement.rows
    if not rows:
        return 0
    row, column = arrangement.position(device)
    step = 1 if direction in ("down", "right") else -1
    if direction in ("up", "down"):
        row = (row + step) % len(rows)
        return rows[row][min(column, len(rows[row]) - 1)]
    if arrangement.is_torus:
        return rows[row][(column + step) % len(rows[row])]
    flat = [index for devices in rows for index in devices]
    return flat[(flat.index(device) + step) % len(flat)]


def topology_page(context: RenderContext, width: int, height: int) -> TextPage:
    """Draws the topology page: the devices with their links, and the details of the selected device."""
    plan = arrange_devices(context, width)
    quantity = "memory" if context.colour_by == "memory" else "utilization"
    page = TextPage(
        [heading(context, f"NeuronLink: {plan.name}, coloured by {quantity}", width, context.key_hint("c: colour"))]
    )
    place = ultraserver_text(context.snapshot.instance)
    if place and height > len(plan.rows) * 3 + 3 + 6:
        page.add_lines(fit(((f" {place}", "text"),), width))
    if not context.snapshot.devices:
        page.add_lines(fit((("  no devices", "dim"),), width))
        return page
    page.list_count, page.list_height = len(context.snapshot.devices), 1
    columns = max(len(row) for row in plan.rows)
    box = min(_WIDEST_BOX_CELLS, max(_BOX_CELLS, (width - 6) // columns - _LINK_CELLS))
    is_roomy = len(plan.rows) * 3 + 3 + 5 <= height
    if plan.is_torus and is_roomy:
        page.add_lines(_vertical_links(plan, box, width, "*"))
    for number, devices in enumerate(plan.rows):
        if number and is_roomy:
            links = _vertical_links(plan, box, width, context.glyphs.vertical)
            page.add_lines(links if plan.is_torus else fit((), width))
        _add_device_row(context, plan, page, number, devices, box, width)
        if is_roomy:
            page.add_lines(_bar_line(context, devices, box, width))
    if plan.is_torus and is_roomy:
        page.add_lines(_vertical_links(plan, box, width, "*"))
    page.add_lines(*_device_lines(context, plan, width, height - len(page.lines)))
    return page


def _vertical_links(plan: DeviceArrangement, box: int, width: int, mark: str) -> Line:
    text = "   " + "".join(mark.center(box) + " " * _LINK_CELLS for _ in plan.rows[0])
    return fit_marked(((text, "dim"),), width)


def _add_device_row(
    context: RenderContext,
    plan: DeviceArrangement,
    page: TextPage,
    number: int,
    devices: list[int],
    box: int,
    width: int,
) -> None:
    link = context.glyphs.horizontal
    linked = any(plan.links)
    is_ring = plan.topology is not None and plan.topology.kind is TopologyKind.RING
    is_first, is_last = number == 0, number == len(plan.rows) - 1
    end = "*" if plan.is_torus or (is_ring and is_first) else " "
    begins_linked = end == "*" or (linked and not is_first)
    runs: list[Run] = [(f" {end}{link[:1] if begins_linked else ' '}", "dim")]
    left = 3
    for position, device in enumerate(devices):
        if position:
            is_linked = device in plan.links[devices[position - 1]]
            runs.append((link if is_linked else "  ", "dim"))
            left += _LINK_CELLS
        runs += _device_box(context, plan, device, box)
        page.targets.append(ClickTarget(len(page.lines), left, left + box, "device", str(device)))
        left += box
    if plan.is_torus or (is_ring and is_last):
        runs.append((f"{link[:1]}*", "dim"))
    elif linked and not is_last:
        runs.append((link[:1], "dim"))
    page.add_lines(fit_marked(runs, width))


def _device_box(context: RenderContext, plan: DeviceArrangement, device: int, box: int) -> list[Run]:
    """Draws a device such as `[ND5 91.2% 1h]`: utilization or memory use, and hops from the selected device."""
    ratio = _shown_ratio(context, device)
    hops = plan.hops(context.device_index, device)
    is_chosen = device == context.device_index
    style = _ratio_style(context, ratio)
    is_missing = device in context.figures.missing_devices
    if is_missing:
        style = "bad"
    elif _cores_of_tab(context, device):
        style = "mine"
    elif hops == 1:
        style = "lit"
    figure = units.percent_text(ratio, 0 if box < 18 else 1)
    if is_missing:
        figure = "missing" if box >= 18 else context.glyphs.bad
    far = "--" if hops is None else ("here" if is_chosen and box >= 18 else f"{hops}h")
    text = f"ND{device:<2} {figure:>{6 if box >= _ROOMY_BOX_CELLS else 4}}"
    inner = cell(text, box - 2 - len(far) - 1) + " " + far
    run = (f"[{cell(inner, box - 2)}]", style)
    return list(styled((run,), SELECTED)) if is_chosen else [run]


def _bar_line(context: RenderContext, devices: list[int], box: int, width: int) -> Line:
    runs: list[Run] = [("   ", "text")]
    for position, device in enumerate(devices):
        if position:
            runs.append((" " * _LINK_CELLS, "text"))
        core_texts = _cores_of_tab(context, device)
        if core_texts:
            runs.append((cell(f" NC {ranges_text(core_texts)}", box), "good"))
            continue
        ratio = _shown_ratio(context, device)
        runs += [(" ", "text"), *bar(ratio, box - 2, context.glyphs, _ratio_style(context, ratio)), (" ", "text")]
    return fit_marked(runs, width)


def _cores_of_tab(context: RenderContext, device: int) -> list[int]:
    """Returns the logical cores of a device that the current tab's process holds."""
    cores = (core for core in context.figures.cores if core.device_index == device)
    return [core.index for core in cores if context.pid in core.owner_pids]


def _shown_ratio(context: RenderContext, device: int) -> float | None:
    if context.colour_by == "memory":
        return context.figures.memory_ratio(device)
    return context.figures.device_utilization[device]


def _ratio_style(context: RenderContext, ratio: float | None) -> str:
    if context.colour_by == "memory":
        return memory_style(ratio)
    if ratio is None:
        return "dim"
    return load_style(ratio, context.thresholds.idle_below_ratio)


def _device_lines(context: RenderContext, plan: DeviceArrangement, width: int, height: int) -> list[Line]:
    if height <= 0:
        return []
    index = context.device_index
    device = context.snapshot.devices[index]
    is_missing = index in context.figures.missing_devices
    where = "missing" if is_missing else f"BDF {device.bdf or '-'}, NUMA {device.numa_node or '-'}"
    lines: list[Line] = [heading(context, f"ND {index}", width, where)]
    by_hops: dict[int, list[int]] = {}
    for other in range(len(context.snapshot.devices)):
        if hops := plan.hops(index, other):
            by_hops.setdefault(hops, []).append(other)
    reach = "  ".join(
        f"{hops} hop{'s' if hops > 1 else ''}: {ranges_text(others)}" for hops, others in sorted(by_hops.items())
    )
    used, size = units.bytes_text(context.figures.device_used_bytes[index]), units.memory_size_text(device.memory_bytes)
    node = context.snapshot.instance.ultraserver_node
    other_nodes = "" if node is None else device_links_text(node, device.index)
    rows: list[tuple[str, str, str]] = [
        ("hops", reach or "no links to other devices", "text"),
        *([("nodes", other_nodes, "text")] if other_nodes else []),
        ("memory", f"{used} of {size} ({units.percent_text(context.figures.memory_ratio(index))})", "text"),
    ]
    for verdict in context.verdicts:
        if verdict.device_index == index:
            rows += [
                ("health", f"{sentence(finding, context.snapshot)}; {finding.action}", "warn")
                for finding in verdict.findings[:2]
            ]
    for core in context.figures.cores:
        if core.device_index == index:
            busy, flops = units.percent_text(core.utilization_ratio), units.flops_text(core.flops_per_second)
            text = f"{busy:>8}  {flops:>12}  {owner_text(context.figures, core)}"
            rows.append((f"NC {core.index}", text, "dim" if core.is_free else "text"))
    if device.inferred_fields:
        rows.append(("inferred", ", ".join(device.inferred_fields), "dim"))
    return lines + [labelled_line(name, text, width, 8, style) for name, text, style in rows[: height - 1]]
