"""The Neuron runtime: core requests, status codes, error texts and log format.

Sources: nrt_status.h, the Neuron SDK documentation (nrt-troubleshoot) and issues such as aws-neuron-sdk#851.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from neurontools.driver.environment import (
    NUM_CORES,
    VISIBLE_CORES,
    InvalidCoreRequest,
    logical_neuroncore_config,
    quote_value,
)

DEFAULT_TIMEOUT_SECONDS = 30.0  # default of NEURON_RT_EXEC_TIMEOUT, from the table in its documentation


class NrtStatus(IntEnum):
    """Those status codes of the Neuron runtime (nrt_status.h) that executions in this project can end with."""

    SUCCESS = 0
    FAILURE = 1
    INVALID = 2
    RESOURCE = 4
    TIMEOUT = 5
    UNSUPPORTED_NEFF_VERSION = 10
    EXEC_UNIT_UNRECOVERABLE = 101
    EXEC_BAD_INPUT = 1002
    EXEC_COMPLETED_WITH_NUM_ERR = 1003
    EXEC_COMPLETED_WITH_ERR = 1004
    EXEC_OOB = 1006
    EXEC_HW_ERR_COLLECTIVES = 1200
    EXEC_HW_ERR_HBM_UE = 1201
    EXEC_HW_ERR_NC_UE = 1202
    EXEC_HW_ERR_DMA_ABORT = 1203
    EXEC_SW_NQ_OVERFLOW = 1204
    EXEC_HW_ERR_REPAIRABLE_HBM_UE = 1205
    NETWORK_PROXY_FAILURE = 1206


def cores_not_available(first: int, last: int, available: int, logical_neuroncore_config: int) -> str:
    """Returns the runtime's error text for the case that other processes hold some of the requested cores."""
    prefix = "nc" if logical_neuroncore_config == 1 else "lnc"
    return _not_available_text(f"{prefix}{first}-{prefix}{last}", available, logical_neuroncore_config)


def core_count_not_available(count: int, available: int, logical_neuroncore_config: int) -> str:
    """Returns the runtime's error text for the case that fewer than `count` contiguous cores are free."""
    return _not_available_text(str(count), available, logical_neuroncore_config)


def _not_available_text(requested: str, available: int, logical_neuroncore_config: int) -> str:
    if logical_neuroncore_config == 1:
        return f"NeuronCore(s) not available - Requested:{requested} Available:{available}"
    return (
        f"Logical Neuron Core(s) not available - Requested:{requested} Available:{available} "
        f"Logical Core size:{logical_neuroncore_config} (cores busy, ret=-16)"
    )


CORES_NOT_CONTIGUOUS = "Neuron cores are not contiguous"


HIGHEST_CORE = 65535  # limit of core indices, higher than on any host; rejects mistyped numbers


@dataclass(frozen=True, slots=True)
class CoreRequest:
    """A process's request for logical cores.

    `first` and `count` request a range (NEURON_RT_VISIBLE_CORES). `count` alone requests any contiguous free cores
    (NEURON_RT_NUM_CORES). If both are None, the request is for all cores of the host. `logical_neuroncore_config` None
    means the host's default.
    """

    first: int | None = None
    count: int | None = None
    logical_neuroncore_config: int | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> CoreRequest:
        """Reads the request from an environment. VISIBLE_CORES takes precedence over NUM_CORES."""
        lnc = logical_neuroncore_config(environment)
        visible = environment.get(VISIBLE_CORES, "").strip()
        if visible:
            first, count = parse_visible_cores(visible)
            return cls(first, count, lnc)
        number = environment.get(NUM_CORES, "").strip()
        if number:
            if not _is_core_number(number):
                raise InvalidCoreRequest(
                    f"{NUM_CORES}={quote_value(number)}: not a number of cores; give a whole number from 1 to the "
                    "cores of the host, or unset it for all"
                )
            return cls(count=int(number) or None, logical_neuroncore_config=lnc)
        return cls(logical_neuroncore_config=lnc)


def parse_visible_cores(text: str) -> tuple[int, int]:
    """Parses a NEURON_RT_VISIBLE_CORES value such as `3`, `3-6`, `3,4,5` or `3-5,6` into first core and count.

    Raises InvalidCoreRequest unless the cores are contiguous and increasing.
    """
    (first, last), *further = [_core_range(part, text) for part in text.split(",")]
    for start, end in further:
        if start != last + 1:
            raise InvalidCoreRequest(
                f"{CORES_NOT_CONTIGUOUS}: {VISIBLE_CORES}={quote_value(text)} continues with {start} instead of "
                f"{last + 1}; give one contiguous, increasing range such as 0-3"
            )
        last = end
    return first, last + 1 - first


def _core_range(part: str, whole: str) -> tuple[int, int]:
    low, dash, high = (piece.strip() for piece in part.partition("-"))
    start, end = _core(low, whole), _core(high if dash else low, whole)
    if end < start:
        raise InvalidCoreRequest(
            f"{VISIBLE_CORES}={quote_value(whole)}: the range {start}-{end} runs backwards; write {end}-{start}"
        )
    return start, end


def _core(text: str, whole: str) -> int:
    if not _is_core_number(text):
        raise InvalidCoreRequest(
            f"{VISIBLE_CORES}={quote_value(whole)}: {quote_value(text)} is not a core index; "
            "give cores such as 3, 3-6 or 3,4,5"
        )
    return int(text)


def _is_core_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= HIGHEST_CORE


def runtime_error_line(function: str, text: str, pid: int, at_unix_seconds: float) -> str:
    """Formats a log line. `function` includes the component, such as "TDRV:exec_request_process_errors"."""
    component, _, name = function.partition(":")
    second = time.strftime("%Y-%b-%d %H:%M:%S", time.gmtime(at_unix_seconds))
    moment = f"{second}.{int(at_unix_seconds % 1 * 1e6):06d}"
    return f"{moment} {pid:>5}:{pid:<5} ERROR {component:>5}:{name:<40}{text}"


def execution_failure_lines(
    causes: Iterable[tuple[str, str]],
    status: NrtStatus,
    facts: Iterable[tuple[str, str]],
    pid: int,
    at_unix_seconds: float,
) -> Iterator[str]:
    """Yields the log lines of a failed execution: a line for each cause, the status, then a block with `facts`."""
    for function, text in causes:
        yield runtime_error_line(function, text, pid, at_unix_seconds)
    yield runtime_error_line("NMGR:dlr_infer", f"Inference completed with err: {int(status)}", pid, at_unix_seconds)
    dump = (
        "------------->8------------[ cut here ]------------>8-------------",
        *(f"{name}: {value}" for name, value in facts),
        f"Failure: NRT_{status.name} in nrt_execute()",
        "------------->8------------[ cut to here ]------------>8-------------",
    )
    for text in dump:
        yield runtime_error_line("NRT:nrt_infodump", text, pid, at_unix_seconds)


class InvalidProfileSteps(ValueError):
    """A text is not a range of steps. The message describes valid ranges."""


def parse_profile_steps(text: str) -> tuple[int, int | None]:
    """Parses 10:15, 10:, :15 or 10 into the first and the last step (inclusive). An empty text means all steps."""
    if not text:
        return 1, None
    found = re.fullmatch(r"(\d{0,9})(?:(:)(\d{0,9}))?", text, re.ASCII)
    if found is None or not (found[1] or found[3]):
        raise InvalidProfileSteps(f"{text[:40]!r}: no steps; give the first and the last one, such as 10:15")
    first = int(found[1] or 1)
    last = int(found[3]) if found[3] else None if found[2] else first
    if first < 1 or (last is not None and last < first):
        raise InvalidProfileSteps(f"{text[:40]!r}: steps count from 1, and the last one must not be before the first")
    return first, last
