"""The NeuronCore grid: a bar for each core and each device's memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from neurontools.model import LogicalNeuronCore
from neurontools.util import units
from neurontools.util.units import sum_known
from neurontools.views.drawing.figures import Figures
from neurontools.views.drawing.glyphs import Glyphs, bar, memory_style, thin_bar
from neurontools.views.drawing.heat_scale import heat_glyph, heat_sparkline, load_style
from neurontools.views.drawing.lines import (
    SELECTED,
    ClickTarget,
    Line,
    Run,
    TextPage,
    fit,
    printable,
    styled,
)
from neurontools.views.drawing.render_context import SEVERITY_STYLES, RenderContext, heading, severity_mark

_LABEL_CELLS = 5  # width of a device label such as "ND15 "
_BAR_CELL = 14  # least width of a core that shows a bar, in terminal cells
_TEXT_CELL = 5  # width of a core that shows a text such as "100% "
_FIGURE_CELLS = 7  # width of a number such as "100.00%"
_SPARK_CELL = 40  # least width of a core that shows a sparkline, in terminal cells
_LEAST_SPARK = 8
_HBM_CELLS = ((100, 27), (64, 11), (36, 6))  # (least terminal cells of a device, cells of its memory bar), widest first
_HBM_TEXT_CELLS = 14
_TAG_CELLS = 60


@dataclass(frozen=True, slots=True)
class GridLayout:
    """Layout of the core grid: entries per line, cells per core, cells of a memory bar, and number of lines."""

    across: int
    core_cells: int
    hbm_cells: int
    rows: int


@dataclass(frozen=True, slots=True)
class GridRow:
    """One entry of the core grid: a device, or adjacent devices that share a status word such as "free"."""

    first: int
    last: int
    word: str = ""
    style: str = "dim"


def grid_layout(count: int, cores_per_device: int, width: int, height: int) -> GridLayout:
    """Returns the layout with the widest cores for `count` entries in `height` lines; the narrowest if none fits."""
    best = GridLayout(1, 1, 0, count)
    for across in range(1, max(1, count) + 1):
        column_cells = width // across
        hbm_cells = next((cells for least, cells in _HBM_CELLS if column_cells >= least), 0)
        cells = (column_cells - _LABEL_CELLS - hbm_cells) // max(1, cores_per_device)
        if cells < 1 and across > 1:
            break
        cells = max(1, cells)
        if cells < _TEXT_CELL:
            cells = 1
        rows = -(-count // across)
        best = GridLayout(across, cells, hbm_cells, rows)
        if rows <= height:
            break
    return best


def grid_rows(context: RenderContext) -> list[GridRow]:
    """Returns the entries of the core grid. Adjacent devices with the same status word share an entry."""
    rows: list[GridRow] = []
    for device, cores in enumerate(context.figures.cores_by_device):
        if device in context.figures.hidden_devices:
            continue
        word, style = _status_word(context, device, cores)
        first = device
        if word and rows and rows[-1].word == word and rows[-1].last == device - 1:
            first = rows.pop().first
        rows.append(GridRow(first, device, word, style))
    return rows


def _status_word(context: RenderContext, device: int, cores: list[LogicalNeuronCore]) -> tuple[str, str]:
    """Returns the word that replaces the bars of a device, such as "free", and its style; "" to draw the bars."""
    if device in context.figures.missing_devices:
        return "missing", "bad"
    if not cores:
        return "no cores", "dim"
    if device in context.figures.marked_devices:
        return "", "text"
    if context.pid is not None and not any(context.pid in core.owner_pids for core in cores):
        return "not in use by this process", "dim"
    if all(context.figures.free[core.index] and not core.utilization_ratio for core in cores):
        return "free", "dim"
    return "", "text"


def core_grid(
    context: RenderContext,
    width: int,
    height: int,
    places: list[GridRow],
    *,
    selected_device: int | None = None,
    lit_devices: frozenset[int] = frozenset(),
) -> TextPage:
    """Draws the core grid with its heading in at most `height` lines. `places` are the entries from `grid_rows`."""
    by_device = context.figures.cores_by_device
    cores_per_device = max(map(len, by_device), default=0)
    plan = grid_layout(len(places), cores_per_device, width, max(1, height - 1))
    page = TextPage([_grid_heading(context, width, plan)])
    column_cells = width // plan.across
    rows = min(plan.rows, max(1, height - 1))
    # A grid with more rows than fit scrolls to the selected device.
    first = 0
    looked_at = selected_device if selected_device is not None else min(lit_devices, default=None)
    if plan.rows > rows and looked_at is not None:
        at = next((position for position, place in enumerate(places) if looked_at <= place.last), 0)
        first = min(max(0, at // plan.across - rows // 2), plan.rows - rows)
    for row in range(first, first + rows):
        runs: list[Run] = []
        in_row = places[row * plan.across : (row + 1) * plan.across]
        for column, place in enumerate(in_row):
            is_lit = any(place.first <= device <= place.last for device in lit_devices)
            part = _row_runs(context, place, by_device[place.first], plan, column_cells, is_lit=is_lit)
            line = fit(part, column_cells)
            left, right = column * column_cells, (column + 1) * column_cells
            page.targets.append(ClickTarget(len(page.lines), left, right, "device", str(place.first)))
            is_selected = selected_device is not None and place.first <= selected_device <= place.last
            runs += styled(line, SELECTED) if is_selected else line
        spare = width - column_cells * len(in_row)
        if spare and in_row:
            runs.append((" " * spare, "text"))
        page.add_lines(tuple(runs))
    return page


def _grid_heading(context: RenderContext, width: int, plan: GridLayout) -> Line:
    instance = context.snapshot.instance
    version = instance.neuroncore_version or "?"
    average = units.percent_text(context.figures.average_utilization(context.pid))
    flops = context.figures.flops(context.pid)
    if context.show_flops:
        text = f"NeuronCore {version} Utilization in FLOPS (Total: {units.flops_text(flops)}, Avg: {average})"
    else:
        text = f"NeuronCore {version} Utilization (Avg: {average})"
    legend = f"{context.glyphs.thin_full * 2} HBM in use" if plan.hbm_cells else ""
    hint = context.key_hint("f: percent" if context.show_flops else "f: FLOPS")
    return heading(context, text, width, ", ".join(filter(None, (legend, hint))))


def _row_runs(
    context: RenderContext,
    place: GridRow,
    cores: list[LogicalNeuronCore],
    plan: GridLayout,
    column_cells: int,
    *,
    is_lit: bool,
) -> list[Run]:
    if place.last > place.first:
        label = f"ND {place.first}-{place.last}: "
        return [(label, "lit" if is_lit else "label"), (place.word, place.style)]
    device = place.first
    severity = context.figures.marked_devices.get(device)
    label, style = f"ND{device}", "lit" if is_lit else "label"
    if severity is not None:
        label, style = label + severity_mark(context.glyphs, severity), SEVERITY_STYLES[severity]
    runs: list[Run] = [(label.ljust(_LABEL_CELLS), style)]
    if not cores:
        return [*runs, (place.word, place.style)]
    for core in cores:
        runs += _core_runs(context, core, plan.core_cells)
    room = column_cells - _LABEL_CELLS - plan.hbm_cells
    spare = room - plan.core_cells * len(cores)
    if plan.core_cells == 1 and spare >= _TEXT_CELL:
        runs.append((f" {units.percent_text(context.figures.device_utilization[device], 0):>4}", "dim"))
        spare -= _TEXT_CELL
    if plan.hbm_cells and spare >= 0:
        runs += [(" " * spare, "text"), *_hbm_runs(context, device, cores, plan.hbm_cells)]
    return runs


def _hbm_runs(context: RenderContext, device: int, cores: list[LogicalNeuronCore], cells: int) -> tuple[Run, ...]:
    """Draws the memory bar of a device, for all processes or for the current tab's process."""
    used = context.figures.device_used_bytes[device]
    if context.pid is not None:
        physical = (core for each in cores for core in each.cores)
        used = sum_known(core.memory.total_bytes for core in physical if core.owner_pid == context.pid)
    return _memory_runs(used, context.snapshot.devices[device].memory_bytes, cells, context.glyphs)


@lru_cache(256)
def _memory_runs(used: int | None, capacity: int, cells: int, glyphs: Glyphs) -> tuple[Run, ...]:
    """Draws a memory bar with its figures. Cached, because most devices use as much memory as one second before."""
    ratio = used / capacity if used is not None and capacity else None
    style = memory_style(ratio)
    text = ""
    if cells > _HBM_TEXT_CELLS + 4:
        text = f"{units.bytes_text(used)} / {units.memory_size_text(capacity)}".replace(" GB / ", " / ")
        text = f" {text:>{_HBM_TEXT_CELLS}}"
    return (
        *thin_bar(ratio, cells - 1 - len(text), glyphs, style),
        (f"{text} ", "dim" if style == "memory" else style),
    )


def _core_runs(context: RenderContext, core: LogicalNeuronCore, cells: int) -> list[Run]:
    ratio = core.utilization_ratio
    is_shown = context.pid is None or context.pid in core.owner_pids
    if not is_shown:
        ratio = None
    severity = context.figures.marked_cores.get(core.index) if is_shown else None
    style = _core_style(context, core, ratio) if severity is None else SEVERITY_STYLES[severity]
    mark = "" if severity is None else severity_mark(context.glyphs, severity)
    if cells < _TEXT_CELL:
        return [(mark or _level_glyph(context, core, ratio, is_shown), style)]
    if cells < _BAR_CELL:
        figure = _figure_text(context, core, ratio, is_shown, decimals=2 if cells > _FIGURE_CELLS else 0)
        return [(f"{figure:>{cells - 1}}{mark or ' '}", style)]
    figure = _figure_text(context, core, ratio, is_shown).rjust(_FIGURE_CELLS)
    label = f"NC{core.index:<3}" if cells >= _BAR_CELL + 8 else ""
    room = cells - len(label) - len(figure) - 4
    runs: list[Run] = [(label, "dim")] if label else []
    spark = 0
    if cells >= _SPARK_CELL and context.series is not None:
        spark = max(_LEAST_SPARK, room // 3)
        room -= spark + 1
    runs += bar(ratio, room, context.glyphs, style)
    if spark and context.series is not None:
        trend = context.series.core_trend(core.cores[0].index, len(core.cores), spark) if is_shown else ()
        runs += [(" ", "text"), *heat_sparkline(trend, spark, context.glyphs)]
    runs += [(mark, style), ("[", "dim")] if mark else [(" [", "dim")]
    runs += [(figure, style), ("] ", "dim")]
    return runs


def _figure_text(
    context: RenderContext, core: LogicalNeuronCore, ratio: float | None, is_shown: bool, *, decimals: int = 2
) -> str:
    if not is_shown:
        return units.UNKNOWN
    if context.figures.free[core.index] and not ratio:
        return "free"
    if context.show_flops:
        return units.short_flops_text(core.flops_per_second, decimals)
    return units.percent_text(ratio, decimals)


def _level_glyph(context: RenderContext, core: LogicalNeuronCore, ratio: float | None, is_shown: bool) -> str:
    free = context.figures.free[core.index]
    if ratio is None or (free and not ratio):
        return context.glyphs.track if free or not is_shown else "?"
    return heat_glyph(ratio, context.glyphs)


def _core_style(context: RenderContext, core: LogicalNeuronCore, ratio: float | None) -> str:
    """Returns the style of a core: by its load if busy, "held" if idle but held, "dim" if free or unknown."""
    style = "dim" if ratio is None else load_style(ratio, context.thresholds.idle_below_ratio)
    return style if style != "held" or core.owner_pids else "dim"


def owner_text(figures: Figures, core: LogicalNeuronCore) -> str:
    """Returns the tags of the processes that own a core, separated by commas.

    Marks inferred owners with "(inferred)" and possible owners with "?". Returns "free" for a free core, and "-" if the
    owner is unknown.
    """

    def name(pid: int) -> str:
        rank = figures.ranks.get(pid)
        return str(pid) if rank is None else printable(rank.process.tag, _TAG_CELLS)

    mark = " (inferred)" if core.is_owner_inferred else ""
    names = [name(pid) + mark for pid in core.owner_pids] + [f"{name(pid)}?" for pid in core.candidate_pids]
    return ", ".join(names) or ("free" if core.is_free else "-")
