"""The errors of executions and compilations that did not succeed."""

from __future__ import annotations

from neurontools.driver.neuron_runtime import NrtStatus
from neurontools.runtime.tensors.memory import OutOfDeviceMemory


class ExecutionFailed(RuntimeError):
    """An execution ended with an NRT status other than success; the text begins with its name."""

    def __init__(self, status: NrtStatus, text: str) -> None:
        super().__init__(f"NRT_{status.name}({int(status)}): {text}")
        self.status = status


class CompilationFailed(RuntimeError):
    """A graph that could not be compiled before; it is not tried again without --retry_failed_compilation."""

    def __init__(self, module: str, reason: str) -> None:
        super().__init__(
            f"{module} could not be compiled before ({reason}); set --retry_failed_compilation in NEURON_CC_FLAGS to "
            "try again"
        )


def status_of(error: BaseException) -> NrtStatus:
    """The status of an execution that ended with an error."""
    if isinstance(error, ExecutionFailed):
        return error.status
    if isinstance(error, OutOfDeviceMemory):
        return NrtStatus.RESOURCE
    if isinstance(error, (IndexError, ValueError)):
        return NrtStatus.EXEC_BAD_INPUT
    return NrtStatus.EXEC_COMPLETED_WITH_ERR
