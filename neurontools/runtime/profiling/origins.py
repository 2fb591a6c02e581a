"""Where in the script something was recorded: stacks of Python, kept once each, and what of the forward pass a gradient
belongs to."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from neurontools.profile.definitions import Place

_MOST_FRAMES = 64
_MOST_STACKS = 65536
_MOST_GRADIENTS = 200_000
_OURS = str(Path(__file__).parents[2]) + "/"
_TORCH = str(Path(torch.__file__).parent) + "/"
_LIBRARY = tuple({f"{path}/" for name in ("stdlib", "platstdlib") if (path := sysconfig.get_path(name))})
_PACKAGES = tuple({f"{path}/" for name in ("purelib", "platlib") if (path := sysconfig.get_path(name))})
_CALLS_OF_MODULES = frozenset({torch.nn.Module._call_impl.__code__})
_current_node: Any = torch._C._current_autograd_node
_sequence_number: Any = torch._C._autograd._get_sequence_nr


class Origins:
    """Stacks by number; changed under the runtime's lock, or at least whole after each call.

    Looking takes some microseconds, so it is done while a graph is recorded, and not when it comes again.
    """

    def __init__(self) -> None:
        self.stacks: list[tuple[Place, ...]] = []
        self.scopes: list[str] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._places: dict[tuple[CodeType, int], Place | None] = {}
        self._forward: dict[int, int] = {}

    def here(self) -> int:
        """The number of the stack of whoever is being executed; -1 where there are too many already."""
        return self._number(sys._getframe(2))

    def of_operator(self) -> tuple[int, bool]:
        """The stack of an operator that is being recorded, and whether it is one of a backward pass.

        Of a gradient it is that of the operator whose gradient it is, as far as that was seen.
        """
        node = _current_node()
        if node is not None:
            forward = self._forward.get(node._sequence_nr())
            return (self._number(sys._getframe(2)) if forward is None else forward), True
        number = self._number(sys._getframe(2))
        # The node of an operator was numbered right before its kernel was called.
        if len(self._forward) >= _MOST_GRADIENTS:
            self._forward.clear()
        self._forward.setdefault(_sequence_number() - 1, number)
        return number, False

    def _number(self, frame: FrameType | None) -> int:
        key: list[Any] = []
        first = frame
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            key += (frame.f_code, frame.f_lasti)
            frame = frame.f_back
        whole = tuple(key)
        number = self._numbers.get(whole)
        return self._add(whole, first) if number is None else number

    def _add(self, key: tuple[Any, ...], frame: FrameType | None) -> int:
        if len(self.stacks) >= _MOST_STACKS:
            return -1
        places, modules = [], []
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            if frame.f_code in _CALLS_OF_MODULES:
                modules.append(type(frame.f_locals["self"]).__name__)
            place = self._place(frame)
            if place is not None:
                places.append(place)
            frame = frame.f_back
        self.stacks.append(tuple(places))
        self.scopes.append("/".join(reversed(modules)))
        number = self._numbers[key] = len(self.stacks) - 1
        return number

    def _place(self, frame: FrameType) -> Place | None:
        key = (frame.f_code, frame.f_lasti)
        if key not in self._places:
            code = frame.f_code
            name = code.co_filename
            is_package = name.startswith(_PACKAGES)
            is_other = name.startswith((_OURS, _TORCH, "<")) or (name.startswith(_LIBRARY) and not is_package)
            self._places[key] = None if is_other else Place(name, frame.f_lineno, code.co_qualname, is_package)
        return self._places[key]
