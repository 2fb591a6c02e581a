"""Feeds of a fleet: the base class, and the feed that gets summaries directly from the daemons."""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import os
import random
import resource
import selectors
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from google.protobuf.message import DecodeError

from neurontools.fleet.hosts import HostAddress, Reach
from neurontools.fleet.jobs import FleetJob, fleet_jobs
from neurontools.fleet.models import FleetModel, fleet_models
from neurontools.fleet.states import HostLink, HostState, deduplicate_hosts
from neurontools.fleet.summary import HostSummary
from neurontools.rpc import neuron_pb2
from neurontools.rpc.call import CallError, PolledStream, RpcError, Status, Unreachable
from neurontools.rpc.convert import from_message
from neurontools.rpc.remote_address import remote_address
from neurontools.rpc.socket_path import set_display_address
from neurontools.util.errors import EXIT_USAGE, UserError
from neurontools.util.signals import defer_signals
from neurontools.util.terminal import excerpt

if TYPE_CHECKING:
    from neurontools.rpc.tunnel_registry import TunnelSet


class FleetFeed(ABC):
    """Collects the states of many hosts; a context manager. Methods may be called from any thread.

    The feed calls `notify` in its own thread. `close` ends the feed and closes everything that it opened.
    """

    interval_seconds: float

    def __init__(self) -> None:
        self._notify: Callable[[], None] = lambda: None
        self._are_users_wanted = False

    @property
    @abstractmethod
    def states(self) -> tuple[HostState, ...]: ...

    @property
    def jobs(self) -> tuple[FleetJob, ...]:
        """The jobs on the hosts of the feed, those with the most cores first."""
        return fleet_jobs(self.states)

    @property
    def models(self) -> tuple[FleetModel, ...]:
        """The served models of the live hosts, sorted by device memory, largest first."""
        return fleet_models(self.states)

    def request_users(self) -> None:
        """Asks the feed to collect the users of jobs too, which takes extra queries in some feeds."""
        self._are_users_wanted = True

    @property
    def notes(self) -> tuple[str, ...]:
        """Problems of the feed itself, one line each. Problems of a host are in its state."""
        return ()

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether every host has answered or is lost."""

    @property
    @abstractmethod
    def longest_wait_seconds(self) -> float:
        """The longest time until `is_settled` is true, in seconds."""

    @abstractmethod
    def socket_path(self, name: str) -> str | None:
        """Returns the local socket to the daemon of a host; None if the host was not reached yet."""

    def connect_host(self, name: str) -> str | None:
        """Connects to a host, which may take some seconds, and returns the local socket to its daemon, or None."""
        return self.socket_path(name)

    @abstractmethod
    def start(self, notify: Callable[[], None] = lambda: None) -> None:
        """Starts the feed, which then calls `notify` whenever states change."""

    @abstractmethod
    def close(self) -> None:
        """Ends the feed. Further calls do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with defer_signals():
            self.close()

    def wait_settled(self, seconds: float | None = None) -> bool:
        """Waits until the feed is settled, at most `seconds`; returns whether it is settled.

        Replaces the `notify` of `start`, so call this only if `start` got none.
        """
        settled = threading.Event()
        self._notify = lambda: settled.set() if self.is_settled else None
        self._notify()
        return settled.wait(self.longest_wait_seconds if seconds is None else seconds)


MAX_SUMMARY_BYTES = 2**15
_METHOD = "/neurontools.v1.MonitorService/WatchHostSummary"
_INTERVALS = ((10, 1.0), (50, 2.0), (100, 3.0), (500, 5.0))  # (hosts, seconds): the interval for up to that many hosts
_SLOWEST_SECONDS = 10.0
_MOST_CONNECTING = {Reach.SOCKET: 64, Reach.SSH: 16, Reach.TLS: 32}
_SPACING_SECONDS = {Reach.SOCKET: 0.004, Reach.SSH: 0.05, Reach.TLS: 0.01}  # pause between two new connections
_ANSWER_SECONDS = {Reach.SOCKET: 5.0, Reach.SSH: 20.0, Reach.TLS: 12.0}  # timeout for the first summary of a host
_SETTLED_SECONDS = {Reach.SOCKET: 8.0, Reach.SSH: 30.0, Reach.TLS: 15.0}
_SETTLED_SECONDS_A_HOST = 0.1  # extra timeout per host, because a feed connects hosts in batches
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0
_LONGEST_SAMPLED_SECONDS = 3600.0  # the longest sampling interval that a daemon can have
_SILENT_INTERVALS, _LEAST_SILENT_SECONDS = 3.0, 10.0
_HASTE = 0.2  # fraction of the interval; reading pauses for a host whose summaries come closer together
_MOST_FRUITLESS_READS = 100  # limit of successive reads of a host that complete no summary
_LONGEST_TROUBLE = 160
_OTHER_FILES, _FILES_OF_A_HOST = 256, 4  # numbers of open files
_STOP_SECONDS = 2.0
_PLAIN = {
    Status.UNIMPLEMENTED: "its neurond has no summaries; update it",
    Status.DEADLINE_EXCEEDED: "its socket accepts no connection; its neurond may hang",
}


def interval_for(host_count: int) -> float:
    """Returns the interval between two summaries of a host, which depends on the number of hosts."""
    return next((seconds for most, seconds in _INTERVALS if host_count <= most), _SLOWEST_SECONDS)


def silence_seconds(asked_seconds: float, sampled_seconds: float) -> float:
    """Returns the time without a summary after which a host is lost.

    `asked_seconds` is the interval between two summaries, `sampled_seconds` the interval between two snapshots.
    """
    slower = max(asked_seconds, min(sampled_seconds, _LONGEST_SAMPLED_SECONDS))
    return max(_LEAST_SILENT_SECONDS, _SILENT_INTERVALS * slower)


class DirectFeed(FleetFeed):
    """Collects summaries from the daemons themselves.

    While the feed runs, `socket_path` gives access to the whole daemon of a host. `tunnels` opens the connections to
    hosts that are reached over TLS; the feed closes it.
    """

    def __init__(
        self, places: Sequence[HostAddress], interval_seconds: float | None = None, tunnels: TunnelSet | None = None
    ) -> None:
        super().__init__()
        self._tunnels = tunnels
        self.interval_seconds = interval_for(len(places)) if interval_seconds is None else interval_seconds
        self._hosts = [_Host(number, HostState(place)) for number, place in enumerate(places)]
        self._by_name = {host.state.place.name: host for host in self._hosts}
        self._request = neuron_pb2.WatchHostSummaryRequest(interval_seconds=self.interval_seconds).SerializeToString()
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, int]] = []  # heap of timers: (time, host index, timer number)
        self._queues: dict[Reach, deque[_Host]] = {reach: deque() for reach in Reach}
        self._connecting = dict.fromkeys(Reach, 0)
        self._next_start = dict.fromkeys(Reach, 0.0)
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._directory = ""
        self._wakened, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        if any(place.reach is Reach.SSH for place in places):
            ssh_command(os.environ)
            self._directory = tempfile.mkdtemp(prefix="neuron-top-", dir=_short_directory())

    @property
    def states(self) -> tuple[HostState, ...]:
        """The state of each host, in the given order. A host that was named twice appears once."""
        return deduplicate_hosts([host.state for host in self._hosts])[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines about hosts that were named twice."""
        return deduplicate_hosts([host.state for host in self._hosts])[1]

    @property
    def is_settled(self) -> bool:
        return all(host.state.is_settled for host in self._hosts)

    @property
    def longest_wait_seconds(self) -> float:
        slowest = max((_SETTLED_SECONDS[host.state.place.reach] for host in self._hosts), default=0.0)
        return slowest + _SETTLED_SECONDS_A_HOST * len(self._hosts)

    def socket_path(self, name: str) -> str | None:
        host = self._by_name[name]
        return host.state.place.address if host.state.place.reach is Reach.SOCKET else host.path

    def start(self, notify: Callable[[], None] = lambda: None) -> None:
        _raise_file_limit(len(self._hosts))
        self._notify = notify
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._waker < 0:
            return
        self._is_closing = True
        with contextlib.suppress(OSError):
            os.write(self._waker, b"x")
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)
        tunnels = [host.tunnel for host in self._hosts if host.tunnel is not None]
        for tunnel in tunnels:
            tunnel.close()
        for tunnel in tunnels:
            tunnel.wait(_STOP_SECONDS)
        if self._tunnels is not None:
            self._tunnels.close()
        for descriptor in (self._waker, self._wakened):
            os.close(descriptor)
        self._waker = -1
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _run(self) -> None:
        self._selector.register(self._wakened, selectors.EVENT_READ, None)
        for host in self._hosts:
            self._queues[host.state.place.reach].append(host)
        try:
            while not self._is_closing:
                self._start_some()
                # Data that had come by then is read below before timers are handled. If this process was stopped or
                # starved meanwhile, no host is lost because of that.
                checked_at_seconds = time.monotonic()
                for key, _ in self._selector.select(self._wait_seconds()):
                    if isinstance(key.data, _Host):
                        self._read(key.data)
                    elif isinstance(key.data, SshTunnel):
                        key.data.accept()
                self._handle_timers(checked_at_seconds)
        finally:
            for host in self._hosts:
                if host.stream is not None:
                    host.stream.close()
            self._selector.close()

    def _wait_seconds(self) -> float | None:
        due = [self._timers[0][0]] if self._timers else []
        for reach, queue in self._queues.items():
            if queue and self._connecting[reach] < _MOST_CONNECTING[reach]:
                due.append(self._next_start[reach])
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _start_some(self) -> None:
        """Connects the next hosts, a few at a time and with a delay between them."""
        for reach, queue in self._queues.items():
            while (
                queue
                and self._connecting[reach] < _MOST_CONNECTING[reach]
                and (now := time.monotonic()) >= self._next_start[reach]
            ):
                self._next_start[reach] = now + _SPACING_SECONDS[reach]
                self._connect(queue.popleft())

    def _connect(self, host: _Host) -> None:
        place = host.state.place
        try:
            if place.reach is Reach.SSH and host.tunnel is None:
                host.tunnel = SshTunnel(place, self._directory, os.environ)
                self._selector.register(host.tunnel, selectors.EVENT_READ, host.tunnel)
                host.path = host.tunnel.path
            elif place.reach is Reach.TLS and host.path is None:
                host.path = self._open_tunnel(place)
            path = host.path or place.address
            host.stream = PolledStream(path, _METHOD, self._request, max_reply_bytes=MAX_SUMMARY_BYTES)
        except (CallError, OSError, ValueError) as error:
            self._mark_lost(host, _lost_reason(error))
            return
        host.is_connecting = True
        self._connecting[place.reach] += 1
        if host.state.link is HostLink.WAITING:
            host.state = replace(host.state, link=HostLink.CONNECTING)
        self._selector.register(host.stream, selectors.EVENT_READ, host)
        host.is_read = True
        self._set_timer(host, _ANSWER_SECONDS[place.reach])

    def _open_tunnel(self, place: HostAddress) -> str:
        """Opens a tunnel to a daemon that serves over TLS, and returns the local socket."""
        if self._tunnels is None:
            raise ValueError("it needs a client certificate, and none is given")
        path = self._tunnels.open(remote_address(place.text))
        set_display_address(path, place.text)
        return path

    def _read(self, host: _Host) -> None:
        assert host.stream is not None  # noqa: S101 - registered hosts have a stream
        try:
            messages = host.stream.messages()
            if not messages:
                host.fruitless_reads += 1
                if host.fruitless_reads > _MOST_FRUITLESS_READS:
                    self._mark_lost(host, "sent data without a summary")
                return
            host.fruitless_reads = 0
            summary = from_message(HostSummary, neuron_pb2.WatchHostSummaryResponse.FromString(messages[-1]).summary)
            summary.check()
        except (CallError, EOFError, OSError, ValueError, DecodeError) as error:
            reason = host.tunnel.reason() if host.tunnel is not None else ""
            self._mark_lost(host, reason or _lost_reason(error))
            return
        now = time.monotonic()
        before = host.state.received_at_seconds
        host.state = HostState(
            host.state.place,
            HostLink.LIVE,
            summary=summary,
            received_at_seconds=now,
            clock_ahead_seconds=summary.taken_at_unix_seconds - time.time(),
        )
        self._mark_answered(host)
        host.failures = 0
        hasty = before is not None and now - before < _HASTE * self.interval_seconds
        if hasty:
            self._selector.unregister(host.stream)
            host.is_read = False
        self._set_timer(host, self.interval_seconds * (1 - _HASTE) if hasty else self._patience_seconds(host))
        self._notify()

    def _handle_timers(self, now_seconds: float) -> None:
        """Handles timers due at `now_seconds`: marks silent hosts as lost, retries them, resumes paused reads."""
        while self._timers and self._timers[0][0] <= now_seconds:
            _, number, timer = heapq.heappop(self._timers)
            host = self._hosts[number]
            if timer != host.timer:
                continue
            if host.stream is None:
                self._queues[host.state.place.reach].append(host)
            elif not host.is_read:
                host.is_read = True
                self._selector.register(host.stream, selectors.EVENT_READ, host)
                self._set_timer(host, self._patience_seconds(host))
            else:
                reason = host.tunnel.reason() if host.tunnel is not None else ""
                self._mark_lost(host, reason or f"no data for {self._patience_seconds(host):.0f} s")

    def _patience_seconds(self, host: _Host) -> float:
        if host.is_connecting or host.state.summary is None:
            return _ANSWER_SECONDS[host.state.place.reach]
        return silence_seconds(self.interval_seconds, host.state.summary.interval_seconds or 0.0)

    def _mark_lost(self, host: _Host, reason: str) -> None:
        """Closes the connection to a host and schedules a retry. The pause doubles with each failure."""
        if host.stream is not None:
            if host.is_read:
                self._selector.unregister(host.stream)
            host.stream.close()
            host.stream = None
        host.is_read = False
        host.fruitless_reads = 0
        self._mark_answered(host)
        host.state = replace(host.state, link=HostLink.LOST, loss_reason=excerpt(reason, _LONGEST_TROUBLE))
        pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2**host.failures)
        host.failures = min(host.failures + 1, 16)
        # jitter, so that not all hosts are retried at once
        self._set_timer(host, pause * random.uniform(0.75, 1.25))  # noqa: S311
        self._notify()

    def _mark_answered(self, host: _Host) -> None:
        if host.is_connecting:
            host.is_connecting = False
            self._connecting[host.state.place.reach] -= 1

    def _set_timer(self, host: _Host, seconds: float) -> None:
        host.timer += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, host.number, host.timer))


@dataclass(slots=True, eq=False)
class _Host:
    """A host of a feed, used only in the feed's thread. `state` is immutable and replaced as a whole."""

    number: int  # index of the host in the feed
    state: HostState
    stream: PolledStream | None = None
    tunnel: SshTunnel | None = None
    path: str | None = None  # local socket of the tunnel to the host's daemon
    timer: int = 0  # number of the valid timer; older timers are ignored
    failures: int = 0  # successive failures, which lengthen the pause before the next attempt
    fruitless_reads: int = 0  # successive reads that completed no summary
    is_connecting: bool = False
    is_read: bool = False  # whether the selector watches `stream`


def _lost_reason(error: Exception) -> str:
    if isinstance(error, Unreachable):
        cause = str(error)[:1].lower() + str(error)[1:]
        return "not permitted to this user" if isinstance(error.__cause__, PermissionError) else f"no daemon: {cause}"
    ended = "its neurond ended the call"
    if isinstance(error, RpcError):
        return _PLAIN.get(error.code, error.details or ended)
    if isinstance(error, EOFError):
        return ended
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"its answer can't be read: {error}"


def _raise_file_limit(host_count: int) -> None:
    """Raises the limit of open files (RLIMIT_NOFILE), because each host needs several."""
    limit = _OTHER_FILES + _FILES_OF_A_HOST * host_count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < limit:
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _short_directory() -> str:
    """Returns a directory with a short path, because the length of socket paths is limited, also in ssh."""
    base = tempfile.gettempdir()
    return base if len(os.fsencode(base)) <= 24 else "/tmp"  # noqa: S108 - mkdtemp makes a private directory in it


SSH_VARIABLE = "NEURONTOOLS_SSH"  # sets the command to use in place of ssh, as RSYNC_RSH and GIT_SSH_COMMAND do
REMOTE_VARIABLE = "NEURONTOOLS_REMOTE_LS"  # sets the neuron-ls command to run on the other host
_MOST_RUNS = 4  # limit of ssh processes at a time: one for summaries, the others for views of the host
_LONGEST_REASON_BYTES = 4096
SSH_OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=2"),
    *("-T", "-e", "none"),
)
_SHARED_CONNECTION = ("-o", "ControlMaster=auto", "-o", "ControlPersist=no")


def ssh_command(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the words of the ssh command. Raises UserError if NEURONTOOLS_SSH is not valid shell syntax."""
    try:
        return tuple(shlex.split(environment.get(SSH_VARIABLE, "").strip() or "ssh"))
    except ValueError as error:
        raise UserError(f"{SSH_VARIABLE}: {error}; write a command as a shell reads it", EXIT_USAGE) from None


class SshTunnel:
    """A local socket that leads to the daemon of a host. Not thread-safe. `close` also ends the ssh processes."""

    def __init__(self, place: HostAddress, directory: str, environment: Mapping[str, str]) -> None:
        name = hashlib.sha256(place.address.encode()).hexdigest()[:12]
        self.path = f"{directory}/{name}"
        self._command = (
            *ssh_command(environment),
            *(*SSH_OPTIONS, *_SHARED_CONNECTION, "-o", f"ControlPath={directory}/%C", "--", place.address),
            f"{environment.get(REMOTE_VARIABLE, '').strip() or 'neuron-ls'} --relay",
        )
        self._runs: list[subprocess.Popen[bytes]] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(self.path)
            self._listener.listen(_MOST_RUNS)
            self._listener.setblocking(False)
        except BaseException:
            self._listener.close()
            raise

    def fileno(self) -> int:
        """Returns the descriptor for a selector, which is readable when a connection waits for `accept`."""
        return self._listener.fileno()

    def accept(self) -> None:
        """Accepts a connection and runs ssh for it. Closes the connection if too many ssh processes run."""
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        with connection:
            ended = [run for run in self._runs if run.poll() is not None]
            self._runs = [run for run in self._runs if run not in ended]
            for run in ended:
                if run.stderr is not None:
                    run.stderr.close()
            if len(self._runs) >= _MOST_RUNS:
                return
            try:
                run = subprocess.Popen(
                    self._command,
                    stdin=connection.fileno(),
                    stdout=connection.fileno(),
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C must not end ssh, and ssh must not ask for a password
                )
            except OSError:
                return
        assert run.stderr is not None  # noqa: S101 - stderr is a pipe
        os.set_blocking(run.stderr.fileno(), False)
        self._runs.append(run)

    def reason(self) -> str:
        """Returns the last line that the latest ssh process wrote to stderr; "" if it wrote nothing."""
        if not self._runs:
            return ""
        stderr = self._runs[-1].stderr
        output = b""
        if stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                output = os.read(stderr.fileno(), _LONGEST_REASON_BYTES)
        lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
        return excerpt(lines[-1].strip(), 200) if lines else ""

    def close(self) -> None:
        """Ends the tunnel without waiting for its ssh processes."""
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)  # noqa: PTH108
        for run in self._runs:
            if run.poll() is None:
                run.terminate()

    def wait(self, seconds: float) -> None:
        """Waits at most `seconds` for each ssh process to end, then kills it. Call this after `close`."""
        for run in self._runs:
            try:
                run.wait(seconds)
            except subprocess.TimeoutExpired:
                run.kill()
                run.wait()
            if run.stderr is not None:
                run.stderr.close()
        self._runs.clear()
