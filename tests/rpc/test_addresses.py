"""Where a daemon serves and what is shown to it: sockets, addresses, certificates; and how a profile is asked for."""

from __future__ import annotations

import os
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.rpc import profile_protocol, socket_path
from neurontools.rpc.profile_protocol import LONGEST_SECONDS, MOST_STEPS, ProfileOptions
from neurontools.rpc.remote_address import RemoteAddress, remote_address
from neurontools.rpc.tunnel_registry import client_tls
from neurontools.util.errors import EXIT_USAGE, UserError
from tests.harness.certificates import Authority, needs_openssl
from tests.harness.waiting import run_to_end


def test_without_a_runtime_directory_root_has_the_systems_socket_and_others_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for environment in ({}, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "relative"}):
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        assert socket_path.default_socket(environment) == "/run/neurond/neurond.sock"
        assert socket_path.candidate_sockets(environment) == ("/run/neurond/neurond.sock",)
        monkeypatch.setattr(os, "geteuid", lambda: 1234)
        assert socket_path.default_socket(environment) == "/tmp/neurontools-1234/neurond.sock"


def test_a_client_looks_for_its_users_daemon_and_then_for_the_systems() -> None:
    environment = {"XDG_RUNTIME_DIR": "/run/user/7"}
    assert socket_path.default_socket(environment) == "/run/user/7/neurontools/neurond.sock"
    assert socket_path.candidate_sockets(environment) == (
        socket_path.default_socket(environment),
        "/run/neurond/neurond.sock",
    )


def test_the_option_beats_the_environment() -> None:
    environment = {"NEURONTOOLS_SOCKET": "/e.sock"}
    assert socket_path.configured_socket("/o.sock", environment) == "/o.sock"
    assert socket_path.configured_socket(None, environment) == "/e.sock"
    assert socket_path.configured_socket(None, {"NEURONTOOLS_SOCKET": ""}) is None
    assert socket_path.configured_socket(None, {}) is None


def test_a_path_as_grpc_writes_it_and_one_that_is_none() -> None:
    for text in ("/run/x.sock", "unix:/run/x.sock", "unix:///run/x.sock"):
        assert socket_path.validate_socket_path(text, "--socket") == "/run/x.sock"
    for text in ("", "unix:", "/a\0b"):
        with pytest.raises(UserError, match=r"^--socket: the socket path is empty or has a NUL in it; give") as refused:
            socket_path.configured_socket(text, {})
        assert refused.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("character", ["x", "ä"])
def test_the_longest_path_leaves_room_for_the_attach_socket(character: str, socket_directory: Path) -> None:
    room = socket_path.LONGEST_PATH_BYTES - len(".attach") - len(os.fsencode(socket_directory)) - 1
    name = character * (room // len(character.encode()))
    longest = str(socket_directory / name) + "x" * (room % len(character.encode()))
    assert socket_path.validate_socket_path(longest, "--socket") == longest
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(socket_path.attach_socket(longest))
    with pytest.raises(UserError, match=r"^NEURONTOOLS_SOCKET: the socket path .*… is longer than the 100 bytes"):
        socket_path.configured_socket(None, {"NEURONTOOLS_SOCKET": longest + "x"})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize(
    ("owner", "mode", "expected"),
    [(54321, 0o700, True), (54321, 0o777, False), (0, 0o755, False)],
    ids=["own", "own but open to all", "of somebody else"],
)
def test_a_directory_that_others_may_have_made_is_not_asked(owner: int, mode: int, expected: bool) -> None:
    directory = Path("/tmp/neurontools-54321")
    directory.mkdir()
    try:
        os.chown(directory, owner, -1)
        directory.chmod(mode)
        code = (
            "import os; from neurontools.rpc.socket_path import candidate_sockets; os.setuid(54321); "
            "print(*candidate_sockets({}))"
        )
        told = run_to_end([sys.executable, "-c", code], check=True).stdout.split()
    finally:
        directory.rmdir()
    assert told == [f"{directory}/neurond.sock", "/run/neurond/neurond.sock"][0 if expected else 1 :]


ADDRESSES = {
    "grpcs://trn-1:8001": RemoteAddress("trn-1", 8001),
    "grpcs://10.0.0.1:1/": RemoteAddress("10.0.0.1", 1),
    "grpcs://[fe80::1%eth0]:65535": RemoteAddress("fe80::1%eth0", 65_535),
}
NO_ADDRESSES = [
    *("trn-1:8001", "grpcs://trn-1", "grpcs://trn-1:0", "grpcs://trn-1:65536", "grpcs://trn-1:x", "grpcs://:1"),
    *("grpcs://-o:1", "grpcs://a b:1", "grpcs://::1:8001", "grpcs://a@b:1", "grpc://a:1", "grpcs://a:1/x"),
    "grpcs://\x1b[2J:1",
]


def test_an_address_is_a_host_and_a_port() -> None:
    for text, address in ADDRESSES.items():
        assert remote_address(text) == remote_address(address.text) == address
    for text in NO_ADDRESSES:
        with pytest.raises(ValueError, match=r"^'[^\x1b]*' is not an address; write grpcs://HOST:PORT"):
            remote_address(text)


wanted = st.builds(
    ProfileOptions,
    st.integers(1, int(LONGEST_SECONDS * 1e6)).map(lambda microseconds: microseconds / 1e6),
    st.none() | st.integers(1, MOST_STEPS),
)


@given(st.integers(1, 2**31 - 1), wanted)
def test_a_request_arrives_as_it_was_meant(pid: int, meant: ProfileOptions) -> None:
    line = profile_protocol.encode_request(pid, meant)
    assert line.endswith(b"\n")
    assert profile_protocol.is_request(line)
    assert profile_protocol.read_request(line[:-1]) == (pid, meant)
    word, _, value = profile_protocol.encode_forwarded_request(meant)[:-1].partition(b" ")
    assert (word, profile_protocol.decode_forwarded_request(value)) == (profile_protocol.PROFILE, meant)


def is_read(read: Callable[[bytes], object], line: bytes) -> bool:
    """Whether it is understood; ValueError is the only other outcome."""
    try:
        read(line)
    except ValueError:
        return False
    return True


RUBBISH = [
    *(b"profile 1", b"profile 0 1 1", b"profile -1 1 1", b"profile 2147483648 1 1", b"profile 1 0 1"),
    *(b"profile 1 nan 1", b"profile 1 inf 1", b"profile 1 3600.1 1", b"profile 1 1 -1", b"profile 1 1 1000001"),
    *(b"profile 1 1 1 1", b"profiles 1 1 1", b"profile 1 1 " + b"0" * 64, b"\xff \xff \xff \xff", b""),
]


@given(st.binary(max_size=100))
def test_whatever_comes_is_read_or_refused(line: bytes) -> None:
    assert not [rubbish for rubbish in RUBBISH if is_read(profile_protocol.read_request, rubbish)]
    for read in (profile_protocol.read_request, profile_protocol.decode_forwarded_request):
        is_read(read, line)


def test_refusals_and_failures_arrive_with_their_reasons() -> None:
    line = profile_protocol.encode_refusal(profile_protocol.DENIED, "PID 1 is of user 0; ask it")
    assert profile_protocol.decode_refusal(line[:-1]) == ("denied", "PID 1 is of user 0; ask it")
    assert profile_protocol.decode_refusal(b"what now") == ("now", "what now"), "of a newer daemon"
    said = profile_protocol.encode_failure("it rests")
    assert profile_protocol.is_failure(said)
    assert profile_protocol.decode_failure(said[:-1]) == "it rests"
    assert not profile_protocol.is_failure(profile_protocol.ACCEPTED + b"\nfailed ")


def trusted(context: ssl.SSLContext) -> set[object]:
    return {str(found["subject"]) for found in context.get_ca_certs()}


@needs_openssl
def test_options_go_before_the_environment_and_that_before_the_directory(tmp_path: Path) -> None:
    authorities = {name: Authority(tmp_path, name) for name in ("one", "two", "three")}
    files = {name: authority.sign(f"of-{name}") for name, authority in authorities.items()}
    kept = tmp_path / "config" / "neurontools" / "tls"
    kept.mkdir(parents=True)
    for name, path in zip(("tls.crt", "tls.key", "ca.crt"), (*files["three"], authorities["three"].file), strict=True):
        (kept / name).symlink_to(path)
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert "three" in str(trusted(client_tls({}, environment).context()))
    environment |= {
        "NEURONTOOLS_TLS_CERT": str(files["two"][0]),
        "NEURONTOOLS_TLS_KEY": str(files["two"][1]),
        "NEURONTOOLS_TLS_CA": str(authorities["two"].file),
    }
    assert "two" in str(trusted(client_tls({}, environment).context()))
    flags = {"tls-cert": str(files["one"][0]), "tls-key": str(files["one"][1])}
    assert "two" in str(trusted(client_tls(flags, environment).context())), "the authorities are a thing of their own"
    assert "one" in str(trusted(client_tls(flags | {"tls-ca": str(authorities["one"].file)}, environment).context()))


@needs_openssl
def test_what_is_missing_or_wrong_is_told_in_a_line(tmp_path: Path) -> None:
    certificate, key = map(str, Authority(tmp_path).sign("viewer"))
    environment = {"HOME": str(tmp_path)}
    (tmp_path / "open.key").write_bytes(Path(key).read_bytes())
    (tmp_path / "open.key").chmod(0o644)
    for flags, told in (
        ({}, f"a certificate is needed to read over TLS; .* tls.crt, tls.key, ca.crt into {tmp_path}/.config/neuron"),
        ({"tls-key": key}, "--tls-key needs a certificate; give --tls-cert"),
        ({"tls-cert": "/absent"}, "TLS certificate: /absent: No such file or directory; give a readable file"),
        ({"tls-cert": certificate, "tls-key": str(tmp_path / "open.key")}, "TLS key: .* has the mode 0644; take it"),
        ({"tls-cert": certificate, "tls-key": key, "tls-ca": key}, "TLS ca: .*: no certificate or crl found; give PEM"),
    ):
        with pytest.raises(UserError, match=told) as refused:
            client_tls(flags, environment)
        assert refused.value.exit_code == EXIT_USAGE
        assert "\n" not in str(refused.value)


@needs_openssl
def test_a_certificate_that_is_renewed_is_shown_the_next_time(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("viewer")
    flags = {"tls-cert": str(certificate), "tls-key": str(key), "tls-ca": str(authority.file)}
    tls = client_tls(flags, {})
    before = tls.context()
    assert tls.context() is before
    renewed, renewed_key = authority.sign("renewed")
    renewed_key.replace(key)
    assert tls.context() is before, "the new key fits no certificate yet"
    renewed.replace(certificate)
    assert tls.context() is not before
