"""Attaches a training process to the daemon and reports its activity."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from queue import Empty, SimpleQueue
from threading import RLock, Thread

from neurontools.driver.environment import PROCESS_TAG
from neurontools.driver.neuron_runtime import CoreRequest
from neurontools.model import DeviceMemory, HostMemory, OperatorTime, ScriptAdvice, TrainingCounters
from neurontools.rpc import neuron_pb2
from neurontools.rpc.call import RpcError, Status
from neurontools.rpc.socket_path import candidate_sockets, configured_socket, validate_socket_path
from neurontools.runtime.reporting.control_channel import ArmedFaults, CaptureRequests, ControlChannel, LineHandler
from neurontools.runtime.reporting.daemon_connection import (
    CoresUnavailable,
    DaemonConnection,
    DaemonUnavailable,
    build_attach_request,
    parse_granted_cores,
    pin_granted_cores,
    requested_cores,
)
from neurontools.runtime.reporting.event_queue import EventQueue, LoadedModel
from neurontools.runtime.reporting.process_counters import (
    DeviceMemoryCategory,
    ErrorKind,
    HostMemoryCategory,
    ProcessCounters,
)
from neurontools.runtime.reporting.stderr_lines import write_stderr_line
from neurontools.util.errors import EXIT_NO_DAEMON, UserError
from neurontools.util.version import __version__

REQUIRE_DAEMON = "NEURONTOOLS_REQUIRE_DAEMON"
FIRST_ATTACH_TIMEOUT_SECONDS = 5.0  # the caller waits for this one
CALL_TIMEOUT_SECONDS = 2.0
_EARLY_SHARE = 0.1
DEFAULT_INTERVAL_SECONDS = 1.0
SHORTEST_INTERVAL_SECONDS, LONGEST_INTERVAL_SECONDS = 0.01, 60.0


class Reporter:
    """Holds this process's NeuronCores and reports what it does on them, once an interval from a thread of its own.

    Made by `attach`. After that no method raises, waits (but `flush` and `close`) or does I/O in the calling thread:
    calls are noted and the notes applied later, so any thread may call them, finalizers and signal handlers too. What
    fails is counted: `ignored_calls`, `dropped_reports`, `last_error`.

    `cores` are the NeuronCores, by local index. An unmonitored process has as many as its environment asks for, and
    is told the rest (a new tuple) when a daemon comes up.

    A forked child does not report: there the methods do nothing, and the cores stay the parent's until it ends.
    """

    def __init__(
        self,
        request: CoreRequest,
        tag: str,
        runtime_version: str,
        sockets: tuple[str, ...],
        clock: Callable[[], float],
        unix_clock: Callable[[], float],
        faults: ArmedFaults | None = None,
        captures: CaptureRequests | None = None,
    ) -> None:
        self.cores = requested_cores(request)
        self.instance_type: str | None = None
        self.logical_neuroncore_config = request.logical_neuroncore_config
        self.dropped_reports = 0
        self.faults = faults
        self._captures = captures
        self._failure: str | None = None
        self._request = build_attach_request(request, tag, runtime_version)
        self._sockets = sockets
        self._clock = clock
        self._unix_clock = unix_clock
        self._accounts = ProcessCounters(counted_since_seconds=clock())
        self._journal = EventQueue()
        self._interval_seconds = DEFAULT_INTERVAL_SECONDS
        self._report_at_seconds: float | None = None
        self._link: DaemonConnection | None = None
        self._wishes: SimpleQueue[SimpleQueue[bool] | None] = SimpleQueue()  # who waits for a report; None: the end
        self._last_words = ExitFlush(self._wishes)
        self._told: set[str] = set()
        self._look: Callable[[Reporter], None] | None = None
        self._is_open = True

    @classmethod
    def attach(
        cls,
        environment: Mapping[str, str] = os.environ,
        *,
        socket: str | None = None,
        runtime_version: str = __version__,
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
        faults: ArmedFaults | None = None,
        captures: CaptureRequests | None = None,
    ) -> Reporter:
        """Takes the NeuronCores that the environment asks for and begins to report.

        Raises CoresUnavailable when the daemon refuses them, InvalidCoreRequest (a ValueError) when the environment
        can't be meant, UserError for an impossible socket path. Without a daemon the process goes on unmonitored and
        is attached when one comes up; with NEURONTOOLS_REQUIRE_DAEMON=1 that is a UserError instead. Who has executions
        meet what was injected gives `faults`, which then hears of it; who can be profiled gives `captures`.
        """
        path = validate_socket_path(socket, "socket") if socket is not None else configured_socket(None, environment)
        reporter = cls(
            CoreRequest.from_environment(environment),
            environment.get(PROCESS_TAG, ""),
            runtime_version,
            (path,) if path is not None else candidate_sockets(environment),
            clock,
            unix_clock,
            faults,
            captures,
        )
        try:
            reporter._start(is_daemon_required=environment.get(REQUIRE_DAEMON, "") not in ("", "0"))
        except BaseException:
            reporter.close()
            raise
        return reporter

    @property
    def is_monitored(self) -> bool:
        """Whether this process is attached to a daemon, as far as is known: a look, no question to the daemon."""
        link = self._link
        return link is not None and link.is_attached

    @property
    def ignored_calls(self) -> int:
        """How many calls could not be counted for their arguments: a core or a category that isn't there."""
        return self._journal.ignored

    @property
    def last_error(self) -> str | None:
        """Why the latest report did not arrive; else why the latest of the ignored calls was; else None."""
        return self._failure or self._journal.last_error

    def load_model(
        self,
        name: str,
        uuid: str | None = None,
        memory: Mapping[int, DeviceMemory] | None = None,
        host_memory: HostMemory | None = None,
    ) -> LoadedModel:
        """A model is loaded; `memory` by local core counts towards the memory of the cores.

        `uuid` is 32 hexadecimal digits; without it one is made from the name.
        """
        model = LoadedModel(name, self._journal, self._accounts, self._clock)
        self._journal.note(self._accounts.load, model, name, uuid, dict(memory or {}), host_memory or HostMemory())
        return model

    def unload_model(self, model: LoadedModel) -> None:
        """A model is gone, and its memory is free; what it executed stays counted."""
        self._journal.note(self._accounts.unload, model)

    def add_memory(self, core: int, category: DeviceMemoryCategory, delta_bytes: int) -> None:
        """Memory of a core was taken, or given back where `delta_bytes` is negative."""
        self._journal.note(self._accounts.add_memory, core, category, delta_bytes)

    def set_memory(self, core: int, category: DeviceMemoryCategory, size_bytes: int) -> None:
        """Memory that is in use on a core now, apart from that of its models."""
        self._journal.note(self._accounts.set_memory, core, category, size_bytes)

    def set_host_memory(self, category: HostMemoryCategory, size_bytes: int) -> None:
        """Host memory that serves the cores now, apart from that of the models."""
        self._journal.note(self._accounts.set_host_memory, category, size_bytes)

    def error(self, kind: ErrorKind) -> None:
        """An error happened. It is told when the reporter is closed, if not before; one of the hardware at once."""
        self._journal.note(self._accounts.add_error, kind)
        self._last_words.has_untold_error = True
        if kind == ErrorKind.HARDWARE and self._is_open:
            self._last_words.wish()

    def set_training(self, counters: TrainingCounters, operators: tuple[OperatorTime, ...] = ()) -> None:
        """What was counted so far beside executions, and by kind of operator; no counter may fall."""
        self._journal.note(self._accounts.set_training, counters, operators)

    def set_advice(self, advice: Sequence[ScriptAdvice]) -> None:
        """What the script could do better, what costs most first."""
        self._journal.note(self._accounts.set_advice, advice)

    def before_reports(self, look: Callable[[Reporter], None]) -> None:
        """Has `look` called before each report from now on, in the reporter's thread, to tell what it does not note."""
        self._look = look

    def flush(self, timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> bool:
        """Waits until the daemon has a report of everything so far; False when it did not get one in time."""
        if not self._is_open:
            return False
        arrived: SimpleQueue[bool] = SimpleQueue()
        self._wishes.put(arrived)
        try:
            return arrived.get(timeout=timeout_seconds)
        except Empty:
            return False

    def close(self) -> None:
        """Gives the cores back and stops reporting; the methods do nothing from here on. May be called again.

        It waits a moment for the report of an error that was not told yet, or is on its way.
        """
        if self._is_open:
            self._last_words.wait()
        with fork_lock:  # no link comes up after this
            if not self._is_open:
                return
            self._is_open = False
            close_in_child.discard(self._switch_off_in_child)
            self._journal.switch_off()
            self._wishes.put(None)
            if self._link is not None:
                self._link.close()
        atexit.unregister(self.close)

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, *, is_daemon_required: bool) -> None:
        """Attaches and starts the thread. Where the system refuses a thread, the process is attached and silent."""
        close_in_child.add(self._switch_off_in_child)
        atexit.register(self.close)
        try:
            self._attach(FIRST_ATTACH_TIMEOUT_SECONDS)
        except DaemonUnavailable as error:
            if is_daemon_required:
                raise UserError(
                    f"no monitor daemon at {error}, and {REQUIRE_DAEMON} is set; "
                    'start one with "neurond --simulate trn1.32xlarge", or unset it',
                    EXIT_NO_DAEMON,
                ) from error
            self._tell_once(
                "absent", f"no monitor daemon at {error}: nothing is monitored; start neurond to see this process"
            )
        try:
            Thread(target=self._run, name="neurontools-reporter", daemon=True).start()
        except RuntimeError as error:
            self._failure = str(error)
            self._journal.switch_off()

    def _run(self) -> None:
        """The thread: a report each interval, and one more for each wish."""
        wait_seconds = 0.0 if self.is_monitored else self._interval_seconds
        while self._is_open:
            try:
                wishes = [self._wishes.get(timeout=wait_seconds)]
            except Empty:
                wishes = []
            while not self._wishes.empty():
                wishes.append(self._wishes.get())
            arrived = self._is_open and self._report_safely()
            for wish in wishes:
                if wish is not None:
                    wish.put(arrived)
            wait_seconds = self._next_report_seconds()

    def _next_report_seconds(self) -> float:
        """How long until the next report: it comes at the moments that the daemon has asked for."""
        interval_seconds, at_seconds = self._interval_seconds, self._report_at_seconds
        if at_seconds is None:
            return interval_seconds
        left_seconds = (at_seconds - time.monotonic()) % interval_seconds
        # What comes a little early doesn't come twice.
        return left_seconds if left_seconds > _EARLY_SHARE * interval_seconds else left_seconds + interval_seconds

    def _report_safely(self) -> bool:
        """Reports; answers whether it arrived. No error leaves it: whatever goes wrong, training goes on."""
        try:
            self._report()
        except Exception as error:
            self.dropped_reports += 1
            self._failure = str(error) or type(error).__name__
            self._act_on(error)
            return False
        self._failure = None
        self._told.discard("refused")
        return True

    def _report(self) -> None:
        link = self._link
        if link is None or not link.is_attached or link.is_ended():
            self._attach(CALL_TIMEOUT_SECONDS)
            link = self._link
        if link is None:
            return  # closed in the meantime
        self._look_around()
        self._last_words.has_untold_error = False
        with self._journal.settled():
            now_seconds = self._clock()
            report = self._accounts.report(len(self.cores), now_seconds, self._unix_clock() - now_seconds)
        link.report(report, CALL_TIMEOUT_SECONDS)
        with self._journal.settled():
            self._accounts.arrived()

    def _look_around(self) -> None:
        """What the look finds; where it fails, the report goes without and the failure is told."""
        if self._look is None:
            return
        try:
            self._look(self)
        except Exception as error:
            self._journal.ignored += 1
            self._journal.last_error = str(error) or type(error).__name__

    def _act_on(self, error: Exception) -> None:
        """What follows from an error, and what the user is told of it, once."""
        if isinstance(error, CoresUnavailable):
            self._tell_once("refused", f"this process is not monitored: {error}; trying again until it can be")
        elif isinstance(error, RpcError):
            if error.code == Status.UNAUTHENTICATED and self._link is not None:
                self._link.close()
            elif error.code == Status.RESOURCE_EXHAUSTED:
                self._tell_once("memory", f"the monitor daemon refuses what this process reports: {error.details}")
            elif error.code == Status.INVALID_ARGUMENT:
                self._tell_once("invalid", f"the monitor daemon refuses what this process reports: {error.details}")

    def _attach(self, timeout_seconds: float) -> None:
        """Takes the cores at the first socket where a daemon answers, and from then on only there."""
        failures = []
        for path in self._sockets:
            link = self._new_link(path)
            try:
                response = link.attach(self._request, timeout_seconds)
            except DaemonUnavailable as error:
                link.close()
                failures.append(f"unix:{path} ({error})")
            except BaseException:
                link.close()
                raise
            else:
                self._take(response)
                self._listen(link)
                self._sockets = (path,)
                return
        raise DaemonUnavailable(", ".join(failures))

    def _listen(self, link: DaemonConnection) -> None:
        """Has what the daemon says on the attach connection heard by whom it is for, if there is anybody."""
        takers: dict[bytes, LineHandler] = {}
        for hearer in (self.faults, self._captures):
            if hearer is not None:
                hearer.attached(link)
                takers |= hearer.takers
        if takers:
            ControlChannel(takers).listen(link)

    def _new_link(self, path: str) -> DaemonConnection:
        """A link that is known to the fork handler from the moment it has a descriptor."""
        with fork_lock:
            if not self._is_open:
                raise DaemonUnavailable("the reporter is closed")
            if self._link is not None:
                self._link.close()
            self._link = DaemonConnection(path)
            return self._link

    def _take(self, response: neuron_pb2.AttachResponse) -> None:
        """What the daemon granted; the next attach asks for the very same cores."""
        self.cores = parse_granted_cores(response)
        self.instance_type = response.instance_type
        self.logical_neuroncore_config = response.logical_neuroncore_config
        if isfinite(response.interval_seconds) and response.interval_seconds > 0:
            bounded = max(SHORTEST_INTERVAL_SECONDS, response.interval_seconds)
            self._interval_seconds = min(bounded, LONGEST_INTERVAL_SECONDS)
        has_moments = response.HasField("report_at_seconds") and isfinite(response.report_at_seconds)
        is_taken_as_is = self._interval_seconds == response.interval_seconds
        self._report_at_seconds = response.report_at_seconds if has_moments and is_taken_as_is else None
        self._accounts.core_count = len(response.cores)
        pin_granted_cores(self._request, response)

    def _tell_once(self, matter: str, text: str) -> None:
        """One line on standard error, unless this matter was told before."""
        if matter in self._told:
            return
        self._told.add(matter)
        if not write_stderr_line(f"neurontools: {text}"):
            self._failure = text

    def _switch_off_in_child(self) -> None:
        """In a forked child: the notes vanish, and the parent's end is seen although this copy lives on."""
        self._is_open = False
        self._journal.switch_off()
        if self._link is not None:
            self._link.close()


close_in_child: set[Callable[[], None]] = set()
"""What a forked child calls: for each open reporter, what switches it off."""
fork_lock = RLock()
"""Held while a link gets its descriptor, so that no child has one its reporter does not know of; never during I/O."""


def _after_fork_in_child() -> None:
    fork_lock.release()
    for switch in tuple(close_in_child):
        switch()
    close_in_child.clear()


os.register_at_fork(before=fork_lock.acquire, after_in_parent=fork_lock.release, after_in_child=_after_fork_in_child)


EXIT_FLUSH_SECONDS = 1.0


class ExitFlush:
    """Asks for reports by `wishes`, where whoever reports answers whether one has arrived."""

    def __init__(self, wishes: SimpleQueue[SimpleQueue[bool] | None]) -> None:
        self._wishes = wishes
        self._answer: SimpleQueue[bool] | None = None
        self.has_untold_error = False

    def wish(self) -> None:
        """Asks for a report, unless one was asked for that has not come."""
        if self._answer is None or not self._answer.empty():
            self._answer = SimpleQueue()
            self._wishes.put(self._answer)

    def wait(self) -> None:
        """Waits a moment until the daemon knows of all errors, if there were any."""
        if self.has_untold_error:
            self.wish()
        if self._answer is not None and self._answer.empty():
            with suppress(Empty):
                self._answer.put(self._answer.get(timeout=EXIT_FLUSH_SECONDS))
