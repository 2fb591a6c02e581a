from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools.errors import EXIT_USAGE, UserError
from neurontools.rpc import socket_path


def test_the_default_is_in_the_runtime_directory_of_the_user() -> None:
    assert socket_path.default({"XDG_RUNTIME_DIR": "/run/user/7"}) == "/run/user/7/neurontools/neurond.sock"


@pytest.mark.parametrize("environment", [{}, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "relative"}])
def test_without_a_runtime_directory_root_has_the_systems_socket(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert socket_path.default(environment) == "/run/neurond/neurond.sock"
    assert socket_path.candidates(environment) == ("/run/neurond/neurond.sock",)


def test_without_a_runtime_directory_others_have_a_directory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert socket_path.default({}) == "/tmp/neurontools-1234/neurond.sock"


def test_a_client_looks_for_its_users_daemon_and_then_for_the_systems() -> None:
    assert socket_path.candidates({"XDG_RUNTIME_DIR": "/run/user/7"}) == (
        "/run/user/7/neurontools/neurond.sock",
        "/run/neurond/neurond.sock",
    )


def test_the_option_beats_the_environment() -> None:
    environment = {"NEURONTOOLS_SOCKET": "/e.sock"}
    assert socket_path.named("/o.sock", environment) == "/o.sock"
    assert socket_path.named(None, environment) == "/e.sock"
    assert socket_path.named(None, {"NEURONTOOLS_SOCKET": ""}) is None
    assert socket_path.named(None, {}) is None


@pytest.mark.parametrize("text", ["/run/x.sock", "unix:/run/x.sock", "unix:///run/x.sock"])
def test_grpcs_ways_to_write_a_path(text: str) -> None:
    assert socket_path.checked(text, "--socket") == "/run/x.sock"


@pytest.mark.parametrize("text", ["", "unix:", "/a\0b"])
def test_a_path_that_is_none(text: str) -> None:
    with pytest.raises(UserError, match=r"^--socket: the socket path is empty or has a NUL in it; give") as refused:
        socket_path.named(text, {})
    assert refused.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("character", ["x", "ä"])
def test_the_longest_path_leaves_room_for_the_attach_socket(character: str, socket_directory: Path) -> None:
    import socket

    room = socket_path.LONGEST_PATH_BYTES - len(".attach") - len(os.fsencode(socket_directory)) - 1
    name = character * (room // len(character.encode()))
    longest = str(socket_directory / name) + "x" * (room % len(character.encode()))
    assert socket_path.checked(longest, "--socket") == longest
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(socket_path.attach_socket(longest))
    with pytest.raises(UserError, match=r"^NEURONTOOLS_SOCKET: the socket path .*… is longer than the 100 bytes"):
        socket_path.named(None, {"NEURONTOOLS_SOCKET": longest + "x"})


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
            "import os; from neurontools.rpc import socket_path; os.setuid(54321); print(*socket_path.candidates({}))"
        )
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    finally:
        directory.rmdir()
    assert told == [f"{directory}/neurond.sock", "/run/neurond/neurond.sock"][0 if expected else 1 :]
