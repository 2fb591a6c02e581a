"""Attaches a training process to the daemon and reports its activity."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from queue import Empty, SimpleQueue
from threading import Lock, RLock, Thread

from neurontools.driver.environment import PROCESS_TAG
from neurontools.driver.neuron_runtime import CoreRequest
from neurontools.model import DeviceMemory, HostMemory, OperatorTime, ScriptAdvice, ServedModel, TrainingCounters
from neurontools.rpc import neuron_pb2
from neurontools.rpc.call import RpcError, Status
from neurontools.rpc.socket_path import candidate_sockets, configured_socket, validate_socket_path
from neurontools.runtime.reporting.control_channel import ArmedFaults, CaptureRequests, ControlChannel, LineHandler
from neurontools.runtime.reporting.daemon_connection import (
    Core,
    CoresUnavailable,
    DaemonConnection,
    DaemonUnavailable,
    build_attach_request,
)
from neurontools.runtime.reporting.event_queue import EventQueue, LoadedModel
from neurontools.runtime.reporting.process_counters import (
    DeviceMemoryCategory,
    ErrorKind,
    HostMemoryCategory,
    ProcessCounters,
)
from neurontools.runtime.reporting.process_end import at_process_end, forget_function
from neurontools.runtime.reporting.stderr_lines import write_stderr_line
from neurontools.util.errors import EXIT_NO_DAEMON, UserError
from neurontools.util.version import __version__

REQUIRE_DAEMON = "NEURONTOOLS_REQUIRE_DAEMON"
FIRST_ATTACH_TIMEOUT_SECONDS = 5.0  # the training script waits for the first attach
CALL_TIMEOUT_SECONDS = 2.0
EXIT_FLUSH_SECONDS = 1.0
DEFAULT_INTERVAL_SECONDS = 1.0
SHORTEST_INTERVAL_SECONDS, LONGEST_INTERVAL_SECONDS = 0.01, 60.0
_EARLY_SHARE = 0.1  # largest part of the interval by which a report may be early

close_in_child: set[Callable[[], None]] = set()
"""Functions that a forked child calls: one for each open reporter."""
fork_lock = RLock()
"""Held while a connection opens its socket, so that each child knows its inherited sockets. Never held during I/O."""


def _after_fork_in_child() -> None:
    fork_lock.release()
    for close in tuple(close_in_child):
        close()
    close_in_child.clear()


os.register_at_fork(before=fork_lock.acquire, after_in_parent=fork_lock.release, after_in_child=_after_fork_in_child)


class Reporter:
    """Holds the NeuronCores of this process and reports its activity once an interval, from its own thread.

    Create it with `attach`. Afterwards no method raises or does I/O in the calling thread; only `flush` and `close`
    wait. Calls are queued and applied later, so any thread, finalizer or signal handler may make them. `ignored_calls`,
    `dropped_reports` and `last_error` count and describe failures.

    `cores` has the NeuronCores by local index. Without a daemon, it has the cores that the environment requests, and
    their unknown fields are None. When a daemon starts, `cores` becomes a new tuple with all fields.

    At the end of the process, the daemon gets a final report with everything so far: see
    `neurontools.runtime.reporting.process_end`. A process that is killed loses the work since its last report.

    A forked child does not report: its methods do nothing, and the cores stay the parent's until the parent ends.
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
        first = request.first
        self.cores = tuple(Core(i, None if first is None else first + i) for i in range(request.count or 1))
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
        self._counters = ProcessCounters(counted_since_seconds=clock())
        self._queue = EventQueue()
        self._interval_seconds = DEFAULT_INTERVAL_SECONDS
        self._report_at_seconds: float | None = None
        self._connection: DaemonConnection | None = None
        # Each request is a queue, on which the reporter's thread puts whether the report arrived. None ends the thread.
        self._report_requests: SimpleQueue[SimpleQueue[bool] | None] = SimpleQueue()
        self._error_report: SimpleQueue[bool] | None = None  # answer queue of the latest request for a report of errors
        self._build_lock = Lock()  # held while a report is built, by the reporter's thread or for the final report
        self._warned: set[str] = set()
        self._collect: Callable[[Reporter], None] | None = None
        self._is_open = True
        self._may_attach = True  # False from the final report on: another attachment would count all work again
        self._has_thread = False
        self._is_daemon_silent = False  # whether the latest attach timed out, as with a stopped daemon

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
        """Acquires the NeuronCores that the environment requests and starts to report.

        Without a daemon the process goes on unmonitored, and attaches when a daemon starts. `faults` receives the
        faults that are injected into the cores, `captures` the requests for a profile.

        Raises CoresUnavailable if the daemon refuses the cores, InvalidCoreRequest (a ValueError) if the environment is
        invalid, and UserError if the socket path is invalid. With NEURONTOOLS_REQUIRE_DAEMON=1, also raises UserError
        if there is no daemon.
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
        """Whether this process was attached to a daemon at its latest attach or report. Does no I/O."""
        connection = self._connection
        return connection is not None and connection.is_attached

    @property
    def ignored_calls(self) -> int:
        """The number of calls with invalid arguments, such as an unknown core or memory category."""
        return self._queue.ignored

    @property
    def last_error(self) -> str | None:
        """The error of the latest report if it failed, else the error of the latest ignored call, else None."""
        return self._failure or self._queue.last_error

    def load_model(
        self,
        name: str,
        uuid: str | None = None,
        memory: Mapping[int, DeviceMemory] | None = None,
        host_memory: HostMemory | None = None,
    ) -> LoadedModel:
        """Records that a model was loaded, and returns its handle.

        `memory`, by local core, is added to the memory in use on the cores. `uuid` has 32 hexadecimal digits; by
        default it is a hash of the name.
        """
        model = LoadedModel(name, self._queue, self._counters, self._clock)
        self._queue.append(self._counters.add_model, model, name, uuid, dict(memory or {}), host_memory or HostMemory())
        return model

    def unload_model(self, model: LoadedModel) -> None:
        """Records that a model was unloaded and its memory freed. Its executions stay counted."""
        self._queue.append(self._counters.remove_model, model)

    def add_memory(self, core: int, category: DeviceMemoryCategory, delta_bytes: int) -> None:
        """Adds to the memory in use on a core; a negative `delta_bytes` is memory that was freed."""
        self._queue.append(self._counters.add_memory, core, category, delta_bytes)

    def set_memory(self, core: int, category: DeviceMemoryCategory, size_bytes: int) -> None:
        """Sets the memory in use on a core, excluding the memory of loaded models."""
        self._queue.append(self._counters.set_memory, core, category, size_bytes)

    def set_host_memory(self, category: HostMemoryCategory, size_bytes: int) -> None:
        """Sets the host memory in use for the cores, excluding the memory of loaded models."""
        self._queue.append(self._counters.set_host_memory, category, size_bytes)

    def error(self, kind: ErrorKind) -> None:
        """Records an error. A hardware error is reported immediately, any other error by the next report or `close`."""
        self._queue.append(self._counters.add_error, kind)
        if kind == ErrorKind.HARDWARE and self._is_open:
            self._request_error_report()

    def set_training(self, counters: TrainingCounters, operators: tuple[OperatorTime, ...] = ()) -> None:
        """Sets the training counters and the times by operator. No counter may decrease."""
        self._queue.append(self._counters.set_training, counters, operators)

    def set_advice(self, advice: Sequence[ScriptAdvice]) -> None:
        """Sets the advice for the script, largest effect first."""
        self._queue.append(self._counters.set_advice, advice)

    def set_served_models(self, served_models: Sequence[ServedModel]) -> None:
        """Sets the counters of the models that this process serves."""
        self._queue.append(self._counters.set_served_models, served_models)

    def before_reports(self, collect: Callable[[Reporter], None]) -> None:
        """Calls `collect` before each report from now on, in the reporter's thread, to set levels and counters."""
        self._collect = collect

    def flush(self, timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> bool:
        """Waits until the daemon has a report of everything so far; returns False at the time-out."""
        if not self._is_open:
            return False
        arrived: SimpleQueue[bool] = SimpleQueue()
        self._report_requests.put(arrived)
        try:
            return arrived.get(timeout=timeout_seconds)
        except Empty:
            return False

    def close(self) -> None:
        """Sends a final report, releases the cores and stops reporting. Afterwards all methods do nothing.

        May be called again. Waits at most a second for the daemon, and not at all if there is none or if the latest
        attach timed out.
        """
        if self._is_open:
            self._send_final_report()
        with fork_lock:  # no thread opens a connection after this block
            if not self._is_open:
                return
            self._is_open = False
            close_in_child.discard(self._close_in_child)
            self._queue.close()
            self._report_requests.put(None)
            if self._connection is not None:
                self._connection.close()
        forget_function(self.close)

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request_error_report(self) -> None:
        """Requests a report of errors from the reporter's thread, unless a request is still unanswered."""
        if self._error_report is None or not self._error_report.empty():
            self._error_report = SimpleQueue()
            self._report_requests.put(self._error_report)

    def _send_final_report(self) -> None:
        """Sends a report of everything so far. If the process is not attached, attaches first, in the other thread."""
        deadline = time.monotonic() + EXIT_FLUSH_SECONDS
        may_attach = self._has_thread and not self._is_daemon_silent
        if not self._is_connected() and not (may_attach and self.flush(EXIT_FLUSH_SECONDS)):
            return
        with fork_lock:
            self._may_attach = False
        connection = self._connection
        report = self._build_report(deadline - time.monotonic())
        if connection is not None and report is not None:
            connection.send_final_report(report, deadline - time.monotonic())

    def _is_connected(self) -> bool:
        connection = self._connection
        return connection is not None and connection.is_attached and not connection.is_closed_by_daemon()

    def _start(self, *, is_daemon_required: bool) -> None:
        """Attaches and starts the reporter's thread.

        If the system refuses a thread, the process is attached but never reports.
        """
        close_in_child.add(self._close_in_child)
        at_process_end(self.close)
        try:
            self._attach(FIRST_ATTACH_TIMEOUT_SECONDS)
        except DaemonUnavailable as error:
            if is_daemon_required:
                raise UserError(
                    f"no monitor daemon at {error}, and {REQUIRE_DAEMON} is set; "
                    'start one with "neurond --simulate trn1.32xlarge", or unset it',
                    EXIT_NO_DAEMON,
                ) from error
            self._warn_once(
                "absent", f"no monitor daemon at {error}: nothing is monitored; start neurond to see this process"
            )
        try:
            Thread(target=self._report_until_closed, name="neurontools-reporter", daemon=True).start()
            self._has_thread = True
        except RuntimeError as error:
            self._failure = str(error)
            self._queue.close()

    def _report_until_closed(self) -> None:
        """Sends a report each interval and on request, until `close`."""
        wait_seconds = 0.0 if self.is_monitored else self._interval_seconds
        while self._is_open:
            try:
                requests = [self._report_requests.get(timeout=wait_seconds)]
            except Empty:
                requests = []
            while not self._report_requests.empty():
                requests.append(self._report_requests.get())
            arrived = self._is_open and self._try_report()
            for request in requests:
                if request is not None:
                    request.put(arrived)
            wait_seconds = self._seconds_to_next_report()

    def _seconds_to_next_report(self) -> float:
        """Returns the wait until the next report. The daemon sets the time, so that all processes report together."""
        interval_seconds, at_seconds = self._interval_seconds, self._report_at_seconds
        if at_seconds is None:
            return interval_seconds
        left_seconds = (at_seconds - time.monotonic()) % interval_seconds
        # A scheduled time shortly ahead belongs to the last report, which was slightly early. Skips that time.
        return left_seconds if left_seconds > _EARLY_SHARE * interval_seconds else left_seconds + interval_seconds

    def _try_report(self) -> bool:
        """Sends a report and returns whether it arrived. Never raises, so that training goes on after any failure."""
        try:
            self._report()
        except Exception as error:
            self.dropped_reports += 1
            self._failure = str(error) or type(error).__name__
            self._handle_report_error(error)
            return False
        self._failure = None
        self._warned.discard("refused")
        return True

    def _report(self) -> None:
        if not self._is_connected():
            self._attach(CALL_TIMEOUT_SECONDS)
        connection = self._connection
        report = self._build_report(CALL_TIMEOUT_SECONDS)
        if connection is None or report is None:
            return  # another thread closes the reporter
        connection.send_report(report, CALL_TIMEOUT_SECONDS)
        with self._queue.drained():
            self._counters.mark_delivered()

    def _build_report(self, timeout_seconds: float) -> neuron_pb2.Report | None:
        """Collects and builds a report. Returns None if another thread builds one for longer than the time-out."""
        if not self._build_lock.acquire(timeout=max(timeout_seconds, 0.0)):
            return None
        try:
            self._run_collect()
            with self._queue.drained():
                now_seconds = self._clock()
                return self._counters.build_report(len(self.cores), now_seconds, self._unix_clock() - now_seconds)
        finally:
            self._build_lock.release()

    def _run_collect(self) -> None:
        """Calls the function that `before_reports` stored. If the function raises, records the error and goes on."""
        if self._collect is None:
            return
        try:
            self._collect(self)
        except Exception as error:
            self._queue.ignored += 1
            self._queue.last_error = str(error) or type(error).__name__

    def _handle_report_error(self, error: Exception) -> None:
        if isinstance(error, CoresUnavailable):
            self._warn_once("refused", f"this process is not monitored: {error}; trying again until it can be")
        elif isinstance(error, RpcError):
            if error.code == Status.UNAUTHENTICATED and self._connection is not None:
                self._connection.close()
            elif error.code in (Status.RESOURCE_EXHAUSTED, Status.INVALID_ARGUMENT):
                text = f"the monitor daemon refuses what this process reports: {error.details}"
                self._warn_once(str(error.code), text)

    def _attach(self, timeout_seconds: float) -> None:
        """Attaches to the first daemon that answers. Later attaches use only the socket of that daemon."""
        failures, is_silent = [], False
        for path in self._sockets:
            connection = self._open_connection(path)
            try:
                response = connection.attach(self._request, timeout_seconds)
            except DaemonUnavailable as error:
                connection.close()
                failures.append(f"unix:{path} ({error})")
                is_silent = is_silent or error.is_silent
            except BaseException:
                connection.close()
                raise
            else:
                self._apply_grant(response)
                self._open_control_channel(connection)
                self._sockets = (path,)
                self._is_daemon_silent = False
                return
        self._is_daemon_silent = is_silent
        raise DaemonUnavailable(", ".join(failures))

    def _open_control_channel(self, connection: DaemonConnection) -> None:
        handlers: dict[bytes, LineHandler] = {}
        for part in (self.faults, self._captures):
            if part is not None:
                part.on_attach(connection)
                handlers |= part.handlers
        if handlers:
            ControlChannel(handlers).listen(connection)

    def _open_connection(self, path: str) -> DaemonConnection:
        """Opens a connection under the fork lock, so that a forked child can close its copy of the socket."""
        with fork_lock:
            if not (self._is_open and self._may_attach):
                raise DaemonUnavailable("the reporter is closed")
            if self._connection is not None:
                self._connection.close()
            self._connection = DaemonConnection(path)
            return self._connection

    def _apply_grant(self, response: neuron_pb2.AttachResponse) -> None:
        """Stores the daemon's response: the cores, and the interval and times of reports."""
        self.cores = tuple(
            Core(local_index, core.neuroncore_index, core.device_index, core.hbm_bytes, core.hbm_index)
            for local_index, core in enumerate(response.cores)
        )
        self.instance_type = response.instance_type
        self.logical_neuroncore_config = response.logical_neuroncore_config
        if isfinite(response.interval_seconds) and response.interval_seconds > 0:
            bounded = max(SHORTEST_INTERVAL_SECONDS, response.interval_seconds)
            self._interval_seconds = min(bounded, LONGEST_INTERVAL_SECONDS)
        has_moments = response.HasField("report_at_seconds") and isfinite(response.report_at_seconds)
        is_interval_kept = self._interval_seconds == response.interval_seconds
        self._report_at_seconds = response.report_at_seconds if has_moments and is_interval_kept else None
        self._counters.core_count = len(response.cores)
        # The next attach requests the same cores.
        self._request.logical_neuroncore_config = response.logical_neuroncore_config
        self._request.visible_cores.first = response.cores[0].neuroncore_index
        self._request.visible_cores.count = len(response.cores)

    def _warn_once(self, topic: str, text: str) -> None:
        """Writes a warning to standard error, once for each topic."""
        if topic in self._warned:
            return
        self._warned.add(topic)
        if not write_stderr_line(f"neurontools: {text}"):
            self._failure = text

    def _close_in_child(self) -> None:
        """Closes a forked child's copies of the sockets. Otherwise the daemon would not see when the parent ends."""
        self._is_open = False
        self._queue.close()
        if self._connection is not None:
            self._connection.close()
