"""neuron-mcp and the client of the official SDK: real processes over standard streams, HTTP and TLS; and attacks."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from neurontools.cli.mcp import tools
from tests.harness.certificates import Authority
from tests.harness.mcp_client import PACKAGES, SERVER, over_streams, server_environment, talk
from tests.harness.ports import free_port
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.secret_file import write_secret
from tests.harness.waiting import HANG_SECONDS, wait_until
from tests.harness.web_site import Site

if PACKAGES is None:
    pytest.skip("the SDK is not installed; make mcp does it", allow_module_level=True)

TOKEN = "t" * 40
REQUEST = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "list_problems", "arguments": {}},
}
TOPICS = ("jobs", "processes", "devices", "hosts")
HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


@contextmanager
def started(*options: str, **streams: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([*SERVER, *options], env=server_environment(), text=True, **streams)
    try:
        yield process
    finally:
        process.kill()
        with process:  # waits, and closes its pipes
            pass


@contextmanager
def served(daemon: RunningDaemon, *options: str) -> Iterator[int]:
    """A server over HTTP; yields its port. It ends by SIGTERM, and logs nothing but refused clients."""
    port = free_port()
    address = ("--serve", f"127.0.0.1:{port}")
    with started(*address, "--socket", daemon.socket, *options, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert f":{port}/mcp" in process.stderr.readline()
        yield port
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_SECONDS) == -signal.SIGTERM
        assert all("sent a wrong token" in line for line in process.stderr.read().splitlines())


def topic(document: str) -> str:
    """What a resource's document is about. The problems of a host are a list without a name."""
    parsed = json.loads(document)
    return "findings" if isinstance(parsed, list) else next(key for key in TOPICS if key in parsed)


def test_the_client_of_the_sdk_gets_tools_prompts_resources_and_answers(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--load", "steady", "--interval", "0.2")
    second = start_daemon("--simulate", "trn2.48xlarge", name="b.sock")
    calls = [
        (name, {"kind": "x"} if name == "explain_finding" else {}) for name in ("list_processes", "explain_finding")
    ]
    session = talk(over_streams("--socket", daemon.socket), *calls)
    assert [(tool["name"], tool["title"], tool["description"], tool["inputSchema"]) for tool in session.tools] == [
        (tool.name, tool.title, tool.text, tool.input_schema) for tool in tools.TOOLS
    ]
    hints = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
    assert all(hints.items() <= tool["annotations"].items() for tool in session.tools)
    slow, healthy = session.prompts
    assert (slow["name"], slow["title"]) == ("why-is-my-job-slow", "Why is my job slow?")
    assert (healthy["name"], healthy["title"]) == ("is-this-node-healthy", "Is this node healthy?")
    assert [(each["name"], each["required"]) for each in slow["arguments"]] == [("job", False), ("host", False)]
    assert [(each["name"], each["required"]) for each in healthy["arguments"]] == [("host", False)]
    assert session.messages["why-is-my-job-slow"].endswith('.\n\nGiven: job: "it\'s", host: "it\'s".')
    assert session.messages["is-this-node-healthy"].endswith('.\n\nGiven: host: "it\'s".')
    assert {uri: [*map(topic, parts)] for uri, parts in session.resources.items()} == {
        "neuron://why-is-my-job-slow": ["jobs", "findings", "processes"],
        "neuron://is-this-node-healthy": ["findings", "devices"],
    }
    (is_error, (document,)), (is_refused, (words,)) = session.answers
    assert not is_error
    assert json.loads(document)["processes"][0]["user"]
    assert is_refused
    assert words.startswith("no finding x on this host")

    fleet = f"unix:{daemon.socket},unix:{second.socket}"
    names = [Path(each.socket).stem for each in (daemon, second)]
    session = talk(
        over_streams("--hosts", fleet), ("list_hosts", {}), ("list_devices", {"host": names[1]}), ("list_devices", {})
    )
    hosts, devices, nameless = session.answers
    assert {uri: [*map(topic, parts)] for uri, parts in session.resources.items()} == {
        "neuron://why-is-my-job-slow": ["jobs", "hosts"],
        "neuron://is-this-node-healthy": ["hosts"],
    }
    assert {host["name"] for host in json.loads(hosts[1][0])["hosts"]} == set(names)
    assert json.loads(devices[1][0])["instance_type"] == "trn2.48xlarge"
    assert list(nameless) == [True, ["give host; list_hosts has the names"]]


@pytest.mark.slow
def test_http_refuses_whom_the_pages_refuse(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge")
    body = json.dumps(REQUEST)
    with served(daemon) as port:
        site = Site(port)

        def status(headers: dict[str, str], sent: str = body, method: str = "POST", path: str = "/mcp") -> int:
            return site.ask(path, {**HEADERS, **headers}, method=method, body=sent)[0]

        session = talk({"url": f"http://127.0.0.1:{port}/mcp"}, ("list_devices", {}))
        assert len(json.loads(session.answers[0][1][0])["devices"]) == 1
        assert status({}) == 200
        assert status({"Host": f"evil.example:{port}"}) == 421
        assert status({"Origin": "http://evil.example"}) == 403
        assert status({"Origin": "null"}) == 403
        assert status({"Sec-Fetch-Site": "cross-site"}) == 403
        assert status({"Content-Type": "text/plain"}) == 400
        assert status({}, method="GET") == 405
        assert status({}, method="DELETE") == 405
        assert status({}, path="/") == 404
        assert status({}, "[" * 60_000) == 400
        assert status({}, "x" * 65_537) == 413
        assert status({}, "{}") == 400
        assert status({}, json.dumps({**REQUEST, "params": {"name": "x" * 60_000}})) in (200, 400)
        assert status({}) == 200


@pytest.mark.slow
def test_other_hosts_need_tls_and_a_token(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--load", "steady")
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    lines = f'tls_certificate = "{certificate}"\ntls_key = "{key}"\nshow_users = true\nshow_commands = false\n'
    config = tmp_path / "serve.toml"
    config.write_text(lines)
    for options in ((), ("--serve-config", str(config))):
        refused = subprocess.run(
            [*SERVER, "--serve", f"0.0.0.0:{free_port()}", *options],
            env=server_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "other hosts can reach this address" in refused.stderr
    config.write_text(f'{lines}bearer_token_file = "{write_secret(tmp_path / "token", TOKEN)}"\n')
    with served(daemon, "--serve-config", str(config)) as port:
        site = Site(port, ssl.create_default_context(cafile=authority.file))
        assert site.ask("/mcp", HEADERS, method="POST", body=json.dumps(REQUEST))[0] == 401
        wrong = {**HEADERS, "Authorization": f"Bearer {TOKEN}x"}
        assert site.ask("/mcp", wrong, method="POST", body=json.dumps(REQUEST))[0] == 401
        server = {
            "url": f"https://127.0.0.1:{port}/mcp",
            "ca": str(authority.file),
            "headers": {"Authorization": f"Bearer {TOKEN}"},
        }
        process = json.loads(talk(server, ("list_processes", {})).answers[0][1][0])["processes"][0]
        assert (process["command"], bool(process["user"])) == ("", True)


def lines_of(*messages: object) -> str:
    hello = {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    }
    texts = [each if isinstance(each, str) else json.dumps(each) for each in (hello, *messages)]
    return "".join(f"{text}\n" for text in texts)


@pytest.mark.slow
def test_hostile_input_on_standard_streams_is_answered_and_does_not_grow_memory(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--load", "steady")
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with started("--socket", daemon.socket, **streams) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        output = process.stdout

        def next_answer(number: int) -> dict[str, Any]:
            while True:
                found: dict[str, Any] = json.loads(output.readline())
                if found.get("id") == number:
                    return found

        process.stdin.write(lines_of({"jsonrpc": "2.0", "method": "notifications/initialized"}, REQUEST))
        process.stdin.flush()
        assert "result" in next_answer(1)
        before_bytes = resident_bytes(process.pid)
        process.stdin.write("\x1b[2J\0\n{}\n[]\n" + "[" * 60_000 + "\n")
        for _ in range(512):  # a line of 32 MiB
            process.stdin.write("x" * 2**16)
        process.stdin.write("\n")
        process.stdin.writelines(json.dumps({**REQUEST, "id": number}) + "\n" for number in range(2, 300))
        process.stdin.write(json.dumps({**REQUEST, "id": 300, "params": {"name": "none\x1b"}}) + "\n")
        process.stdin.flush()
        answers = {number: next_answer(number) for number in (300,)}
        assert "no tool none" in answers[300]["error"]["message"]
        assert "\x1b" not in answers[300]["error"]["message"]
        process.stdin.write(json.dumps({**REQUEST, "id": 301, "params": {"name": "list_jobs"}}) + "\n")
        process.stdin.flush()
        assert "result" in next_answer(301)
        assert resident_bytes(process.pid) < before_bytes + 24 * 2**20
        process.stdin.close()
        assert process.wait(HANG_SECONDS) == 0


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_a_signal_ends_the_server_and_its_private_daemon() -> None:
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started("--simulate", "trn1.2xlarge", **streams) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(lines_of())
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "neurontools"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_SECONDS) == -signal.SIGTERM
        wait_until(lambda: not Path(f"/proc/{children[0]}").exists())
        assert process.stderr is not None
        assert process.stderr.read() == ""
