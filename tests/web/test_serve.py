"""neuron-top --serve: many hosts, and one, in a browser; real daemons, a real process."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from neurontools.cli.top import command
from neurontools.util.errors import EXIT_INTERRUPTED
from tests.harness.command import call_main
from tests.harness.running_daemon import RunningDaemon, shared
from tests.harness.secret_file import TOKEN, write_secret
from tests.harness.waiting import wait_until
from tests.harness.web_site import Serve


@pytest.fixture(scope="module")
def shared_daemon() -> Iterator[RunningDaemon]:
    """One daemon for all. It ticks seldom: what it remembers is asked for again and again."""
    with shared("--simulate", "trn1.2xlarge", "--interval", "0.1") as daemon:
        yield daemon


@pytest.mark.slow
def test_many_hosts_and_each_of_them(serve: Serve, hostfile: tuple[Path, list[RunningDaemon]]) -> None:
    file, daemons = hostfile
    site = serve("--hostfile", str(file))
    assert site.ask("/", {"Accept": "text/html"})[1]["Location"] == "/top/"
    assert site.ask("/top/")[1]["Location"] == "/top/hosts"
    text = wait_until(lambda: ">2 live<" in (found := site.ask("/top/hosts")[2]) and ">1 lost<" in found and found)
    assert isinstance(text, str)
    assert 'aria-label="Hosts"' in text
    assert 'href="/top/host/node-1/overview"' in text
    by_name = site.ask("/top/hosts?sort=by+name")[2]
    hosts = by_name.partition('aria-label="Hosts"')[2]
    links = [hosts.index(f"/top/host/{name}/overview") for name in ("gone", "node-1", "node-2")]
    assert links == sorted(links)
    filtered = site.ask("/top/hosts?filter=node-2")[2].partition('aria-label="Hosts"')[2]
    assert "node-2/overview" in filtered
    assert "node-1/overview" not in filtered
    status, _, host = site.ask("/top/host/node-1/overview")
    assert status == 200
    assert 'href="/top/hosts"' in host
    wait_until(lambda: "LIVE" in site.ask("/top/host/node-1/overview")[2])
    for path in ("/top/host/other/overview", "/top/host/node-1/nonsense", "/top/host/node-1", "/elsewhere"):
        assert site.ask(path)[0] == 404, path
    assert site.ask("/top/hosts", {"Host": "evil.example"})[0] == 421
    with site.stream("/top/host/node-2/overview") as event:
        first = event()
        assert event()["id"] != first["id"]
        daemons[1].stop()
        wait_until(lambda: "LOST" in event()["data"])
    wait_until(lambda: ">2 lost<" in site.ask("/top/hosts")[2])


def test_one_host_of_a_daemon_that_runs(serve: Serve, shared_daemon: RunningDaemon) -> None:
    site = serve("--socket", shared_daemon.socket)
    assert site.ask("/top/")[1]["Location"] == "/top/overview"
    text = wait_until(lambda: "LIVE" in (found := site.ask("/top/overview")[2]) and found)
    assert isinstance(text, str)
    assert "trn1.2xlarge" in text
    assert "are hidden here" not in text
    with site.stream() as event:
        assert "changes" in json.loads([event() for _ in range(2)][1]["data"])
    taken = call_main(command.main, "--socket", shared_daemon.socket, "--serve", f"127.0.0.1:{site.port}")
    assert taken.returncode == 1
    assert "Address already in use; give another address" in taken.stderr


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGINT, signal.SIGHUP))]
)
def test_a_signal_ends_it(serve: Serve, shared_daemon: RunningDaemon, number: signal.Signals) -> None:
    site = serve("--socket", shared_daemon.socket)
    with site.stream() as event:
        event()
        assert site.end(number) == (EXIT_INTERRUPTED if number == signal.SIGINT else -number)


def test_a_token_is_asked_for_where_a_file_says_so(serve: Serve, shared_daemon: RunningDaemon, tmp_path: Path) -> None:
    write_secret(tmp_path / "token")
    file = tmp_path / "serve.toml"
    file.write_text(f'bearer_token_file = "{tmp_path}/token"\nshow_users = true\nhosts = ["fleet.example.org"]\n')
    site = serve("--socket", shared_daemon.socket, "--serve-config", str(file))
    assert site.ask("/top/overview")[0] == 401
    assert site.ask("/top/overview", {"Authorization": f"Bearer {TOKEN}", "Host": "fleet.example.org"})[0] == 200
    assert site.ask("/top/usage", {"Authorization": f"Bearer {TOKEN}"})[0] == 200, "users are shown"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("nonsense = 1", "--serve-config FILE: 'nonsense' is not known; there are tls_"),
        ("show_users = 1", "--serve-config FILE: show_users is neither true nor false"),
        ("hosts = [1]", "--serve-config FILE: hosts is no list of texts in quotes"),
        ("tls_key = ''", "--serve-config FILE: tls_key is no text in quotes"),
        ("tls_key = 'x'", "--serve-config: tls_key and tls_client_ca need tls_certificate"),
        ("bearer_token_file = '/nobody'", "--serve-config: bearer_token_file: /nobody: No"),
    ],
)
def test_what_can_not_be_meant_is_told(shared_daemon: RunningDaemon, tmp_path: Path, content: str, error: str) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(content)
    arguments = ("--socket", shared_daemon.socket, "--serve", "127.0.0.1:0", "--serve-config", str(file))
    done = call_main(command.main, *arguments)
    assert (done.returncode, done.stdout) in [(2, ""), (1, "")]
    assert done.stderr.replace(str(file), "FILE").startswith(f"neuron-top: {error}")
    assert len(done.stderr.splitlines()) == 1
