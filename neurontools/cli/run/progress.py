"""The line of progress of neuron-run: how far the first worker is."""

from __future__ import annotations

from typing import Any

from neurontools.util.units import bytes_text, count_text, flops_text


class Progress:
    """Makes the line from one state of a worker to the next; rates are those in between."""

    def __init__(self) -> None:
        self._before: tuple[float, int, int] | None = None
        self._now: tuple[float, int, int] | None = None

    def line(self, state: dict[str, Any] | None, elapsed_seconds: float, columns: int) -> str:
        """The line for a terminal so wide; parts that don't fit are left out, from the last one."""
        shown = _clock(elapsed_seconds)
        for part in self._parts(state):
            if len(shown) + 2 + len(part) >= columns:
                break
            shown += f"  {part}"
        return shown if len(shown) < columns else ""

    def _parts(self, state: dict[str, Any] | None) -> list[str]:
        if state is None:
            return ["starting"]
        now = float(state["wall_seconds"]), int(state["steps_total"]), int(state["flop_total"])
        if self._now is None or now[0] > self._now[0]:
            self._before, self._now = self._now, now
        graphs = state["graphs_compiled_total"]
        parts = [f"step {count_text(now[1])}"] if now[1] else [f"{count_text(state['executions_total'])} executions"]
        if self._before is not None and self._now is not None:
            seconds, steps, flops = (b - a for a, b in zip(self._before, self._now, strict=True))
            if now[1]:
                parts.append(f"{steps / seconds:.1f} steps/s")
            if now[2]:
                parts.append(flops_text(flops / seconds))
        parts.append(f"{count_text(graphs)} graph{'' if graphs == 1 else 's'} compiled")
        parts.append(f"HBM {bytes_text(state['hbm_bytes'])}")
        return parts


def _clock(seconds: float) -> str:
    """0:42, 12:05, 1:02:03."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
