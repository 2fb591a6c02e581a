"""The compile cache on disk, in the layout of the Neuron SDK: compiled models that outlive the process.

    <cache>/neuronxcc-<version>+<hash>/MODULE_<graph hash>+<flags hash>/{model.hlo.pb, model.neff, model.done,
    compile_flags.json, model.lock, model.log, machine-code-<machine>.bin}

An entry is complete if it has `model.done`, the digest of `model.neff`. A failed compilation leaves its reason in
`model.log`, and is not repeated without --retry_failed_compilation. A full disk, missing permissions or a damaged entry
cost a compilation, but never end the training.

The default directory belongs to this user alone. A configured directory is used only if it belongs to this user or to
root and is not a symbolic link. The same rule applies to each file and directory in it. A group shares a directory
whose mode is sticky, set-group-id, and writable by the group but not by all, such as 3770. In a shared directory,
entries of group members are used too.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import monotonic, sleep

import torch

from neurontools.runtime.programs.compiled_graph import FORMAT, CompiledGraph, InvalidCompiledGraph
from neurontools.runtime.programs.compiler import CompilerFlags
from neurontools.runtime.reporting.stderr_lines import write_stderr_line
from neurontools.util.directory import Directory, NotTrusted
from neurontools.util.version import __version__

CACHE_URL = "NEURON_COMPILE_CACHE_URL"
LOG_LEVEL = "NEURON_RT_LOG_LEVEL"
_LARGEST_MODEL_BYTES = 256 << 20
_LARGEST_REASON_BYTES = 1 << 20
_LONGEST_REASON = 2000
_MACHINE_CODE = "machine-code-{}.bin"
_OWN_MODE, _NAMED_MODE = 0o700, 0o755


def default_directory() -> str:
    """Returns the default cache directory of this user: the SDK's default with the user ID at the end."""
    return f"/var/tmp/neuron-compile-cache-{os.geteuid()}"  # noqa: S108


class CompileCache:
    """A cache of compiled models, by graph hash and compiler flags.

    No public method raises OSError: a model that can't be read or written is compiled again.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        version = f"{__version__}+{hashlib.sha256(f'{FORMAT} {torch.__version__}'.encode()).hexdigest()[:8]}"
        self.version_directory = f"neuronxcc-{version}"
        self.hits_total = 0
        self.stored_total = 0
        self.rebuilt_total = 0
        self.longest_wait_seconds = LONGEST_WAIT_SECONDS
        self._announced: set[str] = set()

    def directory(self, flags: CompilerFlags) -> Path | None:
        """Returns the directory of the models. None if the cache is off, or is a URL that only the SDK can read."""
        if flags.no_cache:
            return None
        where = flags.cache_dir or self.environment.get(CACHE_URL, "") or default_directory()
        if "://" in where and not where.startswith("file://"):
            if self._is_first(where):
                _log_at_level(
                    "ERROR", f"the compile cache {where} is not reachable from here; set {CACHE_URL} to a directory"
                )
            return None
        path = Path(where.removeprefix("file://"))
        if self._is_first(str(path)):
            self._info(f"Compile cache path: {path}")
        return path / self.version_directory

    def find(self, graph_hash: str, flags: CompilerFlags) -> CompiledGraph | None:
        """Returns the cached graph, or None if its entry is missing, incomplete, damaged or not trusted.

        Marks a damaged entry as incomplete, so that the graph is compiled again.
        """
        with self._open_entry(graph_hash, flags) as entry:
            if entry is None:
                return None
            try:
                digest = entry.read("model.done", 256)
                data = entry.read("model.neff", _LARGEST_MODEL_BYTES)
            except OSError:
                return None
            if digest is None or data is None:
                return None
            if hashlib.sha256(data).hexdigest().encode() != digest.strip():
                self._discard(entry, "its digest does not match")
                return None
            try:
                compiled = CompiledGraph.from_json(data)
            except InvalidCompiledGraph as error:
                self._discard(entry, str(error))
                return None
            if (compiled.graph_hash, compiled.flags_hash) != (graph_hash, flags.hash_text):
                self._discard(entry, "it belongs to another graph")
                return None
            self.hits_total += 1
            self._info(f"Using a cached neff at {entry.path}/model.neff. Exiting with a successfully compiled graph.")
            return compiled

    def failure(self, graph_hash: str, flags: CompilerFlags) -> str | None:
        """Returns why an earlier compilation of this graph failed.

        Returns None if none failed, or if --retry_failed_compilation is set.
        """
        with self._open_entry(graph_hash, flags) as entry:
            if entry is None:
                return None
            try:
                found = entry.read("model.log", _LARGEST_REASON_BYTES)
                if found is None or entry.is_there("model.done"):
                    return None
                if flags.retry_failed_compilation:
                    entry.remove("model.log")
                    return None
            except OSError:
                return None
            _log_at_level(
                "ERROR",
                f"Got a cached failed neff at {entry.path}/model.neff. Will skip compilation, please set "
                "--retry_failed_compilation for recompilation.",
            )
        return found.decode(errors="replace")[:_LONGEST_REASON].strip() or "no reason is known"

    def store_failure(self, graph_hash: str, flags: CompilerFlags, text: str, reason: str) -> None:
        """Stores the reason for a failed compilation. `text` is the recorded graph."""
        with contextlib.suppress(OSError), self._open_entry(graph_hash, flags, make=True) as entry:
            if entry is not None:
                entry.replace("model.hlo.pb", text.encode())
                entry.replace("compile_flags.json", json.dumps(list(flags.passed_on)).encode())
                entry.replace("model.log", reason.encode())

    @contextlib.contextmanager
    def locked(self, graph_hash: str, flags: CompilerFlags, name: str = "model.lock") -> Iterator[None]:
        """Holds an entry's lock, so that one rank compiles the graph while the other ranks wait for its result.

        The kernel releases the lock of a rank that dies. If the lock can't be acquired within `longest_wait_seconds`,
        the block runs without the lock.
        """
        with contextlib.ExitStack() as stack:
            # If the lock can't be opened, each rank compiles the graph itself.
            with contextlib.suppress(OSError):
                entry = stack.enter_context(self._open_entry(graph_hash, flags, make=True))
                if entry is not None:
                    neff = f"{entry.path}/model.neff"

                    def waiting(seconds: float) -> None:
                        minutes = seconds / 60
                        self._info(f"Another process must be compiling {neff}, been waiting for: {minutes:.1f} minutes")

                    stack.enter_context(hold_entry_lock(entry, name, waiting, self.longest_wait_seconds))
            yield

    def store(self, compiled: CompiledGraph, text: str, flags: CompilerFlags) -> None:
        """Stores a compiled graph; `text` is the recorded graph. Warns once if the cache can't be written."""
        data = compiled.to_json()
        try:
            with self._open_entry(compiled.graph_hash, flags, make=True) as entry:
                if entry is None:
                    return
                entry.replace("model.hlo.pb", text.encode())
                entry.replace("compile_flags.json", json.dumps(list(flags.passed_on)).encode())
                entry.replace("model.neff", data)
                entry.replace("model.done", hashlib.sha256(data).hexdigest().encode())
        except OSError as error:
            if self._is_first("full"):
                where = self.directory(flags)
                _log_at_level(
                    "WARNING", f"the compile cache {where} can't be written ({error.strerror}); training goes on"
                )
            return
        self.stored_total += 1
        self._info("Compiler status PASS")

    def machine_code(self, graph_hash: str, flags: CompilerFlags, key: str) -> bytes | None:
        """Returns the machine code of a graph for this machine key, or None if the cache has none.

        Ignores files that other users wrote, even in a shared directory, because this process executes the code.
        """
        with self._open_entry(graph_hash, flags) as entry:
            try:
                return None if entry is None else entry.read_own(_MACHINE_CODE.format(key), _LARGEST_MODEL_BYTES)
            except OSError:
                return None

    def store_machine_code(self, graph_hash: str, flags: CompilerFlags, key: str, data: bytes) -> None:
        """Stores machine code of a graph in a file that only this user may read or write."""
        with contextlib.suppress(OSError), self._open_entry(graph_hash, flags, make=True) as entry:
            if entry is not None:
                entry.replace(_MACHINE_CODE.format(key), data, mode=0o600)

    @contextlib.contextmanager
    def _open_entry(self, graph_hash: str, flags: CompilerFlags, *, make: bool = False) -> Iterator[Directory | None]:
        """Opens an entry's directory. Yields None if the directory is missing, or if another user may control it.

        With `make`, creates a missing directory. Raises OSError only with `make`.
        """
        path = self.directory(flags)
        if path is None:
            yield None
            return
        with contextlib.ExitStack() as stack:
            is_default = str(path.parent) == default_directory()
            entry = None
            try:
                cache_mode = (_OWN_MODE if is_default else _NAMED_MODE) if make else None
                directory = Directory.open(path.parent, make_mode=cache_mode, may_be_link=False)
                for name in (path.name, f"MODULE_{graph_hash}+{flags.hash_text}"):
                    directory = stack.enter_context(directory).open_subdirectory(
                        name, make_mode=_NAMED_MODE if make else None
                    )
                entry = stack.enter_context(directory)
            except NotTrusted as error:
                if self._is_first("not trusted"):
                    _log_at_level(
                        "WARNING",
                        f"the compile cache is not used: {error.filename} {error.strerror}; set {CACHE_URL} to a "
                        "directory of your own, or remove what is in the way",
                    )
            except OSError:
                if make:
                    raise
            yield entry

    def _discard(self, entry: Directory, reason: str) -> None:
        self.rebuilt_total += 1
        _log_at_level("WARNING", f"the cached neff in {entry.path} is damaged ({reason}); compiling it again")
        with contextlib.suppress(OSError):
            entry.remove("model.done")

    def _is_first(self, topic: str) -> bool:
        """Returns True at the first call for each topic, so that each topic is logged once."""
        is_first = topic not in self._announced
        self._announced.add(topic)
        return is_first

    def _info(self, text: str) -> None:
        if self.environment.get(LOG_LEVEL, "").upper() in ("INFO", "DEBUG", "TRACE"):
            _log_at_level("INFO", text)


def _log_at_level(level: str, text: str) -> None:
    write_stderr_line(f"{level} ||NCC_WRAPPER||: {text}")


LONGEST_WAIT_SECONDS = 120.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.002, 0.1
_FIRST_NOTICE_SECONDS, _NOTICE_INTERVAL_SECONDS = 0.2, 60.0

_held_descriptors: set[int] = set()


@contextlib.contextmanager
def hold_entry_lock(
    directory: Directory,
    name: str,
    waiting: Callable[[float], None],
    longest_wait_seconds: float = LONGEST_WAIT_SECONDS,
) -> Iterator[bool]:
    """Creates a lock file and holds its lock during the block. Yields whether the lock was acquired.

    The kernel releases the lock when its holder ends, even by SIGKILL, so a leftover lock file is harmless. Yields
    False if the file can't be created, or if another process still holds the lock after `longest_wait_seconds`. During
    the wait, calls `waiting` with the seconds waited so far: after 0.2 s, and then once a minute.
    """
    descriptor = -1
    try:
        descriptor = directory.open_lock(name)
        _held_descriptors.add(descriptor)
        is_held = _acquire(descriptor, waiting, longest_wait_seconds)
    except OSError:
        is_held = False
    except BaseException:
        _close_descriptor(descriptor)
        raise
    try:
        yield is_held
    finally:
        _close_descriptor(descriptor)


def _acquire(descriptor: int, waiting: Callable[[float], None], longest_wait_seconds: float) -> bool:
    began = monotonic()
    pause_seconds, notice_seconds = _FIRST_PAUSE_SECONDS, _FIRST_NOTICE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited_seconds = monotonic() - began
        else:
            return True
        if waited_seconds >= notice_seconds:
            notice_seconds = waited_seconds + _NOTICE_INTERVAL_SECONDS
            waiting(waited_seconds)
        if waited_seconds >= longest_wait_seconds:
            return False
        sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)


def _close_descriptor(descriptor: int) -> None:
    if descriptor in _held_descriptors:
        _held_descriptors.discard(descriptor)
        os.close(descriptor)


def _close_in_child() -> None:
    """Closes a forked child's copies of the lock files.

    Otherwise they would hold locks that the parent has released.
    """
    for descriptor in tuple(_held_descriptors):
        _close_descriptor(descriptor)


os.register_at_fork(after_in_child=_close_in_child)
