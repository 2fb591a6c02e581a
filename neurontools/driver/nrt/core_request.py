"""Which NeuronCores a process asks for, read from its environment as the Neuron runtime reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neurontools.driver.nrt.environment import (
    NUM_CORES,
    VISIBLE_CORES,
    InvalidCoreRequest,
    logical_neuroncore_config,
    shown,
)
from neurontools.driver.nrt.status import CORES_NOT_CONTIGUOUS

HIGHEST_CORE = 65535  # far above any host; bounds what a typing error can ask for
_MAX_DIGITS = 5


@dataclass(frozen=True, slots=True)
class CoreRequest:
    """A request for logical cores; `first` and `count` are None when they don't matter.

    first and count: this range (NEURON_RT_VISIBLE_CORES). count alone: so many contiguous ones, wherever they are free
    (NEURON_RT_NUM_CORES). Neither: all cores of the host. `logical_neuroncore_config` None: the host's default.
    """

    first: int | None = None
    count: int | None = None
    logical_neuroncore_config: int | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> CoreRequest:
        """The request that a process with this environment makes; VISIBLE_CORES beats NUM_CORES."""
        lnc = logical_neuroncore_config(environment)
        visible = environment.get(VISIBLE_CORES, "").strip()
        if visible:
            first, count = parse_visible_cores(visible)
            return cls(first, count, lnc)
        number = environment.get(NUM_CORES, "").strip()
        if number:
            if not _is_core_number(number):
                raise InvalidCoreRequest(
                    f"{NUM_CORES}={shown(number)}: not a number of cores; give a whole number from 1 to the cores of "
                    "the host, or unset it for all"
                )
            return cls(count=int(number) or None, logical_neuroncore_config=lnc)
        return cls(logical_neuroncore_config=lnc)


def parse_visible_cores(text: str) -> tuple[int, int]:
    """First core and count of a NEURON_RT_VISIBLE_CORES value such as `3`, `3-6`, `3,4,5` or `3-5,6`.

    Raises InvalidCoreRequest unless the cores are contiguous and increasing.
    """
    (first, last), *further = [_core_range(part, text) for part in text.split(",")]
    for start, end in further:
        if start != last + 1:
            raise InvalidCoreRequest(
                f"{CORES_NOT_CONTIGUOUS}: {VISIBLE_CORES}={shown(text)} continues with {start} where {last + 1} was "
                "due; give one contiguous, increasing range such as 0-3"
            )
        last = end
    return first, last + 1 - first


def _core_range(part: str, whole: str) -> tuple[int, int]:
    low, dash, high = (piece.strip() for piece in part.partition("-"))
    start, end = _core(low, whole), _core(high if dash else low, whole)
    if end < start:
        raise InvalidCoreRequest(
            f"{VISIBLE_CORES}={shown(whole)}: the range {start}-{end} runs backwards; write {end}-{start}"
        )
    return start, end


def _core(text: str, whole: str) -> int:
    if not _is_core_number(text):
        raise InvalidCoreRequest(
            f"{VISIBLE_CORES}={shown(whole)}: {shown(text)} is not a core index; give cores such as 3, 3-6 or 3,4,5"
        )
    return int(text)


def _is_core_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS and int(text) <= HIGHEST_CORE
