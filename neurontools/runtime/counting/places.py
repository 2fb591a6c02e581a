"""Where in the script what costs something happens: its file and line, counted."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from types import FrameType

_MOST_PLACES = 256
_MOST_FRAMES = 200
# Frames of these are not the script's: torch and other packages, the standard library, and what runs a script.
_OTHERS = tuple(
    {
        f"{Path(path)}{os.sep}"
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(name))
    }
    | {f"{Path(__file__).parents[2]}{os.sep}", "<frozen "}
)

Place = tuple[str, str, int]
"""What happened, the file as the interpreter knows it, and the line."""


class Places:
    """Counts by place, of at most 256 places; what happens at others is counted at none. Any thread may note.

    `steps` says in how many steps of training it happened at a place: an evaluation has one, however long it is.
    `step` is the one that goes on, which who counts steps sets.

    Looking for the line takes a microsecond or two, so this is for what happens a few times a step at the most.
    """

    def __init__(self) -> None:
        self.counts: Counter[Place] = Counter()
        self.steps: Counter[Place] = Counter()
        self.step = 0
        self._latest: dict[Place, int] = {}

    def note(self, what: str) -> None:
        """Something happened for the script's line that is being executed; nothing where no frame is the script's."""
        frame = _script_frame(sys._getframe(1))  # noqa: SLF001  (the documented way to look at who calls)
        if frame is None:
            return
        place = (what, frame.f_code.co_filename, frame.f_lineno)
        if place in self.counts or len(self.counts) < _MOST_PLACES:
            self.counts[place] += 1
            if self._latest.get(place) != self.step:
                self._latest[place] = self.step
                self.steps[place] += 1


def _script_frame(frame: FrameType | None) -> FrameType | None:
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        name = frame.f_code.co_filename
        if not name.startswith(_OTHERS) and not name.startswith("<"):
            return frame
        frame = frame.f_back
    return None


places = Places()
