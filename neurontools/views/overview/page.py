"""The overview page: the sections of the original neuron-top, as many and as rich as there is room for."""

from __future__ import annotations

from neurontools.views.drawing.core_grid import core_grid
from neurontools.views.drawing.line import Page
from neurontools.views.drawing.scene import Scene
from neurontools.views.overview.host_usage import host_usage
from neurontools.views.overview.memory_summary import memory_summary
from neurontools.views.overview.memory_tree import memory_tree, nodes

_SIDE_BY_SIDE_CELLS = 110
_RICH_LINES = 34
_LEAST_TREE_LINES = 4
_LEAST_GRID_LINES = 3


def overview(scene: Scene, width: int, height: int) -> Page:
    """Grid, vCPUs, memory summary and memory tree; on low screens the middle ones are left out first."""
    rows = nodes(scene)
    selected = rows[min(scene.cursor, len(rows) - 1)].device_index if rows else None
    usage = host_usage(scene, width, side_by_side=width >= _SIDE_BY_SIDE_CELLS)
    summary = memory_summary(scene, width, 8 if height >= _RICH_LINES else 3)
    middle = [usage, summary]
    while middle and height - sum(len(page.lines) for page in middle) < _LEAST_TREE_LINES + _LEAST_GRID_LINES:
        middle.pop()
    room = height - sum(len(page.lines) for page in middle)
    tree_lines = min(_LEAST_TREE_LINES if height < _RICH_LINES else 10, max(0, room - _LEAST_GRID_LINES))
    grid = core_grid(scene, width, max(1, room - tree_lines), lit_device=selected)
    page = Page()
    page.append(grid)
    for part in middle:
        page.append(part)
    if height - len(page.lines) >= 2:
        page.append(memory_tree(scene, width, height - len(page.lines)))
    return page
