"""The environment and the tree of processes that really run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from neurontools.driver.processes import MOST_TREE_PROCESSES, process_tree, read_process_context, read_process_forest
from neurontools.util.process_text import HIDDEN
from tests.harness.waiting import run_to_end, wait_until


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A shell with a child that sleeps."""
    child = subprocess.Popen(
        ["sh", "-c", "sleep 1000 & wait"],
        env={"PLAIN": "seen\x1b[31m", "MY_TOKEN": "unseen", "PATH": os.environ["PATH"]},
        start_new_session=True,
    )
    wait_until(lambda: [each.cmdline() for each in psutil.Process(child.pid).children()] == [["sleep", "1000"]])
    yield child
    os.killpg(child.pid, 9)
    child.wait()


def test_environment_and_tree(process: subprocess.Popen[bytes]) -> None:
    found = read_process_context(process.pid, psutil.Process(process.pid).create_time())
    assert found.problem == ""
    assert found.environment is not None
    shown = dict(found.environment)
    assert (shown["PLAIN"], shown["MY_TOKEN"]) == ("seen\x1b[31m", HIDDEN)
    own = next(position for position, each in enumerate(found.tree) if each.pid == process.pid)
    assert found.tree[own - 1].pid == os.getpid()
    assert [each.command for each in found.tree[own:]] == ["sh -c sleep 1000 & wait", "sleep 1000"]
    assert [each.depth for each in found.tree] == list(range(len(found.tree)))


def test_trees_of_several_processes_have_each_of_them_once(process: subprocess.Popen[bytes]) -> None:
    (child,) = psutil.Process(process.pid).children()
    started = {child.pid: child.create_time(), os.getpid(): None, process.pid: None}
    forest = read_process_forest(started)
    found = {entry.pid: entry for entry in forest}
    assert len(found) == len(forest)
    own = found[os.getpid()].depth
    assert [(found[pid].depth, found[pid].command) for pid in (process.pid, child.pid)] == [
        (own + 1, "sh -c sleep 1000 & wait"),
        (own + 2, "sleep 1000"),
    ]
    assert forest.index(found[child.pid]) == forest.index(found[process.pid]) + 1
    assert read_process_forest({process.pid: time.time() - 10_000}) == (), "another process had this PID"


def test_another_process_with_the_pid_and_one_that_has_ended_are_told(process: subprocess.Popen[bytes]) -> None:
    found = read_process_context(process.pid, time.time() - 10_000)
    assert "another process" in found.problem
    assert (found.environment, found.tree) == (None, ())
    child = subprocess.Popen(["true"])
    child.wait()
    assert "no such process" in read_process_context(child.pid, None).problem


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_what_the_kernel_does_not_show_this_user_is_not_shown(process: subprocess.Popen[bytes]) -> None:
    code = (
        "import os\n"
        "from neurontools.driver.processes import read_process_context\n"
        "os.setuid(65534)\n"
        f"found = read_process_context({process.pid}, None)\n"
        "print(found.environment, found.tree[-1].command)"
    )
    done = run_to_end([sys.executable, "-c", code])
    assert (done.stdout, done.stderr) == ("None sleep 1000\n", "")


def test_a_circle_of_parents_ends(tmp_path: Path) -> None:
    for pid, parent in ((10, 11), (11, 10)):
        (tmp_path / f"{pid}/task/{pid}").mkdir(parents=True)
        (tmp_path / f"{pid}/stat").write_text(f"{pid} (a) S {parent} 0 0")
        (tmp_path / f"{pid}/task/{pid}/children").write_text(f"{parent} ")
    assert len(process_tree(10, str(tmp_path))) <= MOST_TREE_PROCESSES
