"""A real monitor daemon for the tests of the reporter, and processes that report to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from neurontools.runtime import Reporter
from tests.harness.restarted_daemon import RestartedDaemon


@pytest.fixture
def socket(tmp_path: Path) -> str:
    return str(tmp_path / "n.sock")


@pytest.fixture
def stopped_daemon(socket: str) -> Iterator[RestartedDaemon]:
    """A daemon that a test starts by itself."""
    daemon = RestartedDaemon(socket)
    yield daemon
    daemon.kill()


@pytest.fixture
def daemon(stopped_daemon: RestartedDaemon) -> RestartedDaemon:
    stopped_daemon.start()
    return stopped_daemon


@pytest.fixture
def reporters() -> Iterator[list[Reporter]]:
    """Reporters to close at the end."""
    opened: list[Reporter] = []
    yield opened
    for reporter in opened:
        reporter.close()
