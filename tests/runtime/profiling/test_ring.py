"""The profile ring with several threads."""

from __future__ import annotations

import sys
import threading
from typing import Any

from torch import nn

from neurontools.runtime.profiling import ring as ring_module
from neurontools.runtime.profiling.ring import ProfileRing


class Layer(nn.Module):
    def forward(self, ring: ProfileRing) -> int:
        return current_stack(ring)


def current_stack(ring: ProfileRing) -> int:
    return ring.stack_table.current_stack()


def test_stacks_and_names_keep_their_numbers_when_another_thread_adds_some_at_any_line() -> None:
    ring = ProfileRing()
    interrupted: set[int] = set()

    def add(depth: int) -> None:
        if depth:
            add(depth - 1)  # each depth is another stack
        else:
            current_stack(ring)

    def trace(frame: Any, event: str, _argument: object) -> Any:
        line = frame.f_lineno
        if frame.f_code.co_filename != ring_module.__file__:
            return None
        if event == "line" and line not in interrupted:
            interrupted.add(line)
            for target, argument in ((add, len(interrupted)), (ring.number_of, f"other {line}")):
                other = threading.Thread(target=target, args=(argument,))
                other.start()
                other.join()
        return trace

    layer, previous = Layer(), sys.gettrace()
    sys.settrace(trace)
    try:
        number, name = layer(ring), ring.number_of("mine")
    finally:
        sys.settrace(previous)
    stack = ring.stack_table.stacks[number]
    assert (stack.scope, stack.lines[0].function) == ("Layer", "Layer.forward")
    assert ring.names[name] == "mine"
    assert len(interrupted) > 15
