"""The NeuronCore grid: a bar for each core, a row or a part of one for each device, for 1 to 128 cores."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.model import LogicalNeuronCore
from neurontools.text import units
from neurontools.views.drawing.gauge import bar, sparkline
from neurontools.views.drawing.line import BLANK, Line, Page, Run, Target, fit, styled
from neurontools.views.drawing.scene import Scene
from neurontools.views.drawing.style import SELECTED

_LABEL_CELLS = 5  # "ND15 "
_BAR_CELL = 16  # from here on a core has a bar and its figure in brackets
_TEXT_CELL = 5  # "100% "
_SPARK_CELL = 40  # from here on a core has a sparkline too
_LEAST_SPARK = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """How the grid is laid out: devices beside each other, and the cells of one core."""

    devices_per_row: int
    core_cells: int
    rows: int


def layout(device_count: int, cores_per_device: int, width: int, height: int) -> Layout:
    """The roomiest layout that needs at most `height` rows; the tightest one when none does."""
    best = None
    for devices_per_row in range(1, max(1, device_count) + 1):
        room = width // devices_per_row - _LABEL_CELLS
        cells = room // max(1, cores_per_device)
        if cells < 1 and best is not None:
            break
        cells = max(1, cells)
        if cells < _TEXT_CELL:
            cells = 1
        rows = -(-device_count // devices_per_row)
        best = Layout(devices_per_row, cells, rows)
        if rows <= height:
            break
    return best or Layout(1, 1, device_count)


def core_grid(scene: Scene, width: int, height: int, *, lit_device: int | None = None) -> Page:
    """The grid in at most `height` lines, its heading included."""
    snapshot = scene.snapshot
    by_device: dict[int, list[LogicalNeuronCore]] = {}
    for core in scene.figures.cores:
        by_device.setdefault(core.device_index, []).append(core)
    device_count = len(snapshot.devices)
    cores_per_device = max((len(cores) for cores in by_device.values()), default=0)
    plan = layout(device_count, cores_per_device, width, max(1, height - 1))
    page = Page([_heading(scene, width)])
    column_cells = width // plan.devices_per_row
    rows = min(plan.rows, max(1, height - 1))
    # A grid that is taller than its room is scrolled to the lit device.
    first = 0
    if plan.rows > rows and lit_device is not None:
        first = min(max(0, lit_device // plan.devices_per_row - rows // 2), plan.rows - rows)
    for row in range(first, first + rows):
        runs: list[Run] = []
        for column in range(plan.devices_per_row):
            device = row * plan.devices_per_row + column
            if device >= device_count:
                break
            part = fit(
                _device(scene, device, by_device.get(device, []), plan.core_cells, column_cells),
                column_cells if plan.devices_per_row > 1 else width,
            )
            page.targets.append(
                Target(len(page.lines), column * column_cells, (column + 1) * column_cells, "device", str(device))
            )
            runs += styled(part, SELECTED) if device == lit_device else part
        page.add(fit(runs, width) if runs else BLANK)
    return page


def _heading(scene: Scene, width: int) -> Line:
    instance = scene.snapshot.instance
    version = instance.neuroncore_version or "?"
    average = units.percent_text(scene.figures.average_utilization(scene.pid))
    flops = scene.figures.flops(scene.pid)
    if scene.show_flops:
        text = f"NeuronCore {version} Utilization in TFLOPS (Total: {units.flops_text(flops)}, Avg: {average})"
    else:
        text = f"NeuronCore {version} Utilization (Avg: {average})"
    return heading(scene, text, width)


def heading(scene: Scene, text: str, width: int, right: str = "") -> Line:
    """A section's heading: its text in a rule over the whole width."""
    rule = scene.glyphs.rule
    runs: list[Run] = [(rule + " ", "rule"), (text, "heading"), (" ", "rule")]
    used = 3 + len(text)
    if right and used + len(right) + 3 <= width:
        runs += [(rule * (width - used - len(right) - 3), "rule"), (f" {right} ", "dim"), (rule, "rule")]
    else:
        runs.append((rule * max(0, width - used), "rule"))
    return fit(runs, width)


def _device(scene: Scene, device: int, cores: list[LogicalNeuronCore], cells: int, column_cells: int) -> list[Run]:
    runs: list[Run] = [(f"ND{device:<3}", "label")]
    if not cores:
        is_missing = device in scene.figures.missing_devices
        return [*runs, ("missing", "bad") if is_missing else ("no cores", "dim")]
    for core in cores:
        runs += _core(scene, core, cells)
    spare = column_cells - _LABEL_CELLS - cells * len(cores)
    if cells == 1 and spare >= _TEXT_CELL:
        runs.append((f" {units.percent_text(scene.figures.device_utilization[device], 0):>4}", "dim"))
    return runs


def _core(scene: Scene, core: LogicalNeuronCore, cells: int) -> list[Run]:
    ratio = core.utilization_ratio
    is_shown = scene.pid is None or scene.pid in core.owner_pids
    if not is_shown:
        ratio = None
    style = _style(ratio)
    if cells < _TEXT_CELL:
        return [(_glyph(scene, core, ratio, is_shown), style)]
    figure = _figure(scene, core, ratio, is_shown)
    if cells < _BAR_CELL:
        return [(f"{figure:>{cells - 1}} ", style)]
    label = f"NC{core.index:<3}" if cells >= _BAR_CELL + 6 else ""
    room = cells - len(label) - len(figure) - 4
    runs: list[Run] = [(label, "dim")] if label else []
    spark = 0
    if cells >= _SPARK_CELL and scene.series is not None:
        spark = max(_LEAST_SPARK, room // 3)
        room -= spark + 1
    runs += bar(ratio, room, scene.glyphs, style)
    if spark and scene.series is not None:
        values = _trend(scene, core, spark) if is_shown else ()
        runs += [(" ", "text"), (sparkline(values, spark, scene.glyphs), "spark")]
    runs += [(" [", "dim"), (figure, style), ("] ", "dim")]
    return runs


def _trend(scene: Scene, core: LogicalNeuronCore, length: int) -> list[float | None]:
    assert scene.series is not None  # noqa: S101 - asked for by the caller
    return scene.series.core_trend(core.cores[0].index, len(core.cores), length)


def _figure(scene: Scene, core: LogicalNeuronCore, ratio: float | None, is_shown: bool) -> str:
    if not is_shown:
        return "-".rjust(7)
    if scene.show_flops:
        flops = core.flops_per_second
        return ("-" if flops is None else f"{flops / 1e12:.2f}T").rjust(7)
    if core.is_free and not ratio:
        return "free".rjust(7)
    if ratio is None:
        return "-".rjust(7)
    return units.percent_text(ratio).rjust(7)


def _glyph(scene: Scene, core: LogicalNeuronCore, ratio: float | None, is_shown: bool) -> str:
    if ratio is None:
        return scene.glyphs.track if core.is_free or not is_shown else "?"
    levels = scene.glyphs.levels
    return levels[max(1, min(len(levels) - 1, round(ratio * (len(levels) - 1))))]


def _style(ratio: float | None) -> str:
    """Busy cores are what one wants to see; a held core that does nothing is not."""
    if ratio is None:
        return "dim"
    return "busy" if ratio >= 0.02 else "idle"
