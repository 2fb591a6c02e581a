"""vCPUs one by one: bars where there is room, else a character each."""

from __future__ import annotations

from neurontools.model import VcpuUsage
from neurontools.views.drawing.gauge import stacked_bar
from neurontools.views.drawing.line import Line, Run, fit
from neurontools.views.drawing.scene import Scene

_BAR_CELLS = 24  # "  12 ########....  34% "
_NARROW_CELLS = 10  # "  12  34% "
_LABEL_CELLS, _FIGURE_CELLS = 5, 6


def shares(usage: VcpuUsage) -> tuple[float, float]:
    """What was spent in user mode, and in the system with its interrupts and waits for I/O."""
    system = usage.system_ratio + usage.io_wait_ratio + usage.irq_ratio + usage.soft_irq_ratio
    return usage.user_ratio + usage.nice_ratio, system


def vcpu_lines(scene: Scene, width: int, height: int) -> list[Line]:
    """All of them in at most `height` lines, if that is possible at all."""
    vcpus = scene.vcpus
    if not vcpus or height < 1:
        return []
    for cells in (_BAR_CELLS, _NARROW_CELLS):
        across = max(1, min(len(vcpus), width // cells))
        down = -(-len(vcpus) // across)
        if down <= height:
            return [_row(scene, vcpus, row, down, across, width) for row in range(down)]
    return _levels(scene, vcpus, width, height)


def _row(scene: Scene, vcpus: tuple[VcpuUsage, ...], row: int, down: int, across: int, width: int) -> Line:
    """One line; vCPUs go down the columns."""
    cells = width // across
    runs: list[Run] = []
    for column in range(across):
        index = column * down + row
        if index < len(vcpus):
            runs += _bar(scene, index, vcpus[index], cells)
    return fit(runs, width)


def _bar(scene: Scene, index: int, usage: VcpuUsage, cells: int) -> list[Run]:
    user, system = shares(usage)
    figure = f"{(user + system) * 100:3.0f}% ".rjust(_FIGURE_CELLS)
    runs: list[Run] = [(f"{index:4} ", "label")]
    runs += stacked_bar(((user, "busy"), (system, "system")), cells - _LABEL_CELLS - _FIGURE_CELLS, scene.glyphs)
    return [*runs, (figure, "text")]


def _levels(scene: Scene, vcpus: tuple[VcpuUsage, ...], width: int, height: int) -> list[Line]:
    levels = scene.glyphs.levels
    room = max(1, width - 8)
    lines = []
    for first in range(0, len(vcpus), room):
        text = "".join(
            levels[max(1, min(len(levels) - 1, round(sum(shares(usage)) * (len(levels) - 1))))]
            for usage in vcpus[first : first + room]
        )
        lines.append(fit(((f"{first:5}   ", "label"), (text, "busy")), width))
    return lines[:height]
