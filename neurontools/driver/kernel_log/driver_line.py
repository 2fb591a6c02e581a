"""Lines of the Neuron driver's own that tell of resets, of time-outs, and of its start.

Source: the driver's neuron_reset.c, neuron_dma.c and neuron_module.c (https://github.com/aws-neuron/aws-neuron-driver).
It says the outcome of a reset on the level of information.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Told(StrEnum):
    """What a line tells."""

    STARTED = "started"  # the driver was loaded: what was told before is of another life of the devices
    RESET_DONE = "reset_done"
    RESET_FAILED = "reset_failed"
    DMA_TIMEOUT = "dma_timeout"


@dataclass(frozen=True, slots=True)
class DriverLine:
    """What a line of the driver tells, and of which device; None: of all."""

    told: Told
    device_index: int | None = None


_INDEX = r"nd ?(\d{1,4})\b"
_FORMS = (
    (re.compile(r"Neuron Driver Started with Version"), Told.STARTED),
    (re.compile(rf"\bDMA completion timeout on {_INDEX}"), Told.DMA_TIMEOUT),
    (re.compile(rf"\b{_INDEX}: reset request \d+ completed"), Told.RESET_DONE),
    (re.compile(rf"\b{_INDEX}: reset request \d+ (?:failed|was initiated, but failed)"), Told.RESET_FAILED),
    (re.compile(rf"\b{_INDEX}: failed to (?:initialize dma after|complete post) reset"), Told.RESET_FAILED),
)


def driver_line(text: str) -> DriverLine | None:
    """What the text of a record tells of the driver's devices; None when it tells nothing of that."""
    for form, told in _FORMS:
        found = form.search(text)
        if found is not None:
            return DriverLine(told, int(found[1]) if form.groups else None)
    return None
