"""Who holds a core, in words."""

from __future__ import annotations

from neurontools.model import LogicalNeuronCore
from neurontools.views.drawing.figures import Figures
from neurontools.views.drawing.line import foreign

_TAG_CELLS = 60


def owner_text(figures: Figures, core: LogicalNeuronCore) -> str:
    """The tags of its owners, marked where they were concluded; those who may hold it with "?"; "free"; "-"."""

    def name(pid: int) -> str:
        known = figures.ranks.get(pid)
        return str(pid) if known is None else foreign(known.process.tag, _TAG_CELLS)

    mark = " (inferred)" if core.is_owner_inferred else ""
    names = [name(pid) + mark for pid in core.owner_pids] + [f"{name(pid)}?" for pid in core.candidate_pids]
    return ", ".join(names) or ("free" if core.is_free else "-")
