"""Memory sections of the overview page: totals by category, and the memory tree of devices, cores and models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from neurontools.model import (
    DeviceMemory,
    HostMemory,
    LoadedModel,
    LogicalNeuronCore,
    Process,
    SourceKind,
    Subgraph,
    memory_categories,
    sum_device_memory,
    sum_host_memory,
)
from neurontools.util import units
from neurontools.views.drawing.core_grid import owner_text
from neurontools.views.drawing.glyphs import Glyphs, bar, thin_bar
from neurontools.views.drawing.lines import Line, Run, TextPage, cell, fit, line_width, printable
from neurontools.views.drawing.render_context import RenderContext, SearchEntry, add_scrolled_list, heading

HOST_CATEGORIES = (
    ("Tensors", "tensors_bytes"),
    ("Constants", "constants_bytes"),
    ("DMA Buffers", "dma_buffers_bytes"),
    ("App. Memory", "application_memory_bytes"),
)
DEVICE_CATEGORIES = (
    ("Tensors", "tensors_bytes"),
    ("Constants", "constants_bytes"),
    ("Model Code", "model_code_bytes"),
    ("Runtime Memory", "runtime_memory_bytes"),
    ("Model Scratchpad", "model_shared_scratchpad_bytes"),
)
# Categories that only the driver reports. They are shown if not 0, so that the categories add up to the total.
FURTHER_CATEGORIES = (
    ("Collectives", "collectives_bytes"),
    ("DMA Rings", "dma_rings_bytes"),
    ("Driver Memory", "driver_memory_bytes"),
    ("Nonshared Scratchpad", "nonshared_scratchpad_bytes"),
    ("Notifications", "notifications_bytes"),
    ("Uncategorized", "uncategorized_bytes"),
)
_SHORT_NAMES = {
    "Constants": "Const",
    "DMA Buffers": "DMA",
    "App. Memory": "App",
    "Model Code": "Code",
    "Runtime Memory": "Runtime",
    "Model Scratchpad": "Scratch",
}
_BAR_CELLS = 24
_LEAST_CELLS_WITH_CATEGORIES = 60  # least width of a screen; narrower screens have no categories
_NUMBER_CELLS = 15
_ID_CELLS = 10
_LONGEST_NAME = 80  # most cells for names, which keeps the numbers near the names on wide screens


def memory_summary(context: RenderContext, width: int, height: int) -> TextPage:
    """Draws host and device memory by category: side by side with bars if they fit, else as text."""
    host = context.figures.host_memory(context.pid)
    device = context.figures.device_memory(context.pid)
    host_capacity_bytes = context.snapshot.host.memory_total_bytes
    device_capacity_bytes = sum(each.memory_bytes for each in context.snapshot.devices)
    glyphs = context.glyphs
    has_bars, lines = _summary_lines(host, device, host_capacity_bytes, device_capacity_bytes, width, height, glyphs)
    legend = f"{glyphs.full * 2} of the capacity, {glyphs.thin_full * 2} share of the total, " if has_bars else ""
    capacity, hint = _capacity_text(context, device_capacity_bytes), context.key_hint(", x: details")
    about = next(
        (text for text in (legend + capacity + hint, legend.removesuffix(", ") + hint) if len(text) + 26 <= width), hint
    )
    return TextPage([heading(context, "Memory Usage Summary", width, about.removeprefix(", ")), *lines])


@lru_cache(16)
def _summary_lines(
    host: HostMemory,
    device: DeviceMemory,
    host_capacity_bytes: int | None,
    device_capacity_bytes: int,
    width: int,
    height: int,
    glyphs: Glyphs,
) -> tuple[bool, tuple[Line, ...]]:
    """Returns whether bars fit, and the lines. Cached, because the memory of most jobs changes seldom."""
    host_rows = category_rows("Host Used Memory", host, HOST_CATEGORIES)
    device_rows = category_rows("Device Used Memory", device, DEVICE_CATEGORIES)
    lines: list[Line] = []
    if height > len(device_rows) and width >= 80:
        half = width // 2
        for position in range(max(len(host_rows), len(device_rows))):
            left = _category_runs(host_rows, position, host_capacity_bytes, half, glyphs)
            right = _category_runs(device_rows, position, device_capacity_bytes, width - half, glyphs)
            lines.append(fit((*left, *right), width))
        return True, tuple(lines)
    for rows in (host_rows, device_rows):
        title, total = rows[0]
        runs: list[Run] = [(f"{title:<19}", "text"), ("Total ", "dim"), (units.bytes_text(total), "strong")]
        used = line_width(runs)
        for name, value in rows[1:] if width >= _LEAST_CELLS_WITH_CATEGORIES else ():
            item: list[Run] = [(f"  {_SHORT_NAMES.get(name, name)} ", "dim"), (units.bytes_text(value), "text")]
            if used + line_width(item) > width:
                lines.append(fit(runs, width))
                runs, used = [(" " * 17, "text")], 17
            runs += item
            used += line_width(item)
        lines.append(fit(runs, width))
    return False, tuple(lines)


def memory_line(context: RenderContext, width: int) -> Line:
    host, device = context.figures.host_memory(context.pid), context.figures.device_memory(context.pid)
    capacity = sum(each.memory_bytes for each in context.snapshot.devices)
    used = f"{units.bytes_text(device.total_bytes)} of {units.memory_size_text(capacity)}"
    runs: list[Run] = [("Memory  ", "label"), ("host ", "dim"), (units.bytes_text(host.total_bytes), "text")]
    return fit((*runs, ("  devices ", "dim"), (used, "text")), width)


def category_rows(
    title: str, memory: HostMemory | DeviceMemory, categories: tuple[tuple[str, str], ...]
) -> list[tuple[str, int | None]]:
    """Returns the total, named `title`, then the bytes of each category, and of others if there are any."""
    rows: list[tuple[str, int | None]] = [(title, memory.total_bytes)]
    rows += [(name, getattr(memory, field)) for name, field in categories]
    other = (memory.total_bytes or 0) - sum(getattr(memory, field) or 0 for _, field in categories)
    return [*rows, ("Other", other)] if other else rows


def _category_runs(
    rows: list[tuple[str, int | None]], position: int, capacity_bytes: int | None, width: int, glyphs: Glyphs
) -> tuple[Run, ...]:
    """Draws a row: the total as a share of the capacity, or a category as a share of the total."""
    if position >= len(rows):
        return fit((), width)
    name, value = rows[position]
    label = f"{name} Total" if not position else f"  {name}"
    room = min(_BAR_CELLS, width - 25 - 12 - 2)
    whole = rows[0][1] if position else capacity_bytes
    share = value / whole if value is not None and whole else None
    runs: list[Run] = [(f"{label:<25}", "text" if position else "strong")]
    runs += thin_bar(share, room, glyphs) if position else bar(share, room, glyphs, "memory")
    runs.append((f" {units.bytes_text(value):>10} ", "text" if position else "strong"))
    return fit(runs, width)


def _capacity_text(context: RenderContext, device_capacity_bytes: int) -> str:
    host = context.snapshot.host
    used, total = units.bytes_text(host.memory_used_bytes), units.memory_size_text(host.memory_total_bytes)
    swap = ""
    if host.swap_used_bytes:
        swap = f"swap {units.bytes_text(host.swap_used_bytes)} of {units.bytes_text(host.swap_total_bytes)}, "
    return f"system {used} of {total}, {swap}devices have {units.memory_size_text(device_capacity_bytes)}"


@dataclass(frozen=True, slots=True)
class MemoryNode:
    """A row of the memory tree: a device, core, model or memory category."""

    key: str  # path of the node, such as "nd3/nc7/m4194305.10001"
    depth: int
    title: str
    device_index: int
    has_children: bool
    is_open: bool
    model_id: int | None = None  # ID of the model; None if the node is not a model
    device_bytes: int | None = None
    host_bytes: int | None = None
    is_running: bool = True


def visible_nodes(context: RenderContext) -> list[MemoryNode]:
    """Returns the visible rows of the memory tree, which excludes rows inside folded nodes."""
    cores_by_device: dict[int, list[LogicalNeuronCore]] = {}
    for core in context.figures.cores:
        if context.pid is None or context.pid in core.owner_pids:
            cores_by_device.setdefault(core.device_index, []).append(core)
    models = _models_by_core(context)
    rows: list[MemoryNode] = []
    for device_index, cores in cores_by_device.items():
        key = f"nd{device_index}"
        is_open = key in context.opened
        host = [part.host_memory for core in cores for _, _, part in models.get(core.index, ())]
        rows.append(
            MemoryNode(
                key,
                0,
                f"ND {device_index}",
                device_index,
                True,
                is_open,
                device_bytes=sum_device_memory(part.memory for core in cores for part in core.cores).total_bytes,
                host_bytes=sum_host_memory(host).total_bytes if host else _driver_host_bytes(context, device_index),
            )
        )
        if is_open:
            for core in cores:
                rows += _core_nodes(context, key, core, models.get(core.index, []))
    return rows


def _driver_host_bytes(context: RenderContext, device_index: int) -> int | None:
    """Returns the host memory that the driver counts for a device; 0 on simulated devices.

    Returns None if the tab shows a single process, because the driver does not count by process.
    """
    if context.snapshot.source is SourceKind.SIMULATED:
        return 0
    return context.snapshot.devices[device_index].host_memory.total_bytes if context.pid is None else None


def all_node_keys(context: RenderContext) -> frozenset[str]:
    """Returns the keys of all nodes of the memory tree that can be unfolded."""
    keys = set()
    models = _models_by_core(context)
    for core in context.figures.cores:
        keys.add(f"nd{core.device_index}")
        keys.add(f"nd{core.device_index}/nc{core.index}")
        for process, model, _ in models.get(core.index, ()):
            keys.add(f"nd{core.device_index}/nc{core.index}/m{process.pid}.{model.model_id}")
    return frozenset(keys)


def tree_entries(context: RenderContext, every: bool) -> list[SearchEntry]:
    """Returns the rows of the memory tree as search entries. `every` includes rows inside folded nodes."""
    rows = visible_nodes(replace(context, opened=all_node_keys(context))) if every else visible_nodes(context)
    return [SearchEntry(row.key, f"{row.title} {row.model_id or ''}", within=_ancestor_keys(row.key)) for row in rows]


def _ancestor_keys(key: str) -> tuple[str, ...]:
    """Returns the keys of all ancestors of a node of the memory tree, nearest first."""
    parent = key.rpartition("/")[0]
    return (parent, *_ancestor_keys(parent)) if parent else ()


def _models_by_core(context: RenderContext) -> dict[int, list[tuple[Process, LoadedModel, Subgraph]]]:
    """Maps the index of each logical core, under the host's default LNC, to the model parts loaded on the core."""
    lnc = context.snapshot.instance.logical_neuroncore_config or 1
    found: dict[int, list[tuple[Process, LoadedModel, Subgraph]]] = {}
    for process in context.figures.tab_processes(context.pid):
        own_lnc = process.logical_neuroncore_config or lnc
        for model in process.models:
            for part in model.subgraphs:
                found.setdefault(part.neuroncore_index * own_lnc // lnc, []).append((process, model, part))
    return found


def _core_nodes(
    context: RenderContext, parent: str, core: LogicalNeuronCore, models: list[tuple[Process, LoadedModel, Subgraph]]
) -> Iterator[MemoryNode]:
    key = f"{parent}/nc{core.index}"
    is_open = key in context.opened
    memory = core.memory
    none = HostMemory() if context.snapshot.source is SourceKind.SIMULATED else None
    host = sum_host_memory(part.host_memory for _, _, part in models) if models else none
    yield MemoryNode(
        key,
        1,
        f"NC {core.index}  {owner_text(context.figures, core)}",
        core.device_index,
        True,
        is_open,
        device_bytes=memory.total_bytes,
        host_bytes=None if host is None else host.total_bytes,
    )
    if not is_open:
        return
    for process, model, part in models:
        model_key = f"{key}/m{process.pid}.{model.model_id}"
        model_open = model_key in context.opened
        yield MemoryNode(
            model_key,
            2,
            f"{printable(model.name)}{'' if model.running else ' (loaded, not running)'}",
            core.device_index,
            True,
            model_open,
            model_id=model.model_id,
            device_bytes=part.device_memory.total_bytes,
            host_bytes=part.host_memory.total_bytes,
            is_running=model.running,
        )
        if model_open:
            yield from _category_nodes(
                model_key, 3, core.device_index, part.device_memory, part.host_memory, is_running=model.running
            )
    # Subtracts the models' memory from each category of the core, so that the children add up to the core's memory.
    rest = _subtract_memory(memory, [part.device_memory for _, _, part in models])
    yield from _category_nodes(key, 2, core.device_index, rest, none)


def _subtract_memory(memory: DeviceMemory, parts: list[DeviceMemory]) -> DeviceMemory:
    if not parts:
        return memory
    subtrahend = sum_device_memory(parts)
    left = {}
    for field in fields(memory):
        value, part = getattr(memory, field.name), getattr(subtrahend, field.name)
        if value is not None and part:
            left[field.name] = max(0, value - part)
    return replace(memory, **left)


def _category_nodes(
    parent: str,
    depth: int,
    device_index: int,
    memory: DeviceMemory,
    host: HostMemory | None,
    *,
    is_running: bool = True,
) -> Iterator[MemoryNode]:
    of_host = memory_categories(host) if host is not None else {}
    for title, field in (*DEVICE_CATEGORIES, *FURTHER_CATEGORIES):
        value = getattr(memory, field)
        host_value = of_host.get(field, 0) if host is not None else None
        if (title, field) in FURTHER_CATEGORIES and not value:
            continue
        yield MemoryNode(
            f"{parent}/{field}",
            depth,
            title,
            device_index,
            False,
            False,
            device_bytes=value,
            host_bytes=host_value,
            is_running=is_running,
        )


def memory_tree(context: RenderContext, width: int, height: int) -> TextPage:
    """Draws the memory tree with its heading in `height` lines, scrolled to the cursor."""
    rows = visible_nodes(context)
    name_cells = max(10, min(_LONGEST_NAME, width - _ID_CELLS - 2 * _NUMBER_CELLS))
    titles = (
        cell("Model ID", _ID_CELLS, right=True)
        + cell("Device Memory", _NUMBER_CELLS, right=True)
        + cell("Host Memory", _NUMBER_CELLS, right=True)
    )
    head = fit(heading(context, "Memory Usage Details", name_cells - 1), name_cells)
    page = TextPage([fit((*head, (titles, "label"), (f" {context.glyphs.rule * width}", "rule")), width)])
    if not rows:
        text = "  no device is in use by this process" if context.pid is not None else "  no devices"
        page.add_lines(fit(((text, "dim"),), width))
        return page
    add_scrolled_list(
        context,
        page,
        len(rows),
        height - 1,
        lambda position: fit(_node_line(context, rows[position], name_cells), width),
    )
    return page


def _node_line(context: RenderContext, node: MemoryNode, name_cells: int) -> Line:
    glyphs = context.glyphs
    mark = (glyphs.opened if node.is_open else glyphs.closed) if node.has_children else glyphs.leaf
    style = "text" if node.is_running else "dim"
    name = "  " * node.depth + mark + node.title
    identity = str(node.model_id) if node.model_id is not None else ""
    return (
        (cell(name, name_cells), style if node.depth else "strong"),
        (cell(identity, _ID_CELLS, right=True), style),
        (cell(units.bytes_text(node.device_bytes), _NUMBER_CELLS, right=True), style),
        (cell(units.bytes_text(node.host_bytes), _NUMBER_CELLS, right=True), style),
    )
