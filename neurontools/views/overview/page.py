"""The overview page: who has the cores, and the sections of the original neuron-top, as rich as there is room for."""

from __future__ import annotations

from neurontools.views.drawing.core_grid import core_grid, device_rows, layout
from neurontools.views.drawing.line import Page
from neurontools.views.drawing.scene import Scene
from neurontools.views.entry import Entry
from neurontools.views.job_rows import entries_of
from neurontools.views.overview.findings import finding_lines
from neurontools.views.overview.host_usage import host_usage, usage_text
from neurontools.views.overview.job_list import job_list, job_rows
from neurontools.views.overview.memory_summary import memory_summary, memory_text
from neurontools.views.overview.memory_tree import folded_tree, memory_tree, nodes, tree_entries

_SIDE_BY_SIDE_CELLS = 110
_RICH_LINES = 34
_RICH_SUMMARY_LINES, _SUMMARY_LINES = 8, 3
_LEAST_LIST_LINES = 4
_LEAST_GRID_LINES = 4
_LEAST_TREE_LINES = 4
_COMPACT_GRID_LINES = 3
_LINES_FOR_ALL = 44  # from here on, the jobs stay where the tree is open


def overview(scene: Scene, width: int, height: int) -> Page:
    """Grid, jobs, vCPUs, memory summary and memory tree; on low screens those from the end are left out first."""
    if scene.is_tree_shown:
        return _with_tree(scene, width, height)
    places = device_rows(scene)
    rows = job_rows(scene)
    list_lines, grid_lines = max(2, len(rows) + 2), 1 + len(places)
    below: list[Page] = []
    if scene.is_compact:
        grid_lines = min(grid_lines, _COMPACT_GRID_LINES)
        below = [Page([usage_text(scene, width)]), Page([memory_text(scene, width)])]
    else:
        spare = height - list_lines - grid_lines
        has_room = width >= _SIDE_BY_SIDE_CELLS and spare >= _RICH_SUMMARY_LINES + 3
        is_rich = height >= _RICH_LINES or has_room
        below = [
            host_usage(scene, width, side_by_side=width >= _SIDE_BY_SIDE_CELLS),
            memory_summary(scene, width, _RICH_SUMMARY_LINES if is_rich else _SUMMARY_LINES),
            Page([folded_tree(scene, width)]),
        ]
    cores_per_device = len(scene.figures.cores) // max(1, len(scene.snapshot.devices))
    tightest = 1 + layout(len(places), cores_per_device, width, 1).rows
    least = min(list_lines, _LEAST_LIST_LINES) + min(grid_lines, max(tightest, _LEAST_GRID_LINES))
    while below and height - _lines(below) < least:
        below.pop()
    room = height - _lines(below)
    for_list = min(list_lines, max(_LEAST_LIST_LINES, room // 2))
    grid_lines = max(1, min(grid_lines, room - for_list))
    selected = rows[min(scene.cursor, len(rows) - 1)] if rows and scene.cursor >= 0 else None
    lit = frozenset(selected.device_indices) if selected is not None else frozenset()
    if len(lit) == len(scene.snapshot.devices):
        lit = frozenset()  # where it is everywhere, it is nowhere in particular
    page = Page()
    page.append(core_grid(scene, width, grid_lines, places, lit_devices=lit))
    room -= len(page.lines)
    if room >= 2:
        page.append(job_list(scene, rows, width, min(room, list_lines)))
    for part in below:
        page.append(part)
    page.add(*finding_lines(scene, width, height - len(page.lines)))
    return page


def overview_entries(scene: Scene, every: bool) -> list[Entry]:
    """What a search sees of the jobs, or of the memory tree where it is shown; with `every` row open or as they are."""
    if scene.is_tree_shown:
        return tree_entries(scene, every)
    return entries_of(job_rows(scene, every=every), scene.figures)


def _with_tree(scene: Scene, width: int, height: int) -> Page:
    """The sections of the original alone where there is no room for more, and the tree open."""
    places, rows = device_rows(scene), nodes(scene)
    selected = rows[min(scene.cursor, len(rows) - 1)].device_index if rows and scene.cursor >= 0 else None
    middle = [
        host_usage(scene, width, side_by_side=width >= _SIDE_BY_SIDE_CELLS),
        memory_summary(scene, width, _RICH_SUMMARY_LINES if height >= _RICH_LINES else _SUMMARY_LINES),
    ]
    while middle and height - _lines(middle) < _LEAST_TREE_LINES + _LEAST_GRID_LINES:
        middle.pop()
    room = height - _lines(middle)
    grid_lines = max(1, min(1 + len(places), room - max(_LEAST_TREE_LINES, room * 2 // 5)))
    page = core_grid(scene, width, grid_lines, places, selected_device=selected)
    if height >= _LINES_FOR_ALL:
        jobs = job_rows(scene)
        page.append(job_list(scene, jobs, width, max(2, min(len(jobs) + 2, room // 5)), with_cursor=False))
    for part in middle:
        page.append(part)
    if height - len(page.lines) >= 2:
        page.append(memory_tree(scene, width, height - len(page.lines)))
    return page


def _lines(parts: list[Page]) -> int:
    return sum(len(part.lines) for part in parts)
