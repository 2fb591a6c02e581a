"""The memory details: devices, their cores, loaded models with their ID, and the categories; a parent is the sum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

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
from neurontools.views.drawing.core_grid import heading
from neurontools.views.drawing.core_owner import owner_text
from neurontools.views.drawing.line import Line, Page, cell, fit, foreign, styled
from neurontools.views.drawing.scene import Scene, visible_top
from neurontools.views.drawing.style import SELECTED
from neurontools.views.entry import Entry
from neurontools.views.overview.memory_summary import DEVICE_CATEGORIES, FURTHER_CATEGORIES

_NUMBER_CELLS = 15
_ID_CELLS = 10
_LONGEST_NAME = 80  # numbers are to stand near their names, however wide the screen is


@dataclass(frozen=True, slots=True)
class Node:
    """One row of the tree."""

    key: str  # the way to it, "nd3/nc7/m4194305.10001"
    depth: int
    title: str
    device_index: int
    has_children: bool
    is_open: bool
    model_id: int | None = None
    device_bytes: int | None = None
    host_bytes: int | None = None
    is_running: bool = True
    is_model: bool = False


def nodes(scene: Scene) -> list[Node]:
    """The rows that are visible with the nodes that are open now."""
    cores_by_device: dict[int, list[LogicalNeuronCore]] = {}
    for core in scene.figures.cores:
        if scene.pid is None or scene.pid in core.owner_pids:
            cores_by_device.setdefault(core.device_index, []).append(core)
    models = _models_by_core(scene)
    rows: list[Node] = []
    for device_index, cores in cores_by_device.items():
        key = f"nd{device_index}"
        is_open = key in scene.opened
        host = [part.host_memory for core in cores for _, _, part in models.get(core.index, ())]
        rows.append(
            Node(
                key,
                0,
                f"ND {device_index}",
                device_index,
                True,
                is_open,
                device_bytes=sum_device_memory(part.memory for core in cores for part in core.cores).total_bytes,
                host_bytes=sum_host_memory(host).total_bytes if host else _told_host_bytes(scene, device_index),
            )
        )
        if is_open:
            for core in cores:
                rows += _core_rows(scene, key, core, models.get(core.index, []))
    return rows


def _told_host_bytes(scene: Scene, device_index: int) -> int | None:
    """Host memory where no models are known: as the driver counts it, which is by device and not by process."""
    if scene.snapshot.source is SourceKind.SIMULATED:
        return 0
    return scene.snapshot.devices[device_index].host_memory.total_bytes if scene.pid is None else None


def _no_host_bytes(scene: Scene) -> int | None:
    return 0 if scene.snapshot.source is SourceKind.SIMULATED else None


def every_key(scene: Scene) -> frozenset[str]:
    """The keys of all nodes that can be opened, for opening the whole tree."""
    keys = set()
    models = _models_by_core(scene)
    for core in scene.figures.cores:
        keys.add(f"nd{core.device_index}")
        keys.add(f"nd{core.device_index}/nc{core.index}")
        for process, model, _ in models.get(core.index, ()):
            keys.add(f"nd{core.device_index}/nc{core.index}/m{process.pid}.{model.model_id}")
    return frozenset(keys)


def tree_entries(scene: Scene, every: bool) -> list[Entry]:
    """What a search sees of the tree, with `every` node open or as it is."""
    rows = nodes(replace(scene, opened=every_key(scene))) if every else nodes(scene)
    return [Entry(row.key, f"{row.title} {row.model_id or ''}", within=tuple(_above(row.key))) for row in rows]


def _above(key: str) -> Iterator[str]:
    """The keys of the nodes that a node is in."""
    while key := key.rpartition("/")[0]:
        yield key


def _models_by_core(scene: Scene) -> dict[int, list[tuple[Process, LoadedModel, Subgraph]]]:
    """The parts of loaded models, by the logical core of the host's default LNC that they are on."""
    lnc = scene.snapshot.instance.logical_neuroncore_config or 1
    found: dict[int, list[tuple[Process, LoadedModel, Subgraph]]] = {}
    for process in scene.figures.processes(scene.pid):
        own_lnc = process.logical_neuroncore_config or lnc
        for model in process.models:
            for part in model.subgraphs:
                found.setdefault(part.neuroncore_index * own_lnc // lnc, []).append((process, model, part))
    return found


def _core_rows(
    scene: Scene, parent: str, core: LogicalNeuronCore, models: list[tuple[Process, LoadedModel, Subgraph]]
) -> Iterator[Node]:
    key = f"{parent}/nc{core.index}"
    is_open = key in scene.opened
    memory = core.memory
    host = sum_host_memory(part.host_memory for _, _, part in models).total_bytes if models else _no_host_bytes(scene)
    yield Node(
        key,
        1,
        f"NC {core.index}  {owner_text(scene.figures, core)}",
        core.device_index,
        True,
        is_open,
        device_bytes=memory.total_bytes,
        host_bytes=host,
    )
    if not is_open:
        return
    for process, model, part in models:
        model_key = f"{key}/m{process.pid}.{model.model_id}"
        model_open = model_key in scene.opened
        yield Node(
            model_key,
            2,
            f"{foreign(model.name)}{'' if model.running else ' (loaded, not running)'}",
            core.device_index,
            True,
            model_open,
            model_id=model.model_id,
            device_bytes=part.device_memory.total_bytes,
            host_bytes=part.host_memory.total_bytes,
            is_running=model.running,
            is_model=True,
        )
        if model_open:
            yield from _categories(
                model_key, 3, core.device_index, part.device_memory, part.host_memory, is_running=model.running
            )
    # What is not of a model: categories of the core less those of its models, so that the parent is their sum.
    rest = _without(memory, [part.device_memory for _, _, part in models])
    none = HostMemory() if scene.snapshot.source is SourceKind.SIMULATED else None
    yield from _categories(key, 2, core.device_index, rest, none)


def _without(memory: DeviceMemory, parts: list[DeviceMemory]) -> DeviceMemory:
    if not parts:
        return memory
    taken = sum_device_memory(parts)
    left = {}
    for field in fields(memory):
        value, part = getattr(memory, field.name), getattr(taken, field.name)
        if value is not None and part:
            left[field.name] = max(0, value - part)
    return replace(memory, **left)


def _categories(
    parent: str,
    depth: int,
    device_index: int,
    memory: DeviceMemory,
    host: HostMemory | None,
    *,
    is_running: bool = True,
) -> Iterator[Node]:
    of_host = memory_categories(host) if host is not None else {}
    for title, field in (*DEVICE_CATEGORIES, *FURTHER_CATEGORIES):
        value = getattr(memory, field)
        host_value = of_host.get(field, 0) if host is not None else None
        if (title, field) in FURTHER_CATEGORIES and not value:
            continue
        yield Node(
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


def folded_tree(scene: Scene, width: int) -> Line:
    """The heading that stands for the tree while it is folded."""
    processes = scene.figures.processes(scene.pid)
    models = [model for process in processes for model in process.models]
    devices = {index for process in processes for index in process.device_indices}
    of = f" of {len(scene.snapshot.devices)}" if scene.pid is None else ""
    what = f"{len(models)} model{'s' * (len(models) != 1)}"
    where = f"{len(devices)}{of} device{'s' * (bool(of) or len(devices) != 1)}"
    text = f"Memory Usage Details: {what} on {where}"
    return heading(scene, text, width, scene.key_hint("x opens"))


def memory_tree(scene: Scene, width: int, height: int) -> Page:
    """The tree in `height` lines, its heading included, scrolled to the scene's cursor."""
    rows = nodes(scene)
    name_cells = _name_cells(width)
    titles = (
        cell("Model ID", _ID_CELLS, right=True)
        + cell("Device Memory", _NUMBER_CELLS, right=True)
        + cell("Host Memory", _NUMBER_CELLS, right=True)
    )
    head = fit(heading(scene, "Memory Usage Details", name_cells - 1), name_cells)
    used = name_cells + len(titles)
    rest = f" {scene.glyphs.rule * (width - used - 1)}" if width > used else ""
    page = Page([fit((*head, (titles, "label"), (rest, "rule")), width)])
    if not rows:
        text = "  no device is in use by this process" if scene.pid is not None else "  no devices"
        page.add(fit(((text, "dim"),), width))
        return page
    height = max(1, height - 1)
    cursor = min(scene.cursor, len(rows) - 1)
    top = visible_top(cursor, scene.top, height, len(rows))
    lines = []
    for position in range(top, min(len(rows), top + height)):
        line = fit(_row(scene, rows[position], name_cells), width)
        lines.append(styled(line, SELECTED) if position == cursor else line)
    page.add_list(lines, len(rows), height, top)
    return page


def _name_cells(width: int) -> int:
    return max(10, min(_LONGEST_NAME, width - _ID_CELLS - 2 * _NUMBER_CELLS))


def _row(scene: Scene, node: Node, name_cells: int) -> Line:
    glyphs = scene.glyphs
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
