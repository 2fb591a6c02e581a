"""neuron-profile serve: the viewers that others make, in a browser, on the profile of a training that really ran."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neurontools.profile import Profile, read_directory
from tests.harness.chromium import PROGRAM, Chromium, chromium
from tests.harness.neuron_run_script import neuron_run
from tests.harness.profiled_scripts import TWELVE_STEPS
from tests.harness.viewers import rows, viewer
from tests.harness.waiting import wait_until

_HAS_TEXT = """(async () => {
  for (;;) {
    const frames = [...document.querySelectorAll('iframe')].map(frame => frame.contentDocument);
    const text = [document, ...frames].map(each => each && each.body ? each.body.innerText : '').join(' ');
    if (text.includes(%s)) return true;
    await new Promise(done => setTimeout(done, 50));
  }
})()"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("served")
    (directory / "script.py").write_text(TWELVE_STEPS)
    done = neuron_run(directory, "-q", "--simulate", "trn1.2xlarge", "--profile", "made", "script.py")
    assert done.returncode == 0, done.stderr
    return directory / "made"


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def served(program: Path, where: Path, port: int, directory: Path) -> Iterator[None]:
    """neuron-profile serve where this is the only viewer."""
    (directory / "bin").mkdir()
    (directory / "bin" / program.name).symlink_to(program)
    server = subprocess.Popen(
        [sys.executable, "-m", "neurontools.cli.profile.command", "serve", where, "--port", str(port)],
        env={**os.environ, "PATH": f"{directory / 'bin'}:/usr/bin:/bin"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: answers(port) or server.poll() is not None)
        assert server.poll() is None
        yield
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def fetched(browser: Chromium, route: str) -> Any:
    return browser.value(f"fetch({json.dumps(f'/data/plugin/profile/{route}')}).then(answer => answer.json())")


@pytest.mark.long
@pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")
@pytest.mark.parametrize(("name", "page"), [("tensorboard", "/#profile"), ("xprof", "/")])
def test_a_browser_gets_our_steps_operators_and_flops(
    name: str, page: str, made: Path, tmp_path: Path, port: int
) -> None:
    program = viewer(name)
    if program is None:
        pytest.skip("make viewers installs TensorBoard and xprof")
    (profile,) = read_directory(made)
    with served(program, made, port, tmp_path), chromium() as browser:
        browser.load(f"http://127.0.0.1:{port}{page}")
        (run,) = fetched(browser, "runs")
        assert (made / "plugins" / "profile" / run).is_dir()
        assert browser.value(_HAS_TEXT % json.dumps(run))
        _check_the_data(browser, run, profile)


def _check_the_data(browser: Chromium, run: str, profile: Profile) -> None:
    tools = fetched(browser, f"run_tools?run={run}")
    assert {"overview_page", "trace_viewer@", "op_profile", "hlo_stats", "memory_profile", "roofline_model"} <= {*tools}
    (host,) = (each["hostname"] for each in fetched(browser, f"hosts?run={run}&tag=hlo_stats"))

    def data(tool: str) -> Any:
        return fetched(browser, f"data?run={run}&tag={tool}&host={host}")

    assert len(rows(data("overview_page")[1])) == len(profile.steps)
    operators = rows(data("hlo_stats"))
    assert len(operators) == len(profile.operators)
    assert sum(row["occurrences"] for row in operators) == len(profile.operator_ns)
    executed = {total.graph: total.executions for total in profile.graph_totals}
    flops = sum(operator.flops * executed[operator.graph] for operator in profile.operators)
    assert int(data("op_profile")["byProgram"]["metrics"]["rawFlops"]) == flops
