"""A real monitor daemon for the tests of the reporter, and processes that report to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from neurontools.runtime import Reporter
from neurontools.runtime.reporting import reporter
from tests.harness.restarted_daemon import RestartedDaemon
from tests.harness.waiting import HANG_SECONDS


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
def reporters(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Reporter]]:
    """Reporters to close at the end; they wait for a daemon on a busy machine."""
    monkeypatch.setattr(reporter, "FIRST_ATTACH_TIMEOUT_SECONDS", HANG_SECONDS)
    monkeypatch.setattr(reporter, "CALL_TIMEOUT_SECONDS", HANG_SECONDS)
    opened: list[Reporter] = []
    yield opened
    for each in opened:
        each.close()
