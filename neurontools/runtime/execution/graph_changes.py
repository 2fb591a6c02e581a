"""What made a graph another one than those before: the first input that differs, or how many operators it has."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_KEPT = 8
_INPUT = " = input "


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is kept of a graph: its inputs, and each operator without its shapes."""

    inputs: tuple[str, ...]
    operators: tuple[str, ...]


class GraphChanges:
    """Compares each new graph with the last few, and keeps what differed in the last few. Under the runtime's lock."""

    def __init__(self) -> None:
        self.latest: deque[str] = deque(maxlen=_KEPT)
        self._seen: deque[_Seen] = deque(maxlen=_KEPT)

    def note(self, text: str) -> None:
        """A new graph, as `compiler.graph_text` has it."""
        lines = text.splitlines()
        inputs = tuple(line.partition(_INPUT)[2] for line in lines if _INPUT in line)
        operators = tuple(line.partition(" = ")[2].partition("(")[0] for line in lines if _INPUT not in line)
        new = _Seen(inputs, operators)
        alike = next((seen for seen in reversed(self._seen) if seen.operators == operators), None)
        if alike is not None:
            changed = [(old, now) for old, now in zip(alike.inputs, inputs, strict=False) if old != now]
            if changed:
                old, now = _shapes(*changed[0])
                self.latest.append(f"an input is {now} where it was {old}")
            elif len(alike.inputs) != len(inputs):
                self.latest.append(f"it has {len(inputs)} inputs where it had {len(alike.inputs)}")
            else:
                self.latest.append("a number in it, or what of it is needed later, is another one")
        elif self._seen:
            self.latest.append(f"it has {len(operators)} operators, the one before has {len(self._seen[-1].operators)}")
        self._seen.append(new)


def _shapes(old: str, now: str) -> tuple[str, str]:
    """Two layouts without their strides, unless these alone differ."""
    short = old.partition("{")[0], now.partition("{")[0]
    return (old, now) if short[0] == short[1] else short
