"""The control channel: lines that the daemon sends on the attach connection, and their handlers. Imports no torch."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from random import Random
from threading import Event, Lock, Thread
from typing import Any

from neurontools.faults.kinds import KINDS, FaultDuration, FaultEffect, FaultKind
from neurontools.rpc import profile_protocol
from neurontools.runtime.reporting.daemon_connection import DaemonConnection

_MAX_LINE_BYTES = 2**16

LineHandler = Callable[[bytes, Callable[[], int | None]], None]
"""Handles one line: receives the text after its first word, and a function that returns the descriptor sent with it.

The handler raises ValueError, KeyError or TypeError for a malformed line, which is then ignored.
"""


class ControlChannel:
    """Reads the lines of one daemon and calls the handler of each line's first word.

    Lines are handled in order. A line without a handler is ignored, because it may come from a newer daemon. File
    descriptors from the daemon are queued: a handler that takes a descriptor gets the oldest.
    """

    def __init__(self, handlers: Mapping[bytes, LineHandler]) -> None:
        self._handlers = handlers
        self._unfinished_line = b""
        self._descriptors: list[int] = []

    def listen(self, connection: DaemonConnection) -> None:
        """Handles the lines that have arrived, then starts a thread that handles later lines.

        If the system refuses a thread, later lines are not handled.
        """
        while received := connection.recv(waits=False):
            self._handle(*received)
        try:
            Thread(target=self._handle_all, args=(connection,), name="neurontools-daemon-lines", daemon=True).start()
        except RuntimeError:
            self._close_descriptors()

    def _handle_all(self, connection: DaemonConnection) -> None:
        while received := connection.recv(waits=True):
            self._handle(*received)
        self._close_descriptors()

    def _handle(self, data: bytes, descriptor: int | None) -> None:
        if descriptor is not None:
            self._descriptors.append(descriptor)
        *lines, rest = (self._unfinished_line + data).split(b"\n")
        self._unfinished_line = rest if len(rest) <= _MAX_LINE_BYTES else b""
        for line in lines:
            word, _, value = line.partition(b" ")
            handler = self._handlers.get(word)
            if handler is not None:
                try:
                    handler(value, self._next_descriptor)
                except (ValueError, KeyError, TypeError):
                    continue

    def _next_descriptor(self) -> int | None:
        return self._descriptors.pop(0) if self._descriptors else None

    def _close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


class CaptureRequests:
    """Calls `start_capture` in the control thread for each profile request. `start_capture` must not raise or block.

    `start_capture` receives the options and the socket to which the profile is written. The client closes its end of
    the socket when it stops waiting.
    """

    def __init__(self, start_capture: Callable[[profile_protocol.ProfileOptions, socket.socket], None]) -> None:
        self._start_capture = start_capture

    @property
    def handlers(self) -> dict[bytes, LineHandler]:
        """Handlers of the control channel's lines, by the first word of the line."""
        return {profile_protocol.PROFILE: self._handle_request}

    def on_attach(self, connection: DaemonConnection) -> None:
        """Announces to the daemon that this process can be profiled."""
        connection.send(profile_protocol.CAN_BE_PROFILED + b"\n")

    def _handle_request(self, value: bytes, next_descriptor: Callable[[], int | None]) -> None:
        descriptor = next_descriptor()
        if descriptor is None:  # at its descriptor limit, a process receives lines without descriptors
            return
        try:
            channel = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            return
        try:
            options = profile_protocol.decode_forwarded_request(value)
        except ValueError:
            channel.close()
            raise
        self._start_capture(options, channel)


class ArmedFault:
    """An injected fault that will hit executions of this process.

    `places` maps each local core to its device and its position on the device. `devices` are all devices of the fault,
    such as both ends of a link. `over` is an event that is set when the
    fault ends or is healed.
    """

    __slots__ = (
        "amount",
        "devices",
        "executions_left",
        "has_begun",
        "kind",
        "number",
        "over",
        "places",
        "probability",
        "random",
    )

    def __init__(self, fields: dict[str, Any]) -> None:
        self.number = int(fields["number"])
        self.kind: FaultKind = KINDS[fields["kind"]]
        self.places = {int(core): (int(device), int(position)) for core, device, position in fields["cores"]}
        self.devices = frozenset(int(device) for device in fields.get("devices", ()))
        self.executions_left = int(fields["after_executions"])
        self.probability = float(fields["probability"])
        self.amount = None if fields["amount"] is None else float(fields["amount"])
        self.random = Random(f"{fields['seed']} {sorted(self.places)}")  # noqa: S311
        self.over = Event()
        self.has_begun = False

    def applies_to_next_execution(self) -> bool:
        """Returns whether this fault hits the execution that begins now. Call this once for each execution."""
        if self.over.is_set():
            return False
        if self.executions_left > 0:
            self.executions_left -= 1
            return False
        is_certain = self.probability >= 1 or (self.has_begun and self.kind.effect is FaultEffect.FAILS)
        return is_certain or self.random.random() < self.probability


class ArmedFaults:
    """The armed faults of this process.

    `by_core` maps a local core to its faults. It is empty without faults, so that an execution can check it cheaply.
    """

    def __init__(self) -> None:
        self.by_core: dict[int, tuple[ArmedFault, ...]] = {}
        self._by_number: dict[int, ArmedFault] = {}
        self._lock = Lock()  # held to change the faults; reading `by_core` needs no lock
        self._send: Callable[[bytes], None] = lambda _line: None

    @property
    def handlers(self) -> dict[bytes, LineHandler]:
        """Handlers of the control channel's lines, by the first word of the line."""
        return {
            b"fault": lambda value, _descriptor: self._arm(ArmedFault(json.loads(value))),
            b"heal": lambda value, _descriptor: self._heal(int(value)),
        }

    def on_attach(self, connection: DaemonConnection) -> None:
        """Ends the faults that the previous daemon injected, except faults that last until the process ends."""
        numbers = [number for number, fault in self._by_number.items() if fault.kind.lasts is not FaultDuration.PROCESS]
        for number in numbers:
            self._heal(number)
        self._send = connection.send

    def faults_for_execution(self, core: int) -> list[ArmedFault]:
        """Returns the faults that hit the execution that begins now on a local core."""
        return [fault for fault in self.by_core.get(core, ()) if fault.applies_to_next_execution()]

    def report_begin(self, fault: ArmedFault, core: int) -> None:
        """Reports to the daemon that a fault has hit an execution. Does so once for each fault."""
        if not fault.has_begun:
            fault.has_begun = True
            self._send(b"met %d %d\n" % (fault.number, core))

    def acknowledge(self, fault: ArmedFault, core: int) -> None:
        """Reports to the daemon that a fault has taken effect. Ends a fault that lasts one execution."""
        self._send(b"told %d %d\n" % (fault.number, core))
        if fault.kind.lasts is FaultDuration.ONE_EXECUTION:
            self._heal(fault.number)

    def _arm(self, fault: ArmedFault) -> None:
        with self._lock:
            before = self._by_number.get(fault.number)
            if before is not None:
                fault.over, fault.has_begun = before.over, before.has_begun
            self._by_number[fault.number] = fault
            self._update_by_core()
        self._send(b"armed %d\n" % fault.number)

    def _heal(self, number: int) -> None:
        with self._lock:
            fault = self._by_number.get(number)
            # A fault that lasts until the process ends can't be healed once it has hit an execution.
            if fault is None or (fault.has_begun and fault.kind.lasts is FaultDuration.PROCESS):
                return
            del self._by_number[number]
            fault.over.set()
            self._update_by_core()

    def _update_by_core(self) -> None:
        by_core: dict[int, tuple[ArmedFault, ...]] = {}
        for fault in self._by_number.values():
            for core in fault.places:
                by_core[core] = (*by_core.get(core, ()), fault)
        self.by_core = by_core
