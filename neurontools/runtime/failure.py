"""The error of an execution that did not succeed."""

from __future__ import annotations

from neurontools.nrt import NrtStatus


class ExecutionFailed(RuntimeError):
    """An execution ended with an NRT status other than success; the text begins with its name."""

    def __init__(self, status: NrtStatus, text: str) -> None:
        super().__init__(f"NRT_{status.name}({int(status)}): {text}")
        self.status = status
