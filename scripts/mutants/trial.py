"""The tests of one module, run in a process of their own on a copy of the tree that may hold a mutant."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

PACKAGE_ROOTS = (".", "daemon")
_STILL_SECONDS = 60.0  # without any CPU time: what the tests wait for doesn't come
_CPU_FACTOR, _CPU_SECONDS = 10.0, 20.0  # above what the tests need without a mutant
_MOST_BYTES = 4 << 30
# Hypothesis is imported once, before pytest could rewrite its assertions, which it doesn't need.
_PYTEST_FLAGS = ("-x", "-pno:cacheprovider", "-Wignore::pytest.PytestAssertRewriteWarning", "--hypothesis-seed=0")
_NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "build", "dist")


class Slot:
    """A copy of the tree in which one trial runs at a time."""

    def __init__(self, root: Path, directory: Path) -> None:
        self.tree = directory / "tree"
        self.scratch = directory / "tmp"
        self.output = directory / "output"
        shutil.copytree(root, self.tree, ignore=_NOT_COPIED)

    def clear(self) -> None:
        """Takes away what the trial before left, such as the examples by which Hypothesis failed."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()

    @contextlib.contextmanager
    def changed(self, path: str, text: str) -> Iterator[None]:
        """A module has another text meanwhile; its compiled form is made anew, before and after."""
        file = self.tree / path
        original = file.read_text("utf-8")
        _write(file, text)
        yield
        _write(file, original)


class Trial:
    """Tests that run. `baseline_cpu_seconds`: what they take without a mutant; None when this is to be found out."""

    def __init__(self, slot: Slot, arguments: Sequence[str], baseline_cpu_seconds: float | None) -> None:
        self.slot = slot
        self.cpu_seconds = 0.0
        slot.clear()
        self._baseline_cpu_seconds = baseline_cpu_seconds
        self._moved_at_seconds = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _run_tests(slot, arguments)
        os.setpgid(pid, pid)  # here and in the child, so that it is so whoever comes first
        self.pid = pid
        self._process = psutil.Process(pid)

    def exit_code(self) -> int | None:
        """pytest's exit code, negative for the signal that ended it; None while the tests run."""
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        self.cpu_seconds = max(self.cpu_seconds, usage.ru_utime + usage.ru_stime)
        self._kill_group()
        return os.waitstatus_to_exitcode(status)

    def hangs(self) -> bool:
        """Whether the tests will never end: by their CPU time and not by the clock, which a busy machine stretches."""
        cpu_seconds, resident_bytes = 0.0, 0
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (self._process, *self._process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    cpu_seconds += times.user + times.system + times.children_user + times.children_system
                    resident_bytes += process.memory_info().rss
        if abs(cpu_seconds - self.cpu_seconds) > 0.02:
            self.cpu_seconds, self._moved_at_seconds = cpu_seconds, time.monotonic()
        is_endless = (
            self._baseline_cpu_seconds is not None
            and cpu_seconds > _CPU_SECONDS + _CPU_FACTOR * self._baseline_cpu_seconds
        )
        is_still = time.monotonic() - self._moved_at_seconds > _STILL_SECONDS
        return is_endless or is_still or resident_bytes > _MOST_BYTES

    def kill(self) -> int:
        """Ends the tests and what they started; the exit code that comes of it."""
        self._kill_group()
        os.waitpid(self.pid, 0)
        return -signal.SIGKILL

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def _write(file: Path, text: str) -> None:
    file.write_text(text, "utf-8")
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)


def _run_tests(slot: Slot, arguments: Sequence[str]) -> None:
    code = 70
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        output = os.open(slot.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(slot.tree)
        roots = [str(slot.tree / root) for root in PACKAGE_ROOTS]
        sys.path[:0] = roots
        sys.dont_write_bytecode = True
        os.environ |= {"PYTHONPATH": ":".join(roots), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(slot.scratch)}
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(slot.scratch / "hypothesis")
        tempfile.tempdir = None
        code = int(pytest.main([*_PYTEST_FLAGS, *arguments]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
