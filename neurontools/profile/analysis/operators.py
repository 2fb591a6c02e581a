"""What was computed: operators by their line of the script, and by module as a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from neurontools.profile import Engine, Operator, Place, Profile
from neurontools.profile.analysis.steps import NS_PER_SECOND
from neurontools.profile.definitions import script_place

UNKNOWN_PLACE = "no line known"


@dataclass(slots=True)
class OperatorUse:
    """An operator of one line of the script, in all its executions by all ranks."""

    name: str
    engine: Engine
    place: Place | None  # the line of the script; None: not known
    is_backward: bool  # computed for gradients, on behalf of that line
    count: int = 0
    seconds: float = 0.0
    longest_seconds: float = 0.0
    flops: int = 0
    bytes: int = 0
    results: dict[str, float] = field(default_factory=dict)  # layouts of results, with the seconds that they took
    seconds_by_rank: list[float] = field(default_factory=list)  # in the order of the report's ranks

    @property
    def main_result(self) -> str:
        """The layout of the results that took most of the time."""
        return max(self.results, key=self.results.__getitem__, default="")


def operator_uses(profiles: Sequence[Profile]) -> tuple[OperatorUse, ...]:
    """All operators that were executed, those that took longest first."""
    found: dict[tuple[str, Engine, Place | None, bool], OperatorUse] = {}
    for number, profile in enumerate(profiles):
        for operator, count, total_ns, longest_ns in executed(profile):
            place = script_place(profile.stack(operator.stack))
            key = (operator.name, operator.engine, place, operator.is_backward)
            use = found.get(key)
            if use is None:
                use = found[key] = OperatorUse(*key, seconds_by_rank=[0.0] * len(profiles))
            seconds = total_ns / NS_PER_SECOND
            use.count += count
            use.seconds += seconds
            use.longest_seconds = max(use.longest_seconds, longest_ns / NS_PER_SECOND)
            use.flops += count * operator.flops
            use.bytes += count * operator.bytes
            use.results[operator.result] = use.results.get(operator.result, 0.0) + seconds
            use.seconds_by_rank[number] += seconds
    return tuple(sorted(found.values(), key=lambda use: (-use.seconds, use.name, str(use.place))))


def executed(profile: Profile) -> Iterator[tuple[Operator, int, int, int]]:
    """Each operator that was executed: how often, its time in all and its longest, nanoseconds."""
    counts = {row.graph: row.executions for row in profile.graph_totals}
    times = {row.operator: (row.total_ns, row.longest_ns) for row in profile.operator_totals}
    for number, operator in enumerate(profile.operators):
        count = counts.get(operator.graph, 0)
        if count or number in times:
            yield operator, count, *times.get(number, (0, 0))


def largest(
    uses: Sequence[OperatorUse], quantity: Callable[[OperatorUse], float], most: int
) -> tuple[OperatorUse, ...]:
    """Those with most of a quantity, which they have any of."""
    return tuple(sorted((use for use in uses if quantity(use) > 0), key=lambda use: -quantity(use))[:most])


def seconds_by_engine(uses: Sequence[OperatorUse]) -> dict[Engine, float]:
    """The time of all operators by the engine that they would keep busy, those with some, the longest first."""
    found: dict[Engine, float] = {}
    for use in uses:
        found[use.engine] = found.get(use.engine, 0.0) + use.seconds
    return dict(sorted(((engine, time) for engine, time in found.items() if time > 0), key=lambda each: -each[1]))


@dataclass(slots=True)
class Frame:
    """A part of the flame graph: a module, a line in it, or an operator of that line, with those below it."""

    name: str
    seconds: float = 0.0
    flops: int = 0
    bytes: int = 0
    below: dict[str, Frame] = field(default_factory=dict)

    def child(self, name: str) -> Frame:
        """The part of this name right below it, made when it is first named."""
        return self.below.setdefault(name, Frame(name))

    def ordered(self) -> list[Frame]:
        """Those below it, the longest first."""
        return sorted(self.below.values(), key=lambda frame: (-frame.seconds, frame.name))


def flame(profiles: Sequence[Profile]) -> Frame:
    """All operators by module, then by line of the script, then by name."""
    root = Frame("all operators")
    for profile in profiles:
        for operator, count, total_ns, _ in executed(profile):
            place = script_place(profile.stack(operator.stack))
            line = UNKNOWN_PLACE if place is None else place_text(place)
            modules = [name for name in operator.scope.split("/") if name]
            frame = root
            for name in (*modules, f"{line} (backward)" if operator.is_backward else line, operator.name):
                frame = _took(frame, count, total_ns, operator).child(name)
            _took(frame, count, total_ns, operator)
    return root


def place_text(place: Place) -> str:
    """A line of the script as people name it: the file without its directory."""
    return f"{place.file.rpartition('/')[2] or place.file}:{place.line}"


def _took(frame: Frame, count: int, total_ns: int, operator: Operator) -> Frame:
    frame.seconds += total_ns / NS_PER_SECOND
    frame.flops += count * operator.flops
    frame.bytes += count * operator.bytes
    return frame
