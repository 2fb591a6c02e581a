"""The control channel: lines that the daemon sends on the attach connection, and their handlers."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from threading import Event, Lock, Thread
from typing import Any

from neurontools.faults.kind import Effect, FaultKind, Lasting
from neurontools.faults.kinds import KINDS
from neurontools.rpc import profile_protocol
from neurontools.runtime.reporting.daemon_connection import DaemonConnection

_LONGEST_BYTES = 2**16  # of a line that has not ended

LineHandler = Callable[[bytes, Callable[[], int | None]], None]
"""Takes what follows the first word, and what gives the descriptor that came with it. For what can't be meant, which is
passed over, it raises ValueError, KeyError or TypeError."""


class ControlChannel:
    """Listens to one daemon after the other; `takers` by first word."""

    def __init__(self, takers: Mapping[bytes, LineHandler]) -> None:
        self._takers = takers

    def listen(self, link: DaemonConnection) -> None:
        """Takes what a daemon has said by now, and goes on listening in a thread.

        Where the system refuses a thread, only what was said already is heard.
        """
        heard = _LineReader(self._takers)
        while said := link.heard(waits=False):
            heard.take(*said)
        try:
            Thread(target=heard.follow, args=(link,), name="neurontools-daemon-lines", daemon=True).start()
        except RuntimeError:
            heard.close()


class _LineReader:
    """What one daemon has said and was not taken yet."""

    def __init__(self, takers: Mapping[bytes, LineHandler]) -> None:
        self._takers = takers
        self._rest = b""
        self._descriptors: list[int] = []

    def follow(self, link: DaemonConnection) -> None:
        while said := link.heard(waits=True):
            self.take(*said)
        self.close()

    def take(self, said: bytes, descriptor: int | None) -> None:
        """Takes whole lines."""
        if descriptor is not None:
            self._descriptors.append(descriptor)
        *lines, rest = (self._rest + said).split(b"\n")
        self._rest = rest if len(rest) <= _LONGEST_BYTES else b""
        for line in lines:
            word, _, value = line.partition(b" ")
            taker = self._takers.get(word)
            if taker is not None:
                try:
                    taker(value, self._descriptor)
                except (ValueError, KeyError, TypeError):
                    continue

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _descriptor(self) -> int | None:
        return self._descriptors.pop(0) if self._descriptors else None


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """A profile that is asked for.

    `channel` leads to who asked: the profile is written to it, and its end says that nobody waits any more.
    """

    wanted: profile_protocol.ProfileOptions
    channel: socket.socket


class CaptureRequests:
    """Gives requests to `take`, in the thread that listens to the daemon; it may raise nothing and wait for nothing."""

    def __init__(self, take: Callable[[CaptureRequest], None]) -> None:
        self._take = take

    @property
    def takers(self) -> dict[bytes, LineHandler]:
        """What it takes of what a daemon says."""
        return {profile_protocol.PROFILE: self._asked}

    def attached(self, link: DaemonConnection) -> None:
        """This process is attached to a daemon, which is told that profiles can be asked for."""
        link.say(profile_protocol.CAN_BE_PROFILED + b"\n")

    def _asked(self, value: bytes, descriptor: Callable[[], int | None]) -> None:
        number = descriptor()
        if number is None:  # the system refused one more
            return
        try:
            channel = socket.socket(fileno=number)
        except OSError:
            os.close(number)
            return
        try:
            request = CaptureRequest(profile_protocol.read_passed_on(value), channel)
        except ValueError:
            channel.close()
            raise
        self._take(request)


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
    def takers(self) -> dict[bytes, LineHandler]:
        """What it takes of what a daemon says."""
        return {
            b"fault": lambda value, _descriptor: self._arm(ArmedFault(json.loads(value))),
            b"heal": lambda value, _descriptor: self._heal(int(value)),
        }

    def attached(self, link: DaemonConnection) -> None:
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
