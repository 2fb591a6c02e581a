"""Faults that were injected into the cores of this process, and which executions meet them.

The daemon says it on the attach connection. Where nothing was injected, an execution asks one empty dictionary.
No torch here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from threading import Event, Lock
from typing import Any

from neurontools.faults.kind import Effect, FaultKind, Lasting
from neurontools.faults.kinds import KINDS
from neurontools.runtime.reporting.daemon_lines import TakeLine
from neurontools.runtime.reporting.link import Link


class ArmedFault:
    """One fault that executions of this process are to meet. `over` is set when it ends or is healed.

    `places` has device and NeuronCore on it by local core.
    """

    __slots__ = ("amount", "has_begun", "kind", "left", "number", "over", "places", "probability", "random")

    def __init__(self, told: dict[str, Any]) -> None:
        self.number = int(told["number"])
        self.kind: FaultKind = KINDS[told["kind"]]
        self.places = {int(core): (int(device), int(position)) for core, device, position in told["cores"]}
        self.left = int(told["after_executions"])
        self.probability = float(told["probability"])
        self.amount = None if told["amount"] is None else float(told["amount"])
        self.random = Random(f"{told['seed']} {sorted(self.places)}")  # noqa: S311
        self.over = Event()
        self.has_begun = False

    def strikes(self) -> bool:
        """Whether the execution that begins now meets it; each is to be asked about once."""
        if self.over.is_set():
            return False
        if self.left > 0:
            self.left -= 1
            return False
        is_certain = self.probability >= 1 or (self.has_begun and self.kind.effect is Effect.FAILS)
        return is_certain or self.random.random() < self.probability


class ArmedFaults:
    """All of them. `by_core` has them by local core; a core without any isn't in it."""

    def __init__(self) -> None:
        self.by_core: dict[int, tuple[ArmedFault, ...]] = {}
        self._known: dict[int, ArmedFault] = {}
        self._lock = Lock()  # of `_known`; `by_core` is replaced as a whole
        self._say: Callable[[bytes], None] = lambda _line: None

    @property
    def takers(self) -> dict[bytes, TakeLine]:
        """What it takes of what a daemon says."""
        return {
            b"fault": lambda value, _descriptor: self._arm(ArmedFault(json.loads(value))),
            b"heal": lambda value, _descriptor: self._heal(int(value)),
        }

    def attached(self, link: Link) -> None:
        """This process is attached to a daemon: the faults of the one before are over."""
        for number in [number for number, fault in self._known.items() if fault.kind.lasts is not Lasting.PROCESS]:
            self._heal(number)
        self._say = link.say

    def striking(self, core: int) -> list[ArmedFault]:
        """The faults that the execution which begins now on a local core meets."""
        return [fault for fault in self.by_core.get(core, ()) if fault.strikes()]

    def met(self, fault: ArmedFault, core: int) -> None:
        """An execution meets a fault: the daemon hears of the first."""
        if not fault.has_begun:
            fault.has_begun = True
            self._say(b"met %d %d\n" % (fault.number, core))

    def told(self, fault: ArmedFault, core: int) -> None:
        """The runtime has told of it; what one execution meets is over then."""
        self._say(b"told %d %d\n" % (fault.number, core))
        if fault.kind.lasts is Lasting.ONE_EXECUTION:
            self._heal(fault.number)

    def _arm(self, fault: ArmedFault) -> None:
        with self._lock:
            before = self._known.get(fault.number)
            if before is not None:
                fault.over, fault.has_begun = before.over, before.has_begun
            self._known[fault.number] = fault
            self._sort()
        self._say(b"armed %d\n" % fault.number)

    def _heal(self, number: int) -> None:
        with self._lock:
            fault = self._known.get(number)
            # A process that has lost its execution unit gets it back by no repair.
            if fault is None or (fault.has_begun and fault.kind.lasts is Lasting.PROCESS):
                return
            del self._known[number]
            fault.over.set()
            self._sort()

    def _sort(self) -> None:
        by_core: dict[int, tuple[ArmedFault, ...]] = {}
        for fault in self._known.values():
            for core in fault.places:
                by_core[core] = (*by_core.get(core, ()), fault)
        self.by_core = by_core
