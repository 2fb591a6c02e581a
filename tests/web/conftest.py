"""A browser, and neuron-top --serve of some hosts, for the tests of pages."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import chromium
from tests.harness.dashboard_terminal import TOP
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.web_site import Serve, Served


@pytest.fixture(scope="module")
def shared_browser() -> Iterator[chromium.Chromium]:
    with chromium.chromium() as found:
        yield found


@pytest.fixture
def browser(shared_browser: chromium.Chromium) -> chromium.Chromium:
    """A window of its own."""
    shared_browser.new_page()
    shared_browser.call("Emulation.setDeviceMetricsOverride", width=1000, height=900, deviceScaleFactor=1, mobile=False)
    return shared_browser


@pytest.fixture
def serve(port: int) -> Iterator[Serve]:
    """Starts `neuron-top --serve` with these options, and waits until it says that it serves."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> Served:
        top = [*TOP, "--serve", f"127.0.0.1:{port}", *arguments]
        process = subprocess.Popen(top, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        started.append(process)
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        assert line == f"neuron-top: serving at http://127.0.0.1:{port}/top/\n"
        return Served(port, process)

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stderr is not None
        said = process.stderr.read().decode()
        process.stderr.close()
        assert "Traceback" not in said, said


@pytest.fixture
def hostfile(start_daemon: StartDaemon, tmp_path: Path) -> tuple[Path, list[RunningDaemon]]:
    """Two hosts, and one that isn't there."""
    flags = ("--simulate", "trn1.2xlarge", "--load", "steady", "--interval", "0.05")
    daemons = [start_daemon(*flags, name=f"{number}.sock") for number in (1, 2)]
    file = tmp_path / "hosts"
    lines = [f"node-{number} unix:{daemon.socket}" for number, daemon in enumerate(daemons, 1)]
    file.write_text("\n".join([*lines, f"gone unix:{tmp_path}/nobody.sock", ""]))
    return file, daemons
