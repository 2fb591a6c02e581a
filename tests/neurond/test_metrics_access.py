"""Metrics over TLS, to those who may have them, by a real daemon."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from neurond.access.metrics import metrics_access
from neurond.settings import Settings
from neurond.startup.configuration import resolve

from neurontools.errors import EXIT_USAGE, UserError
from tests.harness.certificates import Authority, needs_openssl
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

Serve = Callable[..., str]


@pytest.fixture
def daemons() -> list[RunningDaemon]:
    """Those that `serve` has started."""
    return []


@pytest.fixture
def serve(start_daemon: StartDaemon, daemons: list[RunningDaemon], tmp_path: Path, port: int) -> Serve:
    def start(**keys: Path) -> str:
        file = tmp_path / "neurond.toml"
        lines = [f'{key} = "{value}"' for key, value in keys.items()]
        file.write_text("\n".join(["[metrics]", f'listen = "127.0.0.1:{port}"', *lines]), "utf-8")
        daemons.append(start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05", "--config", str(file)))
        return f"{'https' if 'tls_certificate' in keys else 'http'}://127.0.0.1:{port}"

    return start


def scrape(url: str, context: ssl.SSLContext | None = None, token: str | None = None) -> int:
    request = urllib.request.Request(url, headers={} if token is None else {"Authorization": token})
    try:
        with urllib.request.urlopen(request, timeout=HANG_SECONDS, context=context) as reply:
            assert b"neurontools_neuroncore_held" in reply.read() or not url.endswith("/metrics")
            status: int = reply.status
            return status
    except urllib.error.HTTPError as error:
        with error:
            assert error.code != 401 or error.headers["WWW-Authenticate"] == "Bearer"
            return error.code


@needs_openssl
def test_only_those_with_a_certificate_read_over_tls(serve: Serve, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    url = serve(tls_certificate=certificate, tls_key=key, tls_client_ca=authority.file) + "/metrics"
    stranger = ssl.create_default_context(cafile=str(authority.file))
    with pytest.raises(OSError, match=r"(?i)certificate|reset|eof|closed"):
        scrape(url, stranger)
    known = ssl.create_default_context(cafile=str(authority.file))
    known.load_cert_chain(*authority.sign("scraper"))
    assert scrape(url, known) == 200
    with pytest.raises(OSError):  # plain HTTP gets no answer at all
        scrape(url.replace("https", "http"))
    assert scrape(url, known) == 200, "which harms nobody"


@needs_openssl
def test_a_renewed_certificate_is_served_without_a_restart(
    serve: Serve, daemons: list[RunningDaemon], tmp_path: Path
) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    certificate, key = old.sign("server")
    url = serve(tls_certificate=certificate, tls_key=key) + "/metrics"
    trusting_old = ssl.create_default_context(cafile=str(old.file))
    assert scrape(url, trusting_old) == 200
    renewed, renewed_key = new.sign("renewed")
    renewed_key.replace(key)
    wait_until(lambda: "what was there before holds on" in daemons[0].log)
    assert scrape(url, trusting_old) == 200, "a key that doesn't fit the certificate yet changes nothing"
    renewed.replace(certificate)
    trusting_new = ssl.create_default_context(cafile=str(new.file))

    def look() -> bool:
        try:
            return scrape(url, trusting_new) == 200
        except urllib.error.URLError:
            return False

    assert wait_until(look)


def test_a_token(serve: Serve, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n", "utf-8")
    url = serve(bearer_token_file=token)
    for given, status in (
        ("Bearer s3cret", 200),
        ("bearer  s3cret", 200),
        (None, 401),
        ("Bearer s3cre", 401),
        ("Bearer ", 401),
        ("Basic s3cret", 401),
        ("Bearer gehe\xefm", 401),
    ):
        assert scrape(f"{url}/metrics", token=given) == status
    assert scrape(f"{url}/metrics?x", token="Bearer x") == 401
    assert scrape(f"{url}/") == 200, "a probe needs none"
    token.write_text("an0ther", "utf-8")
    wait_until(lambda: scrape(f"{url}/metrics", token="Bearer an0ther") == 200)
    assert scrape(f"{url}/metrics", token="Bearer s3cret") == 401
    token.write_text("", "utf-8")
    token.unlink()
    assert scrape(f"{url}/metrics", token="Bearer an0ther") == 200, "a fault doesn't open the door, nor shut it"
    assert scrape(f"{url}/metrics") == 401


@needs_openssl
@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"tls_key": "server.key"},
            "metrics.tls_key and tls_client_ca need a certificate; set metrics.tls_certificate",
        ),
        ({"tls_certificate": "absent"}, r"metrics.tls_certificate: \S+/absent: No such file or directory; give a read"),
        ({"tls_certificate": "server.crt"}, r"metrics.tls_certificate: \S+/server.crt: .*; give PEM files that fit"),
        ({"tls_certificate": "server.crt", "tls_key": "authority.key"}, "key values mismatch; give PEM files that fit"),
        (
            {"tls_certificate": "server.crt", "tls_key": "server.key", "tls_client_ca": "token"},
            r"metrics.tls_client_ca: \S+/token: .*; give PEM files that fit",
        ),
        ({"bearer_token_file": "empty"}, r"metrics.bearer_token_file: \S+/empty: no token; write one line of ASCII"),
        ({"bearer_token_file": "."}, "metrics.bearer_token_file: .*: Is a directory"),
    ],
)
def test_files_that_are_wrong_are_named(keys: dict[str, str], told: str, tmp_path: Path) -> None:
    Authority(tmp_path).sign("server")
    (tmp_path / "token").write_text("s3cret", "utf-8")
    (tmp_path / "empty").write_text(" \n", "utf-8")
    given = {key: str(tmp_path / name) for key, name in keys.items()}
    with pytest.raises(UserError, match=told) as refused:
        resolve({"metrics": given}, None, {"XDG_RUNTIME_DIR": "/r"})
    assert refused.value.exit_code == EXIT_USAGE
    assert "\n" not in str(refused.value)


def test_the_certificate_of_all_that_listens_serves_metrics_to_who_is_named(
    start_daemon: StartDaemon, tmp_path: Path, port: int
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    file = tmp_path / "neurond.toml"
    file.write_text(
        f'[metrics]\nlisten = "127.0.0.1:{port}"\n[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n'
        f'client_ca = "{authority.file}"\nsummary = ["viewer.example.org"]\nfull = ["spiffe://example.org/prometheus"]\n',
        "utf-8",
    )
    start_daemon("--simulate", "trn1.2xlarge", "--config", str(file))

    def status(*names: str, path: str = "metrics") -> int:
        context = ssl.create_default_context(cafile=str(authority.file))
        context.load_cert_chain(*authority.sign("reader", *names))
        return scrape(f"https://127.0.0.1:{port}/{path}", context)

    assert status("URI:spiffe://example.org/prometheus", "DNS:other") == 200
    assert status("DNS:viewer.example.org") == 403, "the metrics have commands and users"
    assert status("DNS:other") == 403
    assert status() == 403
    assert status(path="") == 200, "a probe needs no name"


@needs_openssl
def test_metrics_stay_plain_on_loopback_where_that_is_set(start_daemon: StartDaemon, tmp_path: Path, port: int) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    (tmp_path / "token").write_text("s3cret", "utf-8")
    file = tmp_path / "neurond.toml"
    file.write_text(
        f'[metrics]\nlisten = "127.0.0.1:{port}"\ntls = false\nbearer_token_file = "{tmp_path}/token"\n'
        f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n'
        f'client_ca = "{authority.file}"\nfull = ["a.example.org"]\n',
        "utf-8",
    )
    start_daemon("--simulate", "trn1.2xlarge", "--config", str(file))
    url = f"http://127.0.0.1:{port}/metrics"
    assert scrape(url, token="Bearer s3cret") == 200
    assert scrape(url) == 401, "a token is asked for as before"


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"key": "server.key"}, "tls.key needs a certificate; set tls.certificate"),
        ({"full": ["a"]}, "tls.full needs a certificate; set tls.certificate"),
        (
            {"certificate": "server.crt", "key": "server.key", "summary": ["a"]},
            "tls.summary and tls.full name certificates of clients, which nobody asks for; set tls.client_ca",
        ),
        (
            {
                "certificate": "server.crt",
                "key": "server.key",
                "client_ca": "authority.crt",
                "summary": ["a"],
                "full": ["A", "b"],
            },
            "tls.summary and tls.full both have a; leave it in one of them",
        ),
        ({"certificate": "server.crt", "key": "absent"}, r"tls.key: \S+/absent: No such file or directory; give a"),
    ],
)
def test_parts_of_tls_that_do_not_fit_are_told(keys: dict[str, str | list[str]], told: str, tmp_path: Path) -> None:
    Authority(tmp_path).sign("server")
    given = {key: str(tmp_path / value) if isinstance(value, str) else value for key, value in keys.items()}
    with pytest.raises(UserError, match=told) as refused:
        resolve({"tls": given}, None, {"XDG_RUNTIME_DIR": "/r"})
    assert refused.value.exit_code == EXIT_USAGE
    assert "\n" not in str(refused.value)


def test_without_settings_everybody_is_admitted() -> None:
    access = metrics_access(Settings(socket="/s"))
    assert access.context is None
    assert access.admits("")
