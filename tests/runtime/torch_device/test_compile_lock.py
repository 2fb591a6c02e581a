"""The lock of the compile cache between processes: one compiles, the others wait, and nobody waits for the dead."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

from neurontools.files.directory import Directory
from neurontools.runtime.programs import entry_lock
from neurontools.runtime.programs.compile_cache import CompileCache
from neurontools.runtime.programs.compiler_flags import CompilerFlags
from tests.harness import python_process
from tests.harness.paths import PYTHONPATH
from tests.harness.waiting import HANG_SECONDS, wait_until

SCRIPT = """
import torch, torch_xla, torch_xla.core.xla_model as xm, torch_xla.debug.metrics as met
value = (torch.ones(3, 3).to(xm.xla_device()) * 2).sum()
xm.mark_step()
print(met.counter_value("UncachedCompile") or 0, value.item())
"""
HOLDER = """
import os, sys
from neurontools.files.directory import Directory
from neurontools.runtime.programs import entry_lock
directory, name = os.path.split(sys.argv[1])
with Directory.open(directory) as opened, entry_lock.held(opened, name, print) as is_held:
    print(is_held, flush=True)
    sys.stdin.readline()
"""


class Rank:
    """A process that runs the script with a cache."""

    def __init__(self, directory: Path, cache: Path, environment: dict[str, str]) -> None:
        (directory / "script.py").write_text(SCRIPT)
        self.errors = directory / "errors"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NEURON", "XLA_"))}
        with self.errors.open("wb") as errors:
            self.process = python_process.popen(
                [sys.executable, "-m", "neurontools.runtime", "script.py"],
                loaded=python_process.TORCH,
                cwd=directory,
                env={
                    **kept,
                    **environment,
                    "PYTHONPATH": PYTHONPATH,
                    "NEURON_COMPILE_CACHE_URL": str(cache),
                    "NEURON_RT_LOG_LEVEL": "INFO",
                },
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def has_said(self, text: str) -> bool:
        return text in self.errors.read_text()

    def end(self) -> tuple[int, float]:
        """How many graphs it compiled, and its result."""
        output, _ = self.process.communicate(timeout=HANG_SECONDS)
        assert self.process.returncode == 0, self.errors.read_text()
        compiled, value = output.split()
        return int(compiled), float(value)


@pytest.fixture
def start_rank(tmp_path: Path, device_environment: dict[str, str]) -> Iterator[Callable[[Path], Rank]]:
    ranks: list[Rank] = []

    def start(cache: Path) -> Rank:
        directory = tmp_path / f"rank{len(ranks)}"
        directory.mkdir()
        ranks.append(Rank(directory, cache, device_environment))
        return ranks[-1]

    yield start
    for rank in ranks:
        rank.process.kill()
        rank.process.communicate()


@pytest.fixture
def hold() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Has another process take a lock; it gives it back when its standard input has a line."""
    holders: list[subprocess.Popen[str]] = []

    def start(path: Path) -> subprocess.Popen[str]:
        holder = python_process.popen(
            [sys.executable, "-c", HOLDER, str(path)],
            loaded=python_process.TORCH,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        holders.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        return holder

    yield start
    for holder in holders:
        holder.kill()
        holder.communicate()


@pytest.fixture
def compiled(tmp_path: Path, start_rank: Any) -> Path:
    """The entry of the script's graph, in a cache that another process filled."""
    start_rank(tmp_path / "first").end()
    (done,) = (tmp_path / "first").rglob("model.done")
    return done.parent


def entry_in(cache: Path, compiled: Path) -> Path:
    entry = cache / compiled.parent.name / compiled.name
    entry.mkdir(parents=True)
    return entry


def test_one_rank_compiles_and_the_other_finds_what_it_made(
    tmp_path: Path, start_rank: Any, hold: Any, compiled: Path
) -> None:
    entry = entry_in(tmp_path / "shared", compiled)
    compiling = hold(entry / "model.lock")
    rank = start_rank(tmp_path / "shared")
    line = f"INFO ||NCC_WRAPPER||: Another process must be compiling {entry}/model.neff, been waiting for: "
    wait_until(lambda: rank.has_said(line))
    for name in ("model.hlo.pb", "compile_flags.json", "model.neff", "model.done"):
        shutil.copy(compiled / name, entry)
    compiling.communicate("\n")
    assert rank.end() == (0, 18.0)
    assert rank.has_said(f"Using a cached neff at {entry}/model.neff. Exiting with a successfully compiled graph.")
    assert not rank.has_said("Compiler status PASS")


def test_ranks_that_start_together_compile_each_graph_once(tmp_path: Path, start_rank: Any) -> None:
    ranks = [start_rank(tmp_path / "shared") for _ in range(3)]
    ended = [rank.end() for rank in ranks]
    assert sorted(ended) == [(0, 18.0), (0, 18.0), (1, 18.0)]


def test_a_rank_that_is_killed_while_it_compiles_holds_nobody_up(
    tmp_path: Path, start_rank: Any, hold: Any, compiled: Path
) -> None:
    entry = entry_in(tmp_path / "shared", compiled)
    compiling = hold(entry / "model.lock")
    rank = start_rank(tmp_path / "shared")
    wait_until(lambda: rank.has_said("Another process must be compiling"))
    compiling.send_signal(signal.SIGKILL)
    assert rank.end() == (1, 18.0)
    assert rank.has_said("Compiler status PASS")
    assert (entry / "model.done").exists()


def test_a_lock_file_that_was_left_behind_means_nothing(tmp_path: Path, start_rank: Any, compiled: Path) -> None:
    entry = entry_in(tmp_path / "shared", compiled)
    (entry / "model.lock").write_text("4711")
    rank = start_rank(tmp_path / "shared")
    assert rank.end() == (1, 18.0)
    assert not rank.has_said("Another process must be compiling")


def test_a_rank_that_is_stopped_while_it_compiles_holds_nobody_up_for_ever(
    tmp_path: Path, hold: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = CompileCache({"NEURON_COMPILE_CACHE_URL": str(tmp_path), "NEURON_RT_LOG_LEVEL": "INFO"})
    cache.longest_wait_seconds = 0.5
    entry = tmp_path / cache.version_directory / "MODULE_1+d41d8cd9"
    entry.mkdir(parents=True)
    compiling = hold(entry / "model.lock")
    compiling.send_signal(signal.SIGSTOP)
    with cache.locked("1", CompilerFlags()):
        assert compiling.poll() is None
    assert "Another process must be compiling" in capsys.readouterr().err


def is_free(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_a_child_that_is_forked_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "model.lock"
    readable, writable = os.pipe()
    with Directory.open(tmp_path) as directory, entry_lock.held(directory, path.name, print) as is_held:
        assert is_held
        child = os.fork()
        if child == 0:
            os.read(readable, 1)
            os._exit(0)
    try:
        with path.open() as file:
            wait_until(lambda: is_free(file))  # the child has yet to close its copy
        os.kill(child, 0)
    finally:
        os.write(writable, b"x")
        assert os.waitpid(child, 0)[1] == 0
        os.close(readable)
        os.close(writable)


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "model.lock").symlink_to(tmp_path / "elsewhere")
    with Directory.open(tmp_path) as directory, entry_lock.held(directory, "model.lock", print) as is_held:
        assert not is_held
    assert not (tmp_path / "elsewhere").exists()
