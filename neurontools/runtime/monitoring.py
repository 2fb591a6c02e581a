"""What the runtime tells the monitor daemon, and the silence when there is none."""

from __future__ import annotations

from typing import Any, Protocol

from neurontools.nrt import NrtStatus
from neurontools.runtime.core import Core


class Monitor(Protocol):
    """Who is told about models and executions. None of the methods raises or waits."""

    def load_model(self, core: Core, name: str, code_bytes: int, scratchpad_bytes: int) -> Any:
        """A model was loaded onto a core; the answer goes with the calls below."""

    def unload_model(self, handle: Any) -> None:
        """A model left its core."""

    def begin(self, handle: Any) -> Any:
        """An execution of a model begins; the answer goes to `end`."""

    def end(self, started: Any, flops: int, status: NrtStatus) -> None:
        """An execution ended."""

    def error(self, kind: str) -> None:
        """An error outside of executions: generic, numerical, transient, model, runtime or hardware."""


class NotMonitored:
    """No daemon: nothing is told to anybody."""

    def load_model(self, core: Core, name: str, code_bytes: int, scratchpad_bytes: int) -> Any:
        """Nothing to tell."""

    def unload_model(self, handle: Any) -> None:
        """Nothing to tell."""

    def begin(self, handle: Any) -> Any:
        """Nothing to tell."""

    def end(self, started: Any, flops: int, status: NrtStatus) -> None:
        """Nothing to tell."""

    def error(self, kind: str) -> None:
        """Nothing to tell."""
