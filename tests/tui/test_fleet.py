"""The page of many hosts in a real terminal: into a host and back."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

from neurontools.testing import SimulatedFleet
from tests.harness.dashboard_terminal import Terminal
from tests.harness.running_daemon import Attachment, StartDaemon

ENTER, DOWN = "\r", "\x1b[B"


def test_into_a_host_and_back(tmp_path: Path) -> None:
    with SimulatedFleet(3, mix="trn1.2xlarge=2,inf2.xlarge", interval_seconds=0.2, processes=3) as fleet:
        terminal = Terminal("--hostfile", fleet.hostfile, home=tmp_path)
        try:
            terminal.shows("3 hosts, 3 live")
            terminal.shows("Hosts, worst first")
            terminal.press("?")
            terminal.shows("PgUp PgDn Home End: move; Enter: host, open group")
            terminal.press(ENTER)
            terminal.shows("NeuronCore v2 Utilization")
            terminal.press("q")
            terminal.shows("3 hosts, 3 live")
            fleet.stop("host-002")
            terminal.shows("2 live, 1 lost")
            terminal.until(lambda text: " host-002 " in text and "lost: " in text)
            terminal.press("/host-002")
            terminal.shows("filter: host-002")
            terminal.press(ENTER)
            terminal.until(lambda text: " host-000 " not in text.split("WORST")[-1])
            terminal.press(ENTER)
            terminal.shows("host-002: no monitor daemon")
            terminal.press("q")
            assert terminal.ends() == 0
        finally:
            terminal.close()


def test_what_is_typed_before_the_next_page_is_there_is_for_that(tmp_path: Path) -> None:
    with SimulatedFleet(3, mix="trn1.2xlarge", interval_seconds=0.2) as fleet:
        terminal = Terminal("--hostfile", fleet.hostfile, home=tmp_path)
        try:
            terminal.shows("3 hosts, 3 live")
            terminal.press(ENTER + "w" + "/no such process" + ENTER)
            terminal.shows("no process passes the filter")
            terminal.press("q" + DOWN + "/host" + ENTER)
            terminal.shows("with: host")
            terminal.press(ENTER + "q" + ENTER + "m" + "q" + "/-00")
            terminal.shows("filter: host-00")
        finally:
            terminal.close()


def test_hosts_by_user(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.2")
    with SimulatedFleet(1, mix="inf2.xlarge", interval_seconds=0.2) as idle, closing(Attachment(daemon)) as job:
        job.attach(core_count=1)
        (process,) = daemon.snapshot().processes
        terminal = Terminal("--hosts", f"unix:{daemon.socket},{idle.places[0].text}", home=tmp_path)
        try:
            terminal.shows("2 hosts, 2 live")
            for way in ("alike", "type", "job", "user"):
                terminal.press("b")
                terminal.shows(f"Hosts by {way}")
            terminal.shows(f"+ {process.user or process.uid}, 1 host")
            terminal.shows("+ no user, 1 host")
            terminal.press("q")
            assert terminal.ends() == 0
        finally:
            terminal.close()


def test_a_signal_gives_the_terminal_back(tmp_path: Path) -> None:
    terminal = Terminal("--hosts", "unix:/nowhere/n.sock", home=tmp_path)
    try:
        terminal.shows("lost: no daemon")
        import os

        os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.ends() == -signal.SIGTERM
        assert b"\x1b[?1049l" in terminal.raw
    finally:
        terminal.close()
