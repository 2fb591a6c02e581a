"""The memory summary: host and device memory of what the tab shows, by category."""

from __future__ import annotations

from neurontools.model import DeviceMemory, HostMemory
from neurontools.util import units
from neurontools.views.drawing.core_grid import heading
from neurontools.views.drawing.gauge import bar
from neurontools.views.drawing.line import Line, Page, Run, fit, line_width
from neurontools.views.drawing.scene import Scene

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
# Known to the driver alone; shown when there is something in them, or the sums would not add up.
FURTHER_CATEGORIES = (
    ("Collectives", "collectives_bytes"),
    ("DMA Rings", "dma_rings_bytes"),
    ("Driver Memory", "driver_memory_bytes"),
    ("Nonshared Scratchpad", "nonshared_scratchpad_bytes"),
    ("Notifications", "notifications_bytes"),
    ("Uncategorized", "uncategorized_bytes"),
)
_BAR_CELLS = 24
_LEAST_CELLS_WITH_CATEGORIES = 60  # below it the sums have no categories


def memory_summary(scene: Scene, width: int, height: int) -> Page:
    """Both sums with their categories: in two columns of a category a line if there is room, else in two lines each."""
    host = scene.figures.host_memory(scene.pid)
    device = scene.figures.device_memory(scene.pid)
    page = Page([heading(scene, "Memory Usage Summary", width, _capacity(scene))])
    host_rows = _rows("Host Used Memory", host, HOST_CATEGORIES)
    device_rows = _rows("Device Used Memory", device, DEVICE_CATEGORIES)
    if height > len(device_rows) and width >= 80:
        half = width // 2
        for position in range(max(len(host_rows), len(device_rows))):
            left = _row(scene, host_rows, position, host.total_bytes, half)
            page.add(fit((*left, *_row(scene, device_rows, position, device.total_bytes, width - half)), width))
        return page
    for rows in (host_rows, device_rows):
        title, total = rows[0]
        runs: list[Run] = [(f"{title:<19}", "text"), ("Total ", "dim"), (units.bytes_text(total), "strong")]
        used = line_width(runs)
        for name, value in rows[1:] if width >= _LEAST_CELLS_WITH_CATEGORIES else ():
            item: list[Run] = [("  " + _short(name) + " ", "dim"), (units.bytes_text(value), "text")]
            if used + line_width(item) > width and used > 19:
                page.add(fit(runs, width))
                runs, used = [(" " * 17, "text")], 17
            runs += item
            used += line_width(item)
        page.add(fit(runs, width))
    return page


def memory_text(scene: Scene, width: int) -> Line:
    """Both sums in one line."""
    host, device = scene.figures.host_memory(scene.pid), scene.figures.device_memory(scene.pid)
    capacity = sum(each.memory_bytes for each in scene.snapshot.devices)
    used = f"{units.bytes_text(device.total_bytes)} of {units.memory_size_text(capacity)}"
    runs: list[Run] = [("Memory  ", "label"), ("host ", "dim"), (units.bytes_text(host.total_bytes), "text")]
    return fit((*runs, ("  devices ", "dim"), (used, "text")), width)


def _short(name: str) -> str:
    return {
        "Tensors": "Tensors",
        "Constants": "Const",
        "DMA Buffers": "DMA",
        "App. Memory": "App",
        "Model Code": "Code",
        "Runtime Memory": "Runtime",
        "Model Scratchpad": "Scratch",
    }.get(name, name)


def _rows(
    title: str, memory: HostMemory | DeviceMemory, categories: tuple[tuple[str, str], ...]
) -> list[tuple[str, int | None]]:
    rows: list[tuple[str, int | None]] = [(title, memory.total_bytes)]
    rows += [(name, getattr(memory, field)) for name, field in categories]
    if other := _others(memory, categories):
        rows.append(("Other", other))
    return rows


def _others(memory: HostMemory | DeviceMemory, categories: tuple[tuple[str, str], ...]) -> int:
    known = sum(getattr(memory, field) or 0 for _, field in categories)
    return (memory.total_bytes or 0) - known


def _row(
    scene: Scene, rows: list[tuple[str, int | None]], position: int, total: int | None, width: int
) -> tuple[Run, ...]:
    if position >= len(rows):
        return fit((), width)
    name, value = rows[position]
    label = f"{name} Total" if not position else f"  {name}"
    room = max(0, min(_BAR_CELLS, width - 25 - 12 - 2))
    share = value / total if value is not None and total else None
    runs: list[Run] = [(f"{label:<25}", "text" if position else "strong")]
    runs += bar(share if position else _used_share(scene, rows), room, scene.glyphs, "memory")
    runs.append((f" {units.bytes_text(value):>10} ", "text" if position else "strong"))
    return fit(runs, width)


def _used_share(scene: Scene, rows: list[tuple[str, int | None]]) -> float | None:
    """The total as a share of what there is."""
    title, value = rows[0]
    if value is None:
        return None
    if title.startswith("Host"):
        capacity = scene.snapshot.host.memory_total_bytes
    else:
        capacity = sum(device.memory_bytes for device in scene.snapshot.devices)
    return value / capacity if capacity else None


def _capacity(scene: Scene) -> str:
    host = scene.snapshot.host
    device = sum(device.memory_bytes for device in scene.snapshot.devices)
    used, of = units.bytes_text(host.memory_used_bytes), units.memory_size_text(host.memory_total_bytes)
    return f"system {used} of {of}, devices have {units.memory_size_text(device)}"
