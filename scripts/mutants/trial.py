"""Runs tests in a separate process, on a copy of the tree that may contain a mutant."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import psutil
import pytest
from collected import CollectedTests

PACKAGE_ROOTS = (".", "daemon")
_STILL_SECONDS = 60.0  # tests that use no CPU time for so long wait in vain
_CPU_FACTOR, _CPU_SECONDS = 3.0, 20.0  # the limit: CPU time without a mutant times this factor, plus these seconds
_MOST_BYTES = 4 << 30
_PR_SET_CHILD_SUBREAPER = 36
# Plain assertions, because nobody reads the failures and assertion rewriting takes longer than most tests.
_PYTEST_FLAGS = ("--assert=plain", "-pno:cacheprovider", "-pno:randomly", "-pno:xdist", "--hypothesis-seed=0")
_NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "build", "dist")


def adopt_orphans() -> None:
    """Makes this process the subreaper: it becomes the parent of orphans instead of init."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


class Slot:
    """A copy of the tree in which one trial runs at a time."""

    def __init__(self, root: Path, directory: Path) -> None:
        self.tree = directory / "tree"
        self.scratch = directory / "tmp"
        self.output = directory / "output"
        self.collected: CollectedTests | None = None
        self._originals: dict[str, str] = {}
        shutil.copytree(root, self.tree, ignore=_NOT_COPIED)
        for installed in ("consumers", "viewers", "frameworks", "serving", "mcp", "axe"):  # environments of some tests
            if (root / ".venv" / installed).exists():
                (self.tree / ".venv").mkdir(exist_ok=True)
                (self.tree / ".venv" / installed).symlink_to((root / ".venv" / installed).resolve())

    def collect(self, files: Sequence[str]) -> CollectedTests:
        """Starts and returns the process that collects the tests of these files."""
        self.clear()
        self.collected = CollectedTests(self.tree.parent, lambda plugin: run_pytest(self, files, [plugin]))
        return self.collected

    def clear(self) -> None:
        """Removes the files of the previous trial, such as failing examples of Hypothesis."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()
        self.scratch.chmod(0o755)  # tests run processes of other users

    def put(self, path: str, text: str | None) -> None:
        """Restores all changed modules, then gives this module another text unless it is None."""
        for changed, original in self._originals.items():
            _write(self.tree / changed, original)
        self._originals.clear()
        if text is not None:
            self._originals[path] = (self.tree / path).read_text("utf-8")
            _write(self.tree / path, text)


class Trial:
    """A test run in the process `pid`, a child of this process.

    `baseline_cpu_seconds` is its CPU time without a mutant, or None for a run without time limit.
    """

    def __init__(self, slot: Slot, pid: int, baseline_cpu_seconds: float | None = None) -> None:
        self.slot = slot
        self.pid = pid
        self.cpu_seconds = 0.0
        self._baseline_cpu_seconds = baseline_cpu_seconds
        self._examined_at_seconds = self._moved_at_seconds = time.monotonic()
        self._process = psutil.Process(pid)

    def exit_code(self) -> int | None:
        """Returns pytest's exit code, the negative number of a signal that ended it, or None while it runs."""
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        self.cpu_seconds = max(self.cpu_seconds, usage.ru_utime + usage.ru_stime)
        self._kill_all()
        return os.waitstatus_to_exitcode(status)

    def hangs(self) -> bool:
        """Whether the tests hang: they use too much CPU time or memory, or no CPU time for a minute.

        The first limit is CPU time, because a busy host stretches wall time. Looks at most once a second.
        """
        if time.monotonic() - self._examined_at_seconds < 1.0:
            return False
        self._examined_at_seconds = time.monotonic()
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
        is_still = self._baseline_cpu_seconds is not None and (
            time.monotonic() - self._moved_at_seconds > _STILL_SECONDS
        )
        return is_endless or is_still or resident_bytes > _MOST_BYTES

    def kill(self) -> int:
        """Kills the tests and their child processes. Returns the exit code."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._kill_all()
        return -signal.SIGKILL

    def _kill_all(self) -> None:
        """Kills leftover processes, such as daemons in other sessions. `adopt_orphans` has made them our children."""
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TMPDIR") == str(self.slot.scratch):
                    process.kill()
                    process.wait(5.0)


def _write(file: Path, text: str) -> None:
    file.write_text(text, "utf-8")
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)


class Selection:
    """A pytest plugin that runs only the named tests, in the order of the names."""

    def __init__(self, names: Sequence[str]) -> None:
        self._positions = {name: number for number, name in enumerate(names, 1)}
        self.files = list(dict.fromkeys(name.partition("::")[0] for name in names))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Deselects the other tests. A missing test is no error, because a mutant may change names of tests."""
        items[:] = sorted(filter(self._position, items), key=self._position)

    def _position(self, item: pytest.Item) -> int:
        """Returns the position of a test from 1, or 0 for a deselected test. A name may be that of a whole file."""
        return self._positions.get(item.nodeid) or self._positions.get(item.nodeid.partition("::")[0], 0)


def fork_pytest(slot: Slot, arguments: Sequence[str], plugins: Sequence[object] = ()) -> int:
    """Runs pytest in a fork of this process, on the tree of the slot. Returns the PID."""
    slot.clear()
    pid = os.fork()
    if pid == 0:
        run_pytest(slot, arguments, plugins)
    return pid


def run_pytest(slot: Slot, arguments: Sequence[str], plugins: Sequence[object]) -> NoReturn:
    """Runs pytest in this process, which must be a fork."""
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
        sys.dont_write_bytecode = True  # bytecode of a mutant must not outlive it
        os.environ |= {"PYTHONPATH": ":".join(roots), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(slot.scratch)}
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(slot.scratch / "hypothesis")
        tempfile.tempdir = None
        base = f"--basetemp={slot.scratch}/p"  # short, because some tests put sockets there
        code = int(pytest.main([*_PYTEST_FLAGS, base, *arguments], plugins=list(plugins)))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
