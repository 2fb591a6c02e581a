"""What is said after the error of a script that uses the name which the device has not in this process."""

from __future__ import annotations

import re
import sys
from types import TracebackType

from neurontools.runtime.launch.names import NAMES, VARIABLE, Choice
from neurontools.runtime.reporting.narration import say

_UNKNOWN_TO_TORCH = re.compile(
    r"Expected one of cpu, .* device type at start of device string: (\w+)"
    r"|Unknown backend type (\w+)"
    r"|Could not run '.*' with arguments from the '(XLA)' backend"
    r"|not linked with support for (xla) devices"
    r"|module 'torch' has no attribute '(neuron)'",
    re.DOTALL,
)


def explain(choice: Choice) -> None:
    """Has a line follow the traceback of such an error; once a process."""
    shown = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        shown(kind, error, traceback)
        text = text_for(error, choice)
        if text is not None:
            say(f"neurontools: {text}")

    sys.excepthook = show


def text_for(error: BaseException, choice: Choice) -> str | None:
    """The line for an error; None for one that is about something else."""
    match = _UNKNOWN_TO_TORCH.search(str(error))
    other = NAMES[1 - NAMES.index(choice.name)]
    if match is None or next(filter(None, match.groups())).lower() != other:
        return None
    return (
        f"torch takes one name for the device in a process, and here it is {choice.name!r}, because {choice.reason}; "
        f"set {VARIABLE}={other} to use {other!r}"
    )
