"""The files in the state directory: the log of ended processes and the audit log, as bounded files of JSON lines, and
the injected faults as one JSON document.

Every line is complete. An incomplete line is removed: after a kill at the next start, on a full disk immediately. The
event loop writes ended processes before any client sees them, so that a kill loses none that a client has seen. Threads
write the audit log and the faults.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import math
import os
import queue
import stat
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from itertools import islice
from typing import Any, NoReturn, TypeVar

from google.protobuf.message import EncodeError

from neurond.journal.accounts import Departure
from neurontools.driver.kernel_log import KernelRecord, parse_driver_line, parse_hardware_error
from neurontools.model import (
    EndedProcess,
    ErrorCounters,
    ExecutionCounters,
    FaultState,
    Finding,
    InjectedFault,
    Process,
    Snapshot,
)
from neurontools.model.health import describe_finding
from neurontools.model.snapshot import LATEST_UNIX_SECONDS
from neurontools.rpc.convert import from_message, to_message
from neurontools.util.directory import Directory, NotTrusted
from neurontools.util.formats import json_text
from neurontools.util.rate_limited_log import RateLimitedLogger
from neurontools.util.units import ranges_text

MOST_LINE_BYTES = 8192
MOST_FILE_BYTES = 2**20  # size limit of each of the two files of a log
_MOST_WAITING = 4096
CLOSE_SECONDS = 1.0

_log = logging.getLogger(__name__)


def _open_state_directory(path: str, group_id: int | None) -> Directory:
    """Opens a state directory, and sets the mode of a new one for the group.

    Raises NotTrusted if other users could replace its files.
    """
    directory = Directory.open(path, make_mode=0o700)
    try:
        if directory.exposed is not None:
            raise NotTrusted(directory.exposed, "may be changed by everybody")
        if directory.mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise NotTrusted(directory.path, "may be changed by others")
        if directory.is_new and group_id is not None:
            directory.set_mode(0o750, group_id)
    except BaseException:
        directory.close()
        raise
    return directory


def _open_locked(directory: Directory, name: str) -> int:
    """Opens and locks a file. Raises BlockingIOError when another daemon has locked it."""
    descriptor = directory.open_lock(name)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class LineFile:
    """A log of JSON lines in the files NAME.jsonl and NAME.1.jsonl (older lines) of one directory.

    `description` names the content in log messages. With `group_id`, the group may read the files. `content` has the
    complete lines that the files had when they were opened, oldest first. Raises OSError if the files can't be opened,
    and BlockingIOError if another daemon has locked them. Use it in one thread.
    """

    def __init__(
        self,
        path: str,
        name: str,
        description: str,
        group_id: int | None = None,
        most_file_bytes: int = MOST_FILE_BYTES,
    ) -> None:
        self._name, self._older_name = f"{name}.jsonl", f"{name}.1.jsonl"
        self._description = description
        self._group_id = group_id
        self._most_file_bytes = most_file_bytes
        self._most_bytes = most_file_bytes + MOST_LINE_BYTES
        self._log_problem = RateLimitedLogger(_log, logging.WARNING)
        self._directory = _open_state_directory(path, group_id)
        self._file = -1
        try:
            self._file = self._open_file()
            older = b""
            with contextlib.suppress(FileNotFoundError):
                older = self._directory.read(self._older_name, self._most_bytes) or b""
            self.content = older[: older.rfind(b"\n") + 1] + self._read_complete_lines()
        except BaseException:
            self.close()
            raise

    def append(self, lines: Iterable[bytes]) -> None:
        """Appends lines, with one write call unless they fill the file. Logs a failure.

        Each line has at most MOST_LINE_BYTES and ends with a newline.
        """
        try:
            size, batch = os.fstat(self._file).st_size, bytearray()
            for line in lines:
                if size + len(batch) + len(line) > self._most_file_bytes:
                    self._write(batch, size)
                    self._rotate()
                    size, batch = 0, bytearray()
                batch += line
            self._write(batch, size)
        except OSError as error:
            self.log_problem(error.strerror or "")

    def log_problem(self, cause: str) -> None:
        """Logs why lines are not kept. Limits the rate of these messages."""
        self._log_problem("%s: %s is not kept: %s", self._directory.path, self._description, cause)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._directory.close()

    def _open_file(self) -> int:
        """Opens and locks the current file. Raises BlockingIOError when another daemon has locked it."""
        descriptor = _open_locked(self._directory, self._name)
        try:
            if self._group_id is not None:
                os.fchown(descriptor, -1, self._group_id)
            os.fchmod(descriptor, 0o600 if self._group_id is None else 0o640)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _read_complete_lines(self) -> bytes:
        """Removes an incomplete last line from the file; empties a too large file. Returns the remaining lines."""
        content = b""
        if os.fstat(self._file).st_size <= self._most_bytes:
            content = os.pread(self._file, self._most_bytes, 0)
        whole = content.rfind(b"\n") + 1
        os.ftruncate(self._file, whole)
        return content[:whole]

    def _write(self, lines: bytearray, size: int) -> None:
        """Writes lines at the end of a file of this size. Raises OSError if the disk has no room for all of them."""
        written = os.pwrite(self._file, lines, size)
        if written < len(lines):
            os.ftruncate(self._file, size + lines.rfind(b"\n", 0, written) + 1)
            raise OSError(errno.ENOSPC, "no space left on device")

    def _rotate(self) -> None:
        """Rotates the log: renames the current file over the older one, and opens a new current file."""
        descriptor = self._directory.descriptor
        os.rename(self._name, self._older_name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
        before, self._file = self._file, -1
        os.close(before)
        self._file = self._open_file()


class LineQueue:
    """Appends lines to a log in a thread, so that a disk that hangs does not block the daemon."""

    def __init__(self, file: LineFile) -> None:
        self._file = file
        self._queue: queue.Queue[Callable[[], bytes] | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._thread.start()

    def add(self, line: Callable[[], bytes]) -> None:
        """Queues a line for writing. If the queue is full, drops the line.

        The thread calls `line`, which returns at most MOST_LINE_BYTES that end with a newline. The thread logs a
        ValueError that `line` raises.
        """
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self._file.log_problem("the disk does not answer")

    def close(self, wait_seconds: float = CLOSE_SECONDS) -> None:
        """Writes the queued lines and closes the files. Waits at most `wait_seconds` for a disk that hangs."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(wait_seconds)
        if not self._thread.is_alive():
            self._file.close()

    def _work(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                self._file.append([line()])
            except ValueError as error:
                self._file.log_problem(str(error))


FAULTS_FILE = "faults.json"
_FAULTS_LOCK = ".faults.lock"
_MOST_FAULTS_BYTES = 2**22


class FaultsFile:
    """The injected faults on disk: one JSON document, which each change replaces atomically.

    `document` is the document that the file had when it was opened; None without a file. Raises OSError if the
    directory or the file can't be used, and BlockingIOError if another daemon has locked it.
    """

    def __init__(self, path: str, group_id: int | None = None) -> None:
        self._log_problem = RateLimitedLogger(_log, logging.WARNING)
        self._directory = _open_state_directory(path, group_id)
        self._lock = -1
        try:
            self._lock = _open_locked(self._directory, _FAULTS_LOCK)
            self.document = self._read()
        except BaseException:
            self._close_files()
            raise
        self._latest: Mapping[str, object] | None = None
        self._is_ending = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="faults-file", daemon=True)
        self._thread.start()

    def write(self, document: Mapping[str, object]) -> None:
        """Lets the thread write this document. If the disk is slow, the thread writes only the latest one."""
        with self._changed:
            self._latest = document
            self._changed.notify()

    def close(self, wait_seconds: float = CLOSE_SECONDS) -> None:
        """Writes the latest document. Waits at most `wait_seconds` for a disk that hangs."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join(wait_seconds)
        if not self._thread.is_alive():
            self._close_files()

    def _read(self) -> Mapping[str, Any] | None:
        path = f"{self._directory.path}/{FAULTS_FILE}"
        try:
            content = self._directory.read_own(FAULTS_FILE, _MOST_FAULTS_BYTES)
            if content is None:
                _log.warning("%s: not restored: it is too large, or other users may change it", path)
                return None
            document = json.loads(content, parse_constant=_refuse)
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            _log.warning("%s: not restored: it is not a JSON object", path)
            return None
        return document

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._latest is None and not self._is_ending:
                    self._changed.wait()
                document, self._latest = self._latest, None
            if document is None:
                return
            try:
                self._directory.replace(FAULTS_FILE, json_text(document).encode("ascii"), 0o600)
            except OSError as error:
                self._log_problem("%s: %s is not kept: %s", self._directory.path, FAULTS_FILE, error.strerror)

    def _close_files(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        self._directory.close()


T = TypeVar("T")


def open_audit_file(path: str, group: int | None) -> LineQueue:
    """Opens the audit log in this directory, and drops the old lines from memory."""
    file = LineFile(path, _AUDIT_NAME, "the audit", group)
    file.content = b""
    return LineQueue(file)


def open_state_file(
    directory: str | None, group: int | None, description: str, opened: Callable[[str, int | None], T]
) -> T | None:
    """Opens a state file by calling `opened(directory, group)`. Returns None if `directory` is None.

    If opening the file fails, logs the failure and returns None.
    """
    if directory is None:
        return None
    try:
        return opened(directory, group)
    except BlockingIOError:
        _log.warning("%s: another daemon keeps %s there; this one keeps it in memory", directory, description)
    except OSError as error:
        _log.warning(
            "%s: %s is kept only in memory: %s%s",
            directory,
            description,
            f"{error.filename} " if isinstance(error, NotTrusted) else "",
            error.strerror,
        )
    return None


_NAMES = frozenset(field.name for field in fields(EndedProcess))
_COUNTERS: dict[str, type[ExecutionCounters | ErrorCounters]] = {
    "executions": ExecutionCounters,
    "errors": ErrorCounters,
}


def encode_ended(process: EndedProcess) -> bytes:
    """Encodes an ended process as one JSON line. Raises ValueError if it is too long or contains NaN or infinity."""
    document = _field_values(process)
    document |= {name: _field_values(value) for name in _COUNTERS if (value := document[name]) is not None}
    line = json_text(document).encode("ascii") + b"\n"
    if len(line) > MOST_LINE_BYTES:
        raise ValueError(f"a record of {len(line)} bytes is too long")
    return line


def _field_values(record: EndedProcess | ExecutionCounters | ErrorCounters) -> dict[str, Any]:
    """Returns the fields of a record. `dataclasses.asdict` copies all values and takes four times as long."""
    return {name: getattr(record, name) for name in type(record).__slots__}


def decode_ended(line: bytes) -> EndedProcess:
    """Decodes a line of `encode_ended`. Ignores keys of later versions. Raises ValueError for an invalid line."""
    try:
        document = json.loads(line, parse_constant=_refuse)
        if not isinstance(document, dict):
            raise ValueError("no object")
        values: dict[str, Any] = {name: value for name, value in document.items() if name in _NAMES}
        for name, kind in _COUNTERS.items():
            if values.get(name) is not None:
                values[name] = kind(**values[name])
        for name in ("device_indices", "inferred_fields"):
            values[name] = tuple(values.get(name, ()))
        process = from_message(EndedProcess, to_message(EndedProcess(**values)))
    except (TypeError, KeyError, AttributeError, OverflowError, RecursionError, EncodeError) as error:
        raise ValueError(f"no ended process: {error}") from None
    if not all(math.isfinite(value) for value in _field_values(process).values() if isinstance(value, float)):
        raise ValueError("a number that is none")
    if not 0 <= process.began_at_unix_seconds <= process.ended_at_unix_seconds <= LATEST_UNIX_SECONDS:
        raise ValueError("a time that can't be shown")
    return process


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


_ENDED_NAME = "ended"
ENDED_FILE, OLDER_ENDED_FILE = f"{_ENDED_NAME}.jsonl", f"{_ENDED_NAME}.1.jsonl"


class EndedFile:
    """The log of ended processes on disk. `ended`: the processes that the log had when it was opened."""

    def __init__(self, path: str, group_id: int | None = None, most_file_bytes: int = MOST_FILE_BYTES) -> None:
        self._lines = LineFile(path, _ENDED_NAME, "what ended", group_id, most_file_bytes)
        self.ended: list[EndedProcess] = []
        for line in self._lines.content.splitlines():
            with contextlib.suppress(ValueError):
                self.ended.append(decode_ended(line))
        self._lines.content = b""

    def add(self, processes: Iterable[EndedProcess]) -> None:
        """Appends the processes. Logs and skips one that can't be encoded."""
        lines = []
        for process in processes:
            try:
                lines.append(encode_ended(process))
            except ValueError as error:
                self._lines.log_problem(str(error))
        self._lines.append(lines)

    def close(self) -> None:
        self._lines.close()


MOST_ENDED = 1000
RECENT_SECONDS = 60.0
MOST_RECENT = 128


class EndedLog:
    """The latest MOST_ENDED ended processes, oldest first. The log is complete since `known_since_unix_seconds`."""

    def __init__(self, known_since_unix_seconds: float, file: EndedFile | None = None) -> None:
        self.known_since_unix_seconds = known_since_unix_seconds
        self._ended: dict[tuple[int, float, float], EndedProcess] = {}
        self._file = file
        if file is not None and file.ended:
            latest = {process.identity: process for process in file.ended}
            in_order = sorted(latest.values(), key=lambda process: process.ended_at_unix_seconds)
            self._ended = {process.identity: process for process in in_order[-MOST_ENDED:]}
            first = next(iter(self._ended.values()))
            self.known_since_unix_seconds = min(known_since_unix_seconds, first.began_at_unix_seconds)

    def add(self, ended: Iterable[EndedProcess]) -> None:
        """Adds ended processes. One with the identity of an earlier one replaces it."""
        added = []
        for process in ended:
            if len(self._ended) == MOST_ENDED and process.identity not in self._ended:
                oldest = next(iter(self._ended.values()))
                if process.ended_at_unix_seconds < oldest.ended_at_unix_seconds:
                    continue  # the log has dropped the record that this one completes
                del self._ended[oldest.identity]
                self.known_since_unix_seconds = oldest.ended_at_unix_seconds
            self._ended[process.identity] = process
            added.append(process)
        if added and self._file is not None:
            self._file.add(added)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def since(self, unix_seconds: float) -> list[EndedProcess]:
        return [process for process in self._ended.values() if process.ended_at_unix_seconds >= unix_seconds]

    def recent(self, now_unix_seconds: float) -> tuple[EndedProcess, ...]:
        """Returns the ended processes that snapshots show: the latest MOST_RECENT of the last RECENT_SECONDS."""
        last = next(reversed(self._ended.values()), None)
        if last is None or last.ended_at_unix_seconds < now_unix_seconds - RECENT_SECONDS:
            return ()
        return tuple(self.since(now_unix_seconds - RECENT_SECONDS)[-MOST_RECENT:])


_AUDIT_NAME = "audit"
_STATES = {FaultState.WAITING: "fault_waits", FaultState.HOLDS: "fault_holds", FaultState.OVER: "fault_is_over"}
_FAULT_FIELDS = (
    *("number", "kind", "device_indices", "neuroncore_index", "pid"),
    *("met_total", "injected_by_uid", "injected_by_pid"),
)
_MOST_CHARACTERS = 500  # texts in an event are cut to this number of characters


_MOST_KERNEL_RECORDS = 16  # most kernel records in the audit log per snapshot, so that a flood does not fill it


def _kernel_report(record: KernelRecord) -> dict[str, object] | None:
    """Returns what a kernel record reports about a device; None if it reports nothing."""
    error = parse_hardware_error(record.text)
    if error is not None:
        return {"reports": error.name, "device_index": error.device_index, "core_index": error.core_index}
    message = parse_driver_line(record.text)
    return None if message is None else {"reports": str(message.event), "device_index": message.device_index}


class AuditLog:
    """Writes events to the audit file, if there is one. `record` may be called from any thread."""

    def __init__(self, file: LineQueue | None = None) -> None:
        self._file = file
        self._attached: dict[tuple[int, float | None], Process] = {}
        self._faults: dict[int, InjectedFault] = {}

    def record(self, event: str, at_unix_seconds: float, fields: Mapping[str, object]) -> None:
        if self._file is not None:
            self._file.add(partial(_line, {"at_unix_seconds": round(at_unix_seconds, 6), "event": event, **fields}))

    def record_findings(self, began: Iterable[Finding], ended: Iterable[Finding], at_unix_seconds: float) -> None:
        for event, findings in (("finding_begins", began), ("finding_ends", ended)):
            for finding in findings:
                self.record(event, at_unix_seconds, describe_finding(finding))

    def record_attaches(self, snapshot: Snapshot, departures: Iterable[Departure], at_unix_seconds: float) -> None:
        """Records which processes got or released cores. `at_unix_seconds` is wall-clock time."""
        if self._file is None:
            return
        now = _by_identity(each for each in snapshot.processes if each.attached_at_unix_seconds is not None)
        left = _by_identity(departure.process for departure in departures)
        for key, process in (now | left).items():
            if key not in self._attached:
                self.record("attached", at_unix_seconds, _process_fields(process))
        for key, process in (self._attached | left).items():
            if key not in now:
                self.record("released", at_unix_seconds, _process_fields(process))
        self._attached = now

    def record_kernel_records(
        self, records: Sequence[KernelRecord], counted: Sequence[KernelRecord], at_unix_seconds: float
    ) -> None:
        """Records what the kernel log reported about devices, and whether it counted. Records at most 16 at a time."""
        reports = ((each, report) for each in records if (report := _kernel_report(each)) is not None)
        for each, report in islice(reports, _MOST_KERNEL_RECORDS):
            origin = {"facility": each.facility, "sequence": each.sequence, "counted": each in counted}
            self.record("kernel_record", at_unix_seconds, {**report, **origin})

    def record_faults(self, snapshot: Snapshot) -> None:
        for fault in snapshot.injected_faults:
            self._record_fault(fault, snapshot.taken_at_unix_seconds)
        self._faults = {fault.number: fault for fault in snapshot.injected_faults}

    def record_healed(
        self, faults: Iterable[InjectedFault], by_uid: int | None, by_pid: int | None, at_unix_seconds: float
    ) -> None:
        """Records healed faults and who healed them, including faults that no snapshot contained."""
        for fault in faults:
            self._record_fault(fault, at_unix_seconds)
            by = {"healed_by_uid": by_uid, "healed_by_pid": by_pid}
            self.record("fault_healed", at_unix_seconds, _fault_fields(fault) | by)
            self._faults.pop(fault.number, None)

    def _record_fault(self, fault: InjectedFault, at_unix_seconds: float) -> None:
        before = self._faults.get(fault.number)
        if before is None:
            self.record("fault_injected", fault.injected_at_unix_seconds, _fault_fields(fault))
        if fault.state is not (FaultState.WAITING if before is None else before.state):
            self.record(_STATES[fault.state], at_unix_seconds, _fault_fields(fault))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _by_identity(processes: Iterable[Process]) -> dict[tuple[int, float | None], Process]:
    """Returns the processes with cores by PID and attach time, without those of the synthetic load."""
    recorded = (each for each in processes if each.core_indices and not each.synthetic)
    return {(each.pid, each.attached_at_unix_seconds): each for each in recorded}


def _process_fields(process: Process) -> dict[str, object]:
    return {
        "pid": process.pid,
        "uid": process.uid,
        "user": process.user,
        "job": process.job_name,
        "neuroncores": ranges_text(process.neuroncore_indices),
    }


def _fault_fields(fault: InjectedFault) -> dict[str, object]:
    return {name: getattr(fault, name) for name in _FAULT_FIELDS}


def _line(fields: dict[str, object]) -> bytes:
    cut = {key: value[:_MOST_CHARACTERS] if isinstance(value, str) else value for key, value in fields.items()}
    line = json_text(cut).encode("ascii") + b"\n"
    if len(line) > MOST_LINE_BYTES:
        raise ValueError(f"a line of {len(line)} bytes is too long")
    return line
