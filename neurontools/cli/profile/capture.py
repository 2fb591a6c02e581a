"""`neuron-profile capture`: profiles running processes through their runtimes.

The processes write their profiles to sockets. This command writes the files, as its own user.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from neurontools.cli.daemon.connection import ask_first_daemon
from neurontools.client.daemon_client import Client
from neurontools.profile import Profile, read_profile
from neurontools.profile.chunks import SUFFIX
from neurontools.profile.formats.outputs import run_name, worker_name, write_outputs, write_ranks
from neurontools.rpc import socket_path
from neurontools.rpc.profile_request import RequestedProfile
from neurontools.util.command_lifecycle import write_stderr, write_text
from neurontools.util.errors import EXIT_FAILURE, EXIT_NOT_FOUND, EXIT_TIMED_OUT, UserError
from neurontools.util.terminal import escape_controls, excerpt
from neurontools.util.units import iec_bytes_text

_ANSWER_SECONDS = 20.0
_SILENT_SECONDS = 120.0  # longest wait for data of a captured process, which should send data every second
_LATE_SECONDS = 60.0  # time for the rest of a profile after the requested seconds
_UNPACKED_RATIO = 8  # a profile that is larger than this after unpacking is no real one
_MAX_NAMES = 5


@dataclass(slots=True)
class _IncomingProfile:
    """A profile that a process is sending, and the temporary file that receives it."""

    request: RequestedProfile
    draft: Path
    file: int
    most_bytes: int
    size_bytes: int = 0
    error: UserError | None = None
    received_at: float = field(default_factory=time.monotonic)

    def receive(self) -> bool:
        """Writes the next received chunk to the file. Returns False after the last chunk or an error of the sender."""
        try:
            part = self.request.read(0)
        except TimeoutError:
            return True
        except UserError as error:
            self.error = error
            return False
        self.received_at = time.monotonic()
        self.size_bytes += len(part)
        if self.size_bytes > self.most_bytes:
            limit = iec_bytes_text(self.most_bytes)
            next_step = "ask for fewer --seconds or --steps, or give a larger --max-size"
            self.error = UserError(f"PID {self.request.pid}: its profile has more than {limit}; {next_step}")
            return False
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(self.file, rest) :]
        return bool(part)


def capture(given: dict[str, str], pids: Sequence[int], seconds: float, steps: int | None, most_bytes: int) -> int:
    """Profiles the processes `pids`, else those of --job, for at most `steps` steps. Returns the exit code.

    The processes may send at most `most_bytes` together, in equal shares, and no file gets larger than that.
    """
    named = socket_path.configured_socket(given.get("socket"), os.environ)
    at = named or ask_first_daemon(_check_daemon, os.environ) or socket_path.candidate_sockets(os.environ)[0]
    pids = pids or _pids_of_job(at, given["job"])
    run = run_name(time.time_ns())
    directory = Path(given.get("output") or f"neuron-profile-{run}")
    with ExitStack() as stack, _file_size_limit(most_bytes):
        arriving = _start_captures(at, pids, directory, seconds, steps, most_bytes // len(pids), stack)
        _receive_profiles(arriving, directory, time.monotonic() + seconds + _LATE_SECONDS)
        return _finish_captures(arriving, directory, run)


@contextlib.contextmanager
def _file_size_limit(most_bytes: int) -> Iterator[None]:
    """Limits the size of each file that this process writes: the files for viewers can be larger than a profile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    is_lower = soft != resource.RLIM_INFINITY and soft < most_bytes
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft if is_lower else most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _check_daemon(at: str) -> str:
    with Client(at) as daemon:
        daemon.snapshot()
    return at


def _pids_of_job(at: str, job_text: str) -> list[int]:
    """Returns the PIDs of the job with this name, or of the only job whose name contains it."""
    jobs: dict[str, list[int]] = {}
    with Client(at) as daemon:
        for process in daemon.snapshot().processes:
            if process.job is not None and process.core_indices:
                jobs.setdefault(process.job.name, []).append(process.pid)
    shown = excerpt(job_text, 60)
    found = [name for name in jobs if name == job_text] or [name for name in jobs if job_text in name]
    if not found:
        there = ", ".join(list(jobs)[:_MAX_NAMES]) or "none"
        raise UserError(f"no job {shown} holds NeuronCores here; there is: {there}; or give --pid", EXIT_NOT_FOUND)
    if len(found) > 1:
        raise UserError(f"several jobs are {shown}: {', '.join(found[:_MAX_NAMES])}; give more of one's name")
    return jobs[found[0]]


def _start_captures(
    at: str,
    pids: Sequence[int],
    directory: Path,
    seconds: float,
    steps: int | None,
    most_bytes_each: int,
    stack: ExitStack,
) -> list[_IncomingProfile]:
    """Creates the temporary files, then starts the captures. Raises UserError if a capture fails to start."""
    arriving = []
    try:
        if not directory.is_dir():
            directory.mkdir(parents=True)
            stack.callback(_try_remove, directory.rmdir)  # rmdir keeps a directory with files
        drafts = []
        for pid in pids:
            draft = directory / f".capture-{pid}.{os.urandom(6).hex()}{SUFFIX}"
            file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            stack.callback(_try_remove, draft.unlink)
            stack.callback(os.close, file)
            drafts.append((draft, file))
    except OSError as error:
        raise _write_error(directory, error) from None
    for pid, (draft, file) in zip(pids, drafts, strict=True):
        requested = stack.enter_context(RequestedProfile.request(at, pid, seconds, steps))
        arriving.append(_IncomingProfile(requested, draft, file, most_bytes_each))
    for each in arriving:
        each.request.wait_accepted(_ANSWER_SECONDS)
    return arriving


def _receive_profiles(arriving: Sequence[_IncomingProfile], directory: Path, deadline: float) -> None:
    """Writes the profiles to files until each process has sent its last chunk, is silent for too long, or is late."""
    open_ = list(arriving)
    while open_:
        poll = select.poll()
        for each in open_:
            poll.register(each.request.channel, select.POLLIN)
        oldest = min(each.received_at for each in open_)
        until = min(oldest + _SILENT_SECONDS, deadline)
        ready = {descriptor for descriptor, _ in poll.poll(max(0.0, until - time.monotonic()) * 1e3)}
        for each in tuple(open_):
            try:
                if time.monotonic() >= deadline:
                    is_over = True
                    problem = (
                        f"PID {each.request.pid} did not end its profile within {_LATE_SECONDS:.0f} s after its time"
                    )
                    each.error = UserError(f"{problem}; check what it does", EXIT_TIMED_OUT)
                elif each.request.channel.fileno() in ready or each.request.has_more:
                    is_over = not each.receive()
                else:
                    is_over = time.monotonic() - each.received_at >= _SILENT_SECONDS
                    if is_over:
                        problem = f"PID {each.request.pid} sent no data for {_SILENT_SECONDS:.0f} s"
                        each.error = UserError(f"{problem}; check whether it is stopped", EXIT_TIMED_OUT)
            except OSError as error:
                raise _write_error(directory, error) from None
            if is_over:
                open_.remove(each)


def _finish_captures(arriving: Sequence[_IncomingProfile], directory: Path, run: str) -> int:
    """Renames the captured files, writes the files for trace viewers, and returns the exit code."""
    exit_code, profiles = 0, []
    for each in arriving:
        profile, path = _keep_profile(each, directory, run)
        if profile is not None and not profile.state.has_ended and each.error is None:
            pid = each.request.pid
            each.error = UserError(f"PID {pid} ended during the capture; its profile ends up to a second earlier")
        if each.error is not None:
            write_stderr(f"neuron-profile: {each.error}")
            exit_code = exit_code or each.error.exit_code
        if profile is None:
            continue
        profiles.append(profile)
        counted = profile.state.recorded
        counts = f"{counted.get('steps', 0)} steps, {counted.get('executions', 0)} executions"
        write_stderr(f"neuron-profile: PID {each.request.pid}: {counts}, {iec_bytes_text(each.size_bytes)}")
        write_text(f"{path}\n")
    try:
        for profile in profiles:
            write_outputs(profile, directory, run)
        if len(profiles) > 1:
            write_ranks(sorted(profiles, key=lambda one: one.metadata.rank), directory)
    except OSError as error:
        raise _write_error(directory, error) from None
    if profiles:
        write_stderr(f"neuron-profile: neuron-profile show {escape_controls(str(directory))} tells what is in it")
    return exit_code


def _keep_profile(arrived: _IncomingProfile, directory: Path, run: str) -> tuple[Profile | None, Path]:
    """Renames a captured file to its final name. Returns its profile and path; None if it is empty or unreadable."""
    if not arrived.size_bytes:
        return None, directory
    try:
        profile = read_profile(arrived.draft, most_unpacked_bytes=_UNPACKED_RATIO * arrived.most_bytes)
    except UserError as error:
        arrived.error = arrived.error or UserError(f"PID {arrived.request.pid} sent no profile ({error})")
        return None, directory
    path = directory / f"{worker_name(profile.metadata)}.{run}{SUFFIX}"
    try:
        arrived.draft.rename(path)
    except OSError as error:
        raise _write_error(directory, error) from None
    return profile, path


def _write_error(directory: Path, error: OSError) -> UserError:
    where = escape_controls(str(directory))[:200]
    return UserError(f"{where}: {error.strerror}; give another directory with -o, or free space", EXIT_FAILURE)


def _try_remove(remove: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        remove()
