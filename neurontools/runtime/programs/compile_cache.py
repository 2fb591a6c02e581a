"""The compile cache on disk, in the layout of the Neuron SDK: compiled models that outlive the process.

    <cache>/neuronxcc-<version>+<hash>/MODULE_<graph hash>+<flags hash>/{model.hlo.pb, model.neff, model.done,
    compile_flags.json, model.lock, model.log}

An entry is complete when `model.done` is there; it holds the digest of `model.neff`. A compilation that failed leaves
`model.log` with the reason instead, and is not tried again without --retry_failed_compilation. A full disk, missing
rights or a damaged entry cost a compilation, never the training.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from neurontools.runtime.programs import entry_lock
from neurontools.runtime.programs.compiled_graph import FORMAT, CompiledGraph, InvalidCompiledGraph
from neurontools.runtime.programs.compiler_flags import CompilerFlags
from neurontools.runtime.reporting.narration import say
from neurontools.version import __version__

CACHE_URL = "NEURON_COMPILE_CACHE_URL"
DEFAULT_DIRECTORY = "/var/tmp/neuron-compile-cache"  # noqa: S108
LOG_LEVEL = "NEURON_RT_LOG_LEVEL"
_LARGEST_MODEL_BYTES = 256 << 20
_LONGEST_REASON = 2000


class CompileCache:
    """Compiled models by graph and flags. Nothing here raises; what can't be read or written is compiled anew."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        version = f"{__version__}+{hashlib.sha256(f'{FORMAT} {torch.__version__}'.encode()).hexdigest()[:8]}"
        self.version_directory = f"neuronxcc-{version}"
        self.hits_total = 0
        self.rebuilt_total = 0
        self.longest_wait_seconds = entry_lock.LONGEST_WAIT_SECONDS
        self._announced: set[str] = set()

    def directory(self, flags: CompilerFlags) -> Path | None:
        """Where models are; None when the cache is off or somewhere that only the SDK can reach."""
        if flags.no_cache:
            return None
        where = flags.cache_dir or self.environment.get(CACHE_URL, "") or DEFAULT_DIRECTORY
        if "://" in where and not where.startswith("file://"):
            if where not in self._announced:
                self._announced.add(where)
                _log("ERROR", f"the compile cache {where} is not reachable from here; set {CACHE_URL} to a directory")
            return None
        path = Path(where.removeprefix("file://"))
        if str(path) not in self._announced:
            self._announced.add(str(path))
            self._info(f"Compile cache path: {path}")
        return path / self.version_directory

    def find(self, graph_hash: str, flags: CompilerFlags) -> CompiledGraph | None:
        """A compiled graph; None when it is not there, not complete, damaged or not ours."""
        directory = self.directory(flags)
        if directory is None:
            return None
        entry = directory / f"MODULE_{graph_hash}+{flags.hash_text}"
        neff = entry / "model.neff"
        try:
            digest = _read_trusted(entry / "model.done", 256)
            data = _read_trusted(neff, _LARGEST_MODEL_BYTES)
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
            self._discard(entry, "it is another graph's")
            return None
        self.hits_total += 1
        self._info(f"Using a cached neff at {neff}. Exiting with a successfully compiled graph.")
        return compiled

    def failure(self, graph_hash: str, flags: CompilerFlags) -> str | None:
        """Why this graph could not be compiled before; None when it was not tried, or is to be tried again."""
        directory = self.directory(flags)
        if directory is None:
            return None
        entry = directory / f"MODULE_{graph_hash}+{flags.hash_text}"
        try:
            if (entry / "model.log").stat().st_uid not in (os.geteuid(), 0) or (entry / "model.done").exists():
                return None
            if flags.retry_failed_compilation:
                (entry / "model.log").unlink()
                return None
            reason = (entry / "model.log").read_text(errors="replace")[:_LONGEST_REASON]
        except OSError:
            return None
        _log(
            "ERROR",
            f"Got a cached failed neff at {entry / 'model.neff'}. Will skip compilation, please set "
            "--retry_failed_compilation for recompilation.",
        )
        return reason.strip() or "no reason is known"

    def store_failure(self, graph_hash: str, flags: CompilerFlags, text: str, reason: str) -> None:
        """Remembers that a graph could not be compiled; `text` is the recorded graph."""
        directory = self.directory(flags)
        if directory is None:
            return
        entry = directory / f"MODULE_{graph_hash}+{flags.hash_text}"
        with contextlib.suppress(OSError):
            entry.mkdir(parents=True, exist_ok=True)
            _write(entry / "model.hlo.pb", text.encode())
            _write(entry / "compile_flags.json", json.dumps(list(flags.passed_on)).encode())
            _write(entry / "model.log", reason.encode())

    @contextlib.contextmanager
    def locked(self, graph_hash: str, flags: CompilerFlags) -> Iterator[None]:
        """Held while one of several ranks compiles a graph; the others wait and then find it.

        A rank that dies meanwhile frees it at once; one that is stopped keeps the others waiting, but not for ever.
        """
        directory = self.directory(flags)
        if directory is None:
            yield
            return
        entry = directory / f"MODULE_{graph_hash}+{flags.hash_text}"
        with contextlib.suppress(OSError):
            entry.mkdir(parents=True, exist_ok=True)

        def waiting(seconds: float) -> None:
            neff = entry / "model.neff"
            self._info(f"Another process must be compiling {neff}, been waiting for: {seconds / 60:.1f} minutes")

        with entry_lock.held(entry / "model.lock", waiting, self.longest_wait_seconds):
            yield

    def store(self, compiled: CompiledGraph, text: str, flags: CompilerFlags) -> None:
        """Writes a compiled graph; `text` is the recorded graph."""
        directory = self.directory(flags)
        if directory is None:
            return
        entry = directory / compiled.module
        data = compiled.to_json()
        try:
            entry.mkdir(parents=True, exist_ok=True)
            _write(entry / "model.hlo.pb", text.encode())
            _write(entry / "compile_flags.json", json.dumps(list(flags.passed_on)).encode())
            _write(entry / "model.neff", data)
            _write(entry / "model.done", hashlib.sha256(data).hexdigest().encode())
        except OSError as error:
            if "full" not in self._announced:
                self._announced.add("full")
                _log("WARNING", f"the compile cache {directory} can't be written ({error.strerror}); training goes on")
            return
        self._info("Compiler status PASS")

    def _discard(self, entry: Path, reason: str) -> None:
        self.rebuilt_total += 1
        _log("WARNING", f"the cached neff in {entry} is damaged ({reason}); compiling it again")
        with contextlib.suppress(OSError):
            (entry / "model.done").unlink()

    def _info(self, text: str) -> None:
        if self.environment.get(LOG_LEVEL, "").upper() in ("INFO", "DEBUG", "TRACE"):
            _log("INFO", text)


def _read_trusted(path: Path, most_bytes: int) -> bytes | None:
    """A file that this user or root wrote; None for another's, because the default directory is open to everybody."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if status.st_uid not in (os.geteuid(), 0) or not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
            return None
        return file.read()


def _write(path: Path, data: bytes) -> None:
    """Writes a file so that it is there whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)  # noqa: PTH101
        os.replace(name, path)  # noqa: PTH105
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108
        raise


def _log(level: str, text: str) -> None:
    say(f"{level} ||NCC_WRAPPER||: {text}")
