"""The table of served models in the view of many hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neurontools.fleet.models import FleetModel
from neurontools.util import units
from neurontools.views.drawing.lines import Line, cell, fit, printable

_LEAST_NAME, _MOST_NAME = 12, 34
_RATE_CELLS = 7


@dataclass(frozen=True, slots=True)
class FleetModelColumn:
    """A column of the table of served models. Narrower screens than `least_width` do not show it."""

    title: str
    width: int
    read: Callable[[FleetModel], str]
    least_width: int = 0


MODEL_COLUMNS = (
    FleetModelColumn("HOSTS", 5, lambda model: str(model.host_count), 90),
    FleetModelColumn("CORES", 6, lambda model: units.count_text(model.neuroncore_count), 76),
    FleetModelColumn("REQ/S", _RATE_CELLS, lambda model: units.short_rate_text(model.requests_per_second, _RATE_CELLS)),
    FleetModelColumn("REQ P99", 8, lambda model: units.short_duration_text(model.request_p99_seconds)),
    FleetModelColumn("WAITING", 7, lambda model: units.count_text(model.queue_depth)),
    FleetModelColumn("MEAN WAIT", 9, lambda model: units.short_duration_text(model.queue_wait_seconds)),
    FleetModelColumn("HBM", 9, lambda model: units.bytes_text(model.device_memory_bytes)),
)


def fleet_model_lines(models: Sequence[FleetModel], width: int, height: int) -> list[Line]:
    """Draws the title line, the models that fit in `height` lines, and the number of models left out."""
    shown = list(models[: max(0, height - 1)])
    if len(shown) < len(models):
        shown = shown[:-1]
    longest = max([_LEAST_NAME, *(len(printable(model.name, 60)) for model in shown)])
    name_width = min(_MOST_NAME, longest, max(_LEAST_NAME, width // 4))
    columns = [column for column in MODEL_COLUMNS if width >= column.least_width]
    titles = "".join(f" {cell(column.title, column.width, right=True)}" for column in columns)
    lines = [fit(((f"   {cell('MODEL', name_width)}{titles}", "column"),), width, "column")]
    for model in shown:
        cells = "".join(f" {cell(column.read(model), column.width, right=True)}" for column in columns)
        lines.append(fit(((f"   {cell(printable(model.name, 60), name_width)}{cells}", "text"),), width))
    if len(shown) < len(models):
        lines.append(fit(((f"   and {len(models) - len(shown)} more models", "dim"),), width))
    return lines[: max(0, height)]
