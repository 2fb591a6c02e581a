"""What a kind of fault is: one definition of all that it shows, which daemon, runtime, commands and documents go by."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from neurontools.driver.neuron_runtime import NrtStatus


class Lasting(StrEnum):
    """How long a fault lasts by itself; the texts complete "it lasts …"."""

    ONE_EXECUTION = "one execution"
    PROCESS = "as long as the process: every later execution of it fails too"
    RESET = "until the device is reset: later processes meet it too"
    REPLACEMENT = "until the host is replaced: later processes meet it too"
    CONDITION = "until it is healed"


class Effect(StrEnum):
    """What an execution that meets the fault does."""

    NOTHING = "goes on"
    FAILS = "fails"
    HANGS = "hangs until its time-out, then fails"
    HANGS_IN_COLLECTIVE = "hangs in its next collective until its time-out, then fails"
    HAS_NAN = "has NaN in its results"
    HAS_FLIPPED_BITS = "has wrong results, and nobody tells"
    IS_SLOW = "takes longer"
    IS_LATE_IN_COLLECTIVES = "takes longer in each collective"


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of a fault there is: its unit, the default and the bounds."""

    unit: str
    default: float
    least: float
    most: float
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the runtime's log: the function that writes it, and a template.

    Templates may name `device`, `core` (of the device), `engine`, `timeout_ms`, `model`, its number of
    `collectives`.
    """

    function: str
    text: str


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault.

    `ecc` names the counters of the device that move when it begins, `component` the part that the driver calls
    unhealthy for as long as it lasts. `counter` is the driver's of the core that meets it, `kernel_error` the name in
    the kernel's log. `loses_host`: it is of the whole host and has no other target. The last line of `log` is the text
    of the error. `findings` are kinds of `neurontools.model.health`.
    """

    name: str
    summary: str
    lasts: Lasting
    effect: Effect = Effect.NOTHING
    status: NrtStatus = NrtStatus.SUCCESS
    log: tuple[LogLine, ...] = ()
    ecc: tuple[str, ...] = ()
    counter: str | None = None
    kernel_error: str | None = None
    component: str | None = None
    loses_device: bool = False
    loses_reports: bool = False
    loses_host: bool = False
    findings: tuple[str, ...] = ()
    amount: Amount | None = None
    takes_part: bool = False
    source: str = ""

    @property
    def is_met(self) -> bool:
        """Whether executions meet it."""
        return self.effect is not Effect.NOTHING

    @property
    def outlives_process(self) -> bool:
        """Whether processes that come later meet it too."""
        return self.lasts not in (Lasting.ONE_EXECUTION, Lasting.PROCESS)
