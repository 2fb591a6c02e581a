"""The pages for browsers, by a real daemon: who may see them, what is told to browsers, and what is refused."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.attached_child import TAG
from tests.harness.attached_process import AttachedProcess
from tests.harness.certificates import Authority, needs_openssl
from tests.harness.ports import free_port
from tests.harness.running_daemon import RunningDaemon, StartDaemon, shared
from tests.harness.secret_file import TOKEN, write_secret
from tests.harness.waiting import HANG_SECONDS, wait_until
from tests.harness.web_site import PAGE, STREAM, Site

NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Pages of one daemon for all tests that leave it as it is."""
    port = free_port()
    with shared("--simulate", "trn1.2xlarge", "--metrics-listen", f"127.0.0.1:{port}", "--web", "--interval", "0.05"):
        yield Site(port)


Configured = Callable[..., RunningDaemon]


@pytest.fixture
def configured(start_daemon: StartDaemon, tmp_path: Path, port: int) -> Configured:
    """Starts a daemon with pages, with further keys in its configuration."""

    def start(metrics: dict[str, Any] | None = None, **web: bool) -> RunningDaemon:
        tables = {"metrics": {"listen": f"127.0.0.1:{port}", **(metrics or {})}, "web": {"enabled": True, **web}}
        lines = []
        for table, keys in tables.items():
            lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
        file = tmp_path / "neurond.toml"
        file.write_text("\n".join(lines), "utf-8")
        return start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05", "--config", str(file))

    return start


def attached(daemon: RunningDaemon, tag: str, *arguments: str) -> AttachedProcess:
    """A process that holds a core, with this tag and these arguments."""
    return AttachedProcess(daemon, "1", str(os.getuid()), *arguments, environment={TAG: tag})


FOR_A_PHONE = '<meta name="viewport" content="width=device-width, initial-scale=1"'


def page_with(word: str, site: Site, path: str) -> str:
    """A page as soon as this word is in it."""
    return wait_until(lambda: next((text for text in [site.ask(path)[2]] if word in text), None))


def test_a_page_is_whole_and_small_and_tells_the_browser_what_it_may(site: Site) -> None:
    status, headers, text = site.ask(PAGE)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "Free NeuronCores" in text
    assert "trn1.2xlarge" in text
    assert FOR_A_PHONE in text
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert not [name for name in headers if name.startswith("Access-Control")]
    for word in ("style=", "<style", "http://", "https://"):
        assert word not in text
    for name, kind in (("script.js", "text/javascript"), ("style.css", "text/css")):
        assert f"/top/{name}" in text
        status, headers, content = site.ask(f"/top/{name}")
        assert (status, headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert len(content.encode()) < 20_000
        for word in ("innerHTML", "eval(", "insertAdjacent", "document.write", "http:", "https:"):
            assert word not in content
    assert "@media(prefers-color-scheme:dark)" in content


def test_every_page_is_there_and_others_are_not(site: Site) -> None:
    for page in ("overview", "processes", "topology", "history", "heatmap", "health", "usage", "host"):
        status, _, text = site.ask(f"/top/{page}")
        assert (status, text.count('aria-current="page"') >= 1) == (200, True), page
    for path, status in (("/top/", 303), ("/top/nonsense", 404), ("/top/../metrics", 404), ("/metrics", 200)):
        assert site.ask(path)[0] == status
    assert "are hidden here" not in site.ask("/top/processes")[2], "a loopback address is for this host"
    assert site.ask("/top/overview?window=7")[::2] == (400, "window: give one of 60, 300, 900, 3600 seconds\n")
    status, headers, text = site.ask(PAGE, method="HEAD")
    assert (status, text) == (200, "")
    assert int(headers["Content-Length"]) > 1000
    assert site.ask(PAGE, STREAM, method="HEAD")[::2] == (200, ""), "which opens no stream"
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert site.ask(PAGE, method=method)[0] == 405
    assert site.ask("/")[::2] == (200, "neurond: metrics are at /metrics, pages for browsers at /top/\n")
    status, headers, _ = site.ask("/", {"Accept": "text/html,*/*"})
    assert (status, headers["Location"]) == (303, "/top/")


@pytest.mark.slow
def test_a_stream_goes_on_from_what_was_seen(site: Site) -> None:
    _, _, text = site.ask(PAGE)
    seen = text.partition('data-version="')[2].partition('"')[0]
    with site.stream(f"{PAGE}?since={seen}") as event:
        first = event()
        assert "changes" in json.loads(first["data"]), "the page has the others"
        second = event()
        assert second["id"] != first["id"]
        with site.stream() as other:  # while the first reads nothing
            assert len({other()["id"] for _ in range(4)}) == 4
    with site.stream(Last_Event_ID=second["id"]) as event:
        assert "changes" in json.loads(event()["data"])
    with site.stream(Last_Event_ID="of-another-daemon.7") as event:
        assert "whole" in json.loads(event()["data"])


def test_pages_of_others_get_nothing(site: Site) -> None:
    for host in ("evil.example", "evil.example:80", "", "127.0.0.1.evil.example"):
        for path in (PAGE, "/top/script.js", "/top/session", "/metrics", "/nothing"):
            assert site.ask(path, {"Host": host})[0] == 421
        assert site.ask(PAGE, {"Host": host, **STREAM})[0] == 421
    own = f"http://127.0.0.1:{site.port}"
    for origin in ("http://evil.example", "null", f"{own}0", "http://127.0.0.1", own.replace("http", "ftp")):
        assert site.ask(PAGE, {"Origin": origin})[0] == site.ask("/metrics", {"Origin": origin})[0] == 403
    assert site.ask(PAGE, {"Origin": own})[0] == 200
    for site_of, mode, destination, status in (
        ("cross-site", "no-cors", "script", 403),
        ("cross-site", "navigate", "iframe", 403),
        ("same-site", "cors", "empty", 403),
        ("cross-site", "navigate", "document", 200),  # somebody follows a link
        ("same-origin", "cors", "empty", 200),
        ("none", "navigate", "document", 200),
    ):
        headers = {"Sec-Fetch-Site": site_of, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": destination}
        assert site.ask(PAGE, headers)[0] == site.ask("/metrics", headers)[0] == status, headers


def test_garbage_is_answered_and_harms_nobody(site: Site) -> None:
    for path in ("/top/overview?window=?", "/top/%00", f"/top/{'x' * 9000}"):
        assert site.ask(path)[0] in (400, 404)
    assert site.ask("/top/session", method="POST", body="x" * 100_000)[0] in (401, 413)
    assert site.ask("/top/session", method="POST", body="token=%ff&token=\x00")[0] == 401
    with socket.create_connection(("127.0.0.1", site.port), HANG_SECONDS) as raw:
        raw.sendall(b"POST /top/session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nab")
        raw.shutdown(socket.SHUT_WR)
        raw.settimeout(HANG_SECONDS)
        raw.recv(4096)
    assert site.ask(PAGE)[0] == 200


def test_the_past_is_there_for_who_comes_later(site: Site) -> None:
    assert wait_until(lambda: " since " in (text := site.ask("/top/health")[2]) and "loading" not in text)


def test_thirty_two_viewers_are_let_in_and_no_more(configured: Configured, port: int) -> None:
    configured()
    site = Site(port)
    with contextlib.ExitStack() as stack:
        for event in [stack.enter_context(site.stream()) for _ in range(8)]:
            event()
        status, headers, text = site.ask(PAGE, STREAM)
        assert (status, text) == (503, "the limit of 8 viewers at one address is reached; close another page\n")
        others = [Site(port, client=f"127.0.1.{number}") for number in range(3) for _ in range(8)]
        for event in [stack.enter_context(other.stream()) for other in others]:
            event()
        status, headers, text = Site(port, client="127.0.2.1").ask(PAGE, STREAM)
        assert (status, headers["Retry-After"], text) == (
            503,
            "3",
            "the limit of 32 viewers is reached; try again later\n",
        )
        assert site.ask(PAGE)[0] == 200, "the page as it stands"
        assert site.ask("/metrics")[0] == 200

    def is_let_in() -> bool:
        with contextlib.closing(site.connect()) as client:
            client.request("GET", PAGE, headers=STREAM)
            return client.getresponse().status == 200

    wait_until(is_let_in)


def test_commands_are_hidden_where_a_proxy_may_be_or_a_setting_says_so(configured: Configured, port: int) -> None:
    daemon = configured({"hosts": ["proxy.example.org"]}, show_users=True)
    site = Site(port)
    with attached(daemon, "mine", "--secret-argument") as holder:
        pid = holder.pid
        text = page_with("mine", site, "/top/processes")
        assert "Commands are hidden here" in text
        details = site.ask(f"/top/processes?details={pid}")[2]
        metrics = page_with(f'pid="{pid}"', site, "/metrics")
        assert 'user="root"' in metrics or os.getuid() != 0
        with site.stream(f"/top/processes?details={pid}") as event:
            streamed = event()["data"]
    ended = page_with("signal 9", site, "/top/usage")
    for each in (text, details, streamed, ended, metrics):
        assert str(pid) in each
        assert "secret-argument" not in each
        assert "harness/attached_child" not in each, "the name of the job has only the file name of the script"


def test_commands_and_users_are_shown_to_this_host_and_are_text(configured: Configured, port: int) -> None:
    daemon = configured()
    site = Site(port)
    with attached(daemon, NASTY, NASTY) as holder:
        text = page_with("onerror", site, f"/top/processes?details={holder.pid}")
        assert "attached_child" in text
        assert "<img" not in text
        assert "are hidden" not in text
        assert site.ask("/top/usage")[0] == 200
        assert "attached_child" in page_with(f'pid="{holder.pid}"', site, "/metrics")


def test_a_token_becomes_a_session_and_stays_out_of_addresses(
    configured: Configured, tmp_path: Path, port: int
) -> None:
    token = write_secret(tmp_path / "token")
    configured({"bearer_token_file": str(token)})
    site = Site(port)
    status, headers, text = site.ask(f"{PAGE}")
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
    assert "NeuronCore" not in text
    assert 'method="post"' in text
    assert FOR_A_PHONE in text
    assert 'type="password"' in text
    assert site.ask(PAGE, STREAM)[0] == 401
    assert site.ask(f"{PAGE}?token={TOKEN}")[0] == 401, "an address is no place for a token"
    assert site.ask(PAGE, {"Authorization": f"Bearer {TOKEN}"})[0] == 200, "programs send it"
    form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"http://127.0.0.1:{port}"}
    assert site.ask("/top/session", form, method="POST", body="token=wrong")[0] == 401
    assert site.ask("/top/session", {**form, "Origin": "http://evil.example"}, method="POST", body="x")[0] == 403
    status, headers, _ = site.ask("/top/session?to=/top/host", form, method="POST", body=f"token={TOKEN}")
    assert (status, headers["Location"]) == (303, "/top/host")
    cookie, *attributes = headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes)
    assert TOKEN not in headers["Set-Cookie"]
    assert site.ask(PAGE, {"Cookie": f"other=1; {cookie}"})[0] == 200
    with site.stream(Cookie=cookie) as event:
        assert "whole" in event()["data"]
    name, _, value = cookie.partition("=")
    until, _, signature = value.partition(".")
    later, wrong = f"{int(until) + 1}.{signature}", f"{until}.{'0' * 64}"
    for forged in (later, wrong, f"1.{signature}", until, "", f"².{signature}"):
        assert site.ask(PAGE, {"Cookie": f"{name}={forged}".encode().decode("latin-1")})[0] == 401
    for outside in ("https://evil.example/", "//evil.example/", "/top/%0d%0aX-Injected:%201", "/metrics"):
        status, headers, _ = site.ask(f"/top/session?to={outside}", form, method="POST", body=f"token={TOKEN}")
        assert (status, headers["Location"], headers["X-Injected"]) == (303, "/top/", None)
    write_secret(token, f"another {TOKEN}")
    wait_until(lambda: site.ask(PAGE, {"Cookie": cookie})[0] == 401)


@needs_openssl
def test_over_tls_the_cookie_is_for_tls_alone(configured: Configured, tmp_path: Path, port: int) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    token = write_secret(tmp_path / "token")
    configured({"tls_certificate": str(certificate), "tls_key": str(key), "bearer_token_file": str(token)})
    site = Site(port, ssl.create_default_context(cafile=str(authority.file)))
    _, headers, _ = site.ask("/top/session", method="POST", body=f"token={TOKEN}")
    cookie, *attributes = headers["Set-Cookie"].split("; ")
    assert cookie.startswith("__Host-")
    assert {"Secure", "HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes)
    assert site.ask(PAGE, {"Cookie": cookie})[0] == 200
    with site.stream(Cookie=cookie) as event:
        event()


@needs_openssl
def test_certificates_see_what_their_names_may(start_daemon: StartDaemon, tmp_path: Path, port: int) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    file = tmp_path / "neurond.toml"
    file.write_text(
        f'[metrics]\nlisten = "127.0.0.1:{port}"\n[web]\nenabled = true\nshow_commands = true\nshow_users = true\n'
        f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\nclient_ca = "{authority.file}"\n'
        'summary = ["viewer.example.org"]\nfull = ["admin.example.org"]\n',
        "utf-8",
    )
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05", "--config", str(file))

    def shown_to(*names: str) -> Site:
        context = ssl.create_default_context(cafile=str(authority.file))
        context.load_cert_chain(*authority.sign("reader", *(f"DNS:{name}.example.org" for name in names)))
        return Site(port, context)

    with attached(daemon, "mine", "--secret-argument") as holder:
        wait_until(lambda: daemon.find(holder.pid))
        details = f"/top/processes?details={holder.pid}"
        wait_until(lambda: "attached_child" in shown_to("admin").ask(details)[2])
        viewer = shown_to("viewer")
        text = viewer.ask(details)[2]
        assert "mine" in text
        assert "harness/attached_child" not in text
        assert viewer.ask("/top/usage")[0] == 404
        assert shown_to("admin").ask("/top/usage")[0] == 200
        of_summary = "this page is for the role full, and your certificate has summary\n"
        assert viewer.ask("/metrics")[::2] == (403, of_summary), "the metrics have commands and users"
        for stranger in (shown_to("other"), shown_to()):
            assert stranger.ask("/metrics")[::2] == (403, "no name in your certificate is allowed here\n")
        assert shown_to("other", "admin").ask("/metrics")[0] == 200
        assert shown_to("other").ask(PAGE)[0] == 403
        assert shown_to().ask("/")[0] == 200, "a probe needs no name"
