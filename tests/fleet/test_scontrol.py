"""Running scontrol: in bounded time and size, and what is left of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from neurontools.errors import UserError
from neurontools.fleet.scontrol import MOST_BYTES, NoScontrol, scontrol
from tests.harness.waiting import HANG_SECONDS, wait_until

Install = Callable[[str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes a shell script the scontrol of this host; its directory, which alone is in PATH before the system's."""

    def written(script: str) -> Path:
        path = tmp_path / "scontrol"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return tmp_path

    return written


def asked(timeout_seconds: float = HANG_SECONDS) -> str:
    return scontrol("show", "node", "n0", timeout_seconds=timeout_seconds, next_step="see squeue")


def test_what_it_prints_is_read_whole_beside_what_it_complains_of(install: Install) -> None:
    install('i=0; while [ $i -lt 3000 ]; do echo "$@ $LC_ALL"; echo complaint $i >&2; i=$((i+1)); done')
    assert asked() == "show node n0 C\n" * 3000


def test_one_that_does_not_answer_is_ended_with_what_it_has_started(install: Install) -> None:
    directory = install(f'sleep {HANG_SECONDS} & echo $! > "${{0%/*}}/pid"; echo half; wait')
    with pytest.raises(UserError, match=r"scontrol show gave no answer within 0.5 s; is slurmctld running\?$"):
        asked(0.5)
    with suppress(FileNotFoundError):  # it had not come so far
        told = (directory / "pid").read_text()
        wait_until(lambda: not told.strip() or not sleeps(int(told)))


def sleeps(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep")
    except OSError:
        return False


def test_one_that_never_stops_printing_is_ended(install: Install) -> None:
    install("while :; do head -c 100000 /dev/zero; done")
    with pytest.raises(UserError, match=f"says more than {MOST_BYTES >> 20} MiB"):
        asked()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo 'slurm_update error: \x1b[31mInvalid\nmore' >&2; exit 1",
            "slurm_update error: \\x1b[31mInvalid; see squeue",
        ),
        ("echo on standard output; exit 1", "on standard output; see squeue"),
        ("exit 7", "it ended with 7; see squeue"),
        ("kill -TERM $$", "it was ended by SIGTERM; see squeue"),
        (
            "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure); is slurmctld running?",
        ),
        (
            "echo 'scontrol: error: failed to fetch config\nscontrol: fatal: Could not establish' >&2; exit 1",
            "fatal: Could not establish; see slurm.conf, or set SLURM_CONF",
        ),
    ],
)
def test_one_that_fails_is_told_in_a_line_with_the_next_step(install: Install, script: str, said: str) -> None:
    install(script)
    with pytest.raises(UserError) as raised:
        asked()
    assert str(raised.value) == f"scontrol show: {said}"


def test_where_there_is_none_that_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoScontrol, match="there is no scontrol here"):
        asked()
    (tmp_path / "scontrol").write_text("")
    with pytest.raises(UserError, match="scontrol show: Permission denied"):
        asked()
