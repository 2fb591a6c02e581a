"""torch_xla.debug.profiler: names for parts of a script, which torch.profiler shows."""

from __future__ import annotations

from typing import Any

import torch

from neurontools.runtime.launch.missing import Missing, text_of


class Trace(torch.profiler.record_function):
    """A part of a script under a name."""

    def __init__(self, name: str, **details: Any) -> None:
        super().__init__(name, " ".join(f"{key}={value}" for key, value in details.items()) or None)


class StepTrace(Trace):
    """A training step under a name."""


start_server: Any = Missing("torch_xla.debug.profiler.start_server")
trace: Any = Missing("torch_xla.debug.profiler.trace")


def __getattr__(name: str) -> Any:
    raise AttributeError(text_of(f"torch_xla.debug.profiler.{name}"))
