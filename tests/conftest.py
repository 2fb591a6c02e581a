"""Daemons for tests, and how the tests are run."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.examples import load_profile
from tests.harness.ports import free_port
from tests.harness.running_daemon import Attachment, RunningDaemon, StartDaemon, shared, starter

SET_BY_OTHERS = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"}
"""Variables that pytest and torch.compile set in the process of the tests, and leave."""


def pytest_configure() -> None:
    """What holds for all tests and the processes they start.

    They see nothing of what this shell asks of the Neuron runtime. They end on the signals that a background job of a
    shell, and nohup, make them ignore. Others may read the files that they make, whatever the umask of the user is.
    They write UTF-8, also where the user has another character set. Torch has one thread: what it multiplies here is
    too small for more.
    """
    load_profile()
    os.umask(0o022)
    character_set = next((os.environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name)), "")
    if "UTF" not in character_set.upper():
        for name in ("LC_ALL", "LC_CTYPE"):
            os.environ.pop(name, None)
        os.environ["LANG"] = "C.UTF-8"
    for name in [name for name in os.environ if name.startswith("NEURON_") or name == "NEURONTOOLS_SOCKET"]:
        del os.environ[name]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two workers more than CPUs: many tests wait for the processes that they start."""
    return len(os.sched_getaffinity(0)) + 2


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks long tests as slow and starts them first."""
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker("slow")
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    """What modules made is there to stay: no run of the garbage collector looks at it again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def environment_as_found() -> Iterator[None]:
    """No test leaves the environment changed: the processes of the next one would inherit it."""
    before = dict(os.environ)
    yield
    after = dict(os.environ)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    changed -= SET_BY_OTHERS
    if changed:
        os.environ.clear()
        os.environ.update(before)
    assert not changed, f"the test left {sorted(changed)} changed"


@pytest.fixture
def port() -> int:
    """A TCP port that nobody listens on."""
    return free_port()


@pytest.fixture
def socket_directory() -> Iterator[Path]:
    """A private directory whose path is short enough for sockets."""
    directory = tempfile.mkdtemp(prefix="nd-")
    yield Path(directory)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def start_daemon(socket_directory: Path) -> Iterator[StartDaemon]:
    """Starts daemons that end with the test; without flags a trn1.32xlarge that ticks every 50 ms."""
    yield from starter(socket_directory)


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> RunningDaemon:
    """A daemon that simulates a trn1.32xlarge and ticks every 50 ms."""
    return start_daemon()


@pytest.fixture(scope="module")
def shared_daemon() -> Iterator[RunningDaemon]:
    """One daemon for all tests of a module that leave nothing behind; it ticks every 20 ms."""
    with shared("--simulate", "trn1.32xlarge", "--interval", "0.02") as daemon:
        yield daemon


@pytest.fixture
def attached(daemon: RunningDaemon) -> Iterator[Attachment]:
    """This process, connected to the attach socket of `daemon`."""
    attachment = Attachment(daemon)
    yield attachment
    attachment.close()
