"""The log of the original runtime: the form of its lines, and what it says of a failed execution.

Source: lines in the Neuron SDK's documentation (nrt-troubleshoot) and in issues, such as aws-neuron-sdk#851.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from neurontools.driver.nrt.status import NrtStatus

_COMPONENT_WIDTH, _FUNCTION_WIDTH = 5, 40


def error_line(function: str, text: str, pid: int, at_unix_seconds: float) -> str:
    """A line at the level ERROR; `function` with its component, "TDRV:exec_request_process_errors"."""
    component, _, name = function.partition(":")
    second = time.strftime("%Y-%b-%d %H:%M:%S", time.gmtime(at_unix_seconds))
    moment = f"{second}.{int(at_unix_seconds % 1 * 1e6):06d}"
    return f"{moment} {pid:>5}:{pid:<5} ERROR {component:>{_COMPONENT_WIDTH}}:{name:<{_FUNCTION_WIDTH}}{text}"


def failure_lines(
    causes: Iterable[tuple[str, str]],
    status: NrtStatus,
    facts: Iterable[tuple[str, str]],
    pid: int,
    at_unix_seconds: float,
) -> Iterator[str]:
    """What is logged of an execution that failed: its causes, the status, and a block of facts for a report."""
    for function, text in causes:
        yield error_line(function, text, pid, at_unix_seconds)
    yield error_line("NMGR:dlr_infer", f"Inference completed with err: {int(status)}", pid, at_unix_seconds)
    dump = (
        "------------->8------------[ cut here ]------------>8-------------",
        *(f"{name}: {value}" for name, value in facts),
        f"Failure: NRT_{status.name} in nrt_execute()",
        "------------->8------------[ cut to here ]------------>8-------------",
    )
    for text in dump:
        yield error_line("NRT:nrt_infodump", text, pid, at_unix_seconds)
