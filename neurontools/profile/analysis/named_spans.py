"""The spans that a script names with `torch_xla.debug.profiler.Trace`, nested as the script nests them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neurontools.profile import Profile, Span, SpanKind
from neurontools.profile.analysis.steps import NS_PER_SECOND


@dataclass(slots=True)
class NamedSpanUse:
    """All spans of one name within the same outer spans, summed over all ranks.

    `path` has the names from the outermost span to this one. The seconds of a span include those of its inner spans.
    """

    path: tuple[str, ...]
    count: int = 0
    seconds: float = 0.0
    longest_seconds: float = 0.0

    @property
    def depth(self) -> int:
        return len(self.path) - 1


def sum_named_spans(profiles: Sequence[Profile]) -> tuple[NamedSpanUse, ...]:
    """Sums the named spans that the profiles contain: inner spans after their outer span, the longest first."""
    found: dict[tuple[str, ...], NamedSpanUse] = {}
    for profile in profiles:
        open_spans: list[tuple[int, tuple[str, ...]]] = []
        for row in _outer_first(row for row in profile.spans if row.kind == SpanKind.ANNOTATION):
            while open_spans and row.end_ns > open_spans[-1][0]:
                open_spans.pop()
            path = (*(open_spans[-1][1] if open_spans else ()), profile.names[row.name])
            open_spans.append((row.end_ns, path))
            use = found.setdefault(path, NamedSpanUse(path))
            seconds = (row.end_ns - row.start_ns) / NS_PER_SECOND
            use.count += 1
            use.seconds += seconds
            use.longest_seconds = max(use.longest_seconds, seconds)

    def order(use: NamedSpanUse) -> list[tuple[float, str]]:
        outer = (use.path[:length] for length in range(1, len(use.path) + 1))
        return [(-found[path].seconds, path[-1]) for path in outer]

    return tuple(sorted(found.values(), key=order))


def _outer_first(spans: Iterable[Span]) -> list[Span]:
    """Sorts spans by their start. An inner span ends first, so a profile has it before its outer span."""
    listed = [*spans]
    listed.reverse()
    listed.sort(key=lambda row: (row.start_ns, -row.end_ns))
    return listed
