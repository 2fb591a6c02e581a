"""The bottom bar: a tab for all processes and one for each."""

from __future__ import annotations

from neurontools.views.drawing.line import Page, Run, Target, clip, fit, foreign, width_of
from neurontools.views.drawing.scene import Scene

_LABEL = "Neuron Apps "
_LONGEST_TAG = 20


def tab_pids(scene: Scene) -> list[int | None]:
    """What the tabs stand for: None for all, then PIDs."""
    return [None, *scene.figures.ranks]


def tab_bar(scene: Scene, width: int) -> Page:
    """`[1]:all [2]:tag …`, the current one between marks; scrolled so that it is visible."""
    pids = tab_pids(scene)
    current = pids.index(scene.pid) if scene.pid in pids else -1

    def text_at(position: int) -> str:
        pid = pids[position]
        name = (
            "all" if pid is None else clip(foreign(scene.figures.ranks[pid].process.tag, 80), _LONGEST_TAG, mark=True)
        )
        label = f"[{position + 1}]:{name or pid}"
        return f"{scene.glyphs.left}{label}{scene.glyphs.right}" if position == current else f" {label} "

    room = width - len(_LABEL)
    first = max(0, current)
    while first > 0 and sum(width_of(text_at(position)) for position in range(first - 1, current + 1)) <= room:
        first -= 1
    runs: list[Run] = [(_LABEL, "label")]
    targets, left = [], len(_LABEL)
    for position in range(first, len(pids)):
        text = text_at(position)
        runs.append((text, "tab_current" if position == current else "tab"))
        pid = pids[position]
        targets.append(Target(0, left, left + width_of(text), "tab", "" if pid is None else str(pid)))
        left += width_of(text)
        if left >= width:
            break
    # A tab that has no room is left out whole; that there are more is told.
    if left > width and len(runs) > 2:
        runs.pop()
        targets.pop()
        runs.append((f" {scene.glyphs.ellipsis}", "tab"))
    return Page([fit(runs, width)], targets)
