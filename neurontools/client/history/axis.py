"""The time axis that all plots of a page share: which cell is which stretch of time, and of which nothing is known."""

from __future__ import annotations

from dataclasses import dataclass, field

from neurontools.client.history.samples import Samples


@dataclass(frozen=True)
class Axis:
    """`cells` stretches of time of `cell_seconds` each, up to the moment shown, which lies in the last.

    Cells begin at multiples of their length in the timeline, whatever is shown.
    """

    samples: Samples
    count: int  # how many of the samples are up to the moment shown
    cells: int
    cell_seconds: float
    shown_seconds: float
    clock_offset_seconds: float = 0.0  # what the host's clock is ahead of the timeline
    _by_parts: dict[int, tuple[int | None, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def last(self) -> int:
        """The number of the last cell."""
        return int(self.shown_seconds // self.cell_seconds)

    @property
    def begins_seconds(self) -> float:
        """Where the first cell begins."""
        return (self.last - self.cells + 1) * self.cell_seconds

    def cell_at(self, at_seconds: float) -> int | None:
        """The cell of a moment, from 0 on; None when it is on none."""
        cell = int(at_seconds // self.cell_seconds) - self.last + self.cells - 1
        return cell if 0 <= cell < self.cells else None

    def steps(self, per_cell: int = 1) -> tuple[int | None, ...]:
        """For each part of a cell the number of the step that it shows, each step as long as such a part.

        None in a gap and where nothing is known. A sample tells of the time since the one before it, so parts between
        two samples show the later one. A gap is one part wide at least.
        """
        if per_cell not in self._by_parts:
            self._by_parts[per_cell] = self._made(per_cell)
        return self._by_parts[per_cell]

    def _made(self, per_cell: int) -> tuple[int | None, ...]:
        step_seconds = self.cell_seconds / per_cell
        parts = self.cells * per_cell
        first = (self.last + 1) * per_cell - parts
        found: list[int | None] = [None] * parts
        before = first - 1
        known = self.samples.between(self.begins_seconds, float("inf"), self.count)
        gap_ends = {end for _, end in self.samples.gaps(self.begins_seconds)}
        has_earlier = self.count > len(known)
        for sample in known:
            number = int(sample.at_seconds // step_seconds)
            part = number - first
            if part >= parts:
                break
            if sample.at_seconds in gap_ends:
                if number <= before + 1 and before >= first:
                    found[before - first] = None
            elif has_earlier:
                for between in range(max(0, before + 1 - first), part):
                    found[between] = number
            found[part] = number
            before, has_earlier = number, True
        return tuple(found)
