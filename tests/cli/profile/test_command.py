"""neuron-profile: what it prints and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.harness.command import Done, calls
from tests.harness.profiles import write
from tests.harness.trained_profiles import FLOPS, trained

VIEWER = f"#!{sys.executable}\nimport sys\nprint(sys.argv)\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run of two ranks."""
    directory = tmp_path / "run"
    directory.mkdir()
    for profile in trained(20, 2, slow_rank=1):
        write(directory / f"host-rank{profile.metadata.rank}-7.neuronprofile", profile)
    return directory


def told(*arguments: str | Path) -> Done:
    return calls("neuron-profile", os.environ)(*map(str, arguments))


def test_show_prints_the_report(run: Path) -> None:
    done = told("show", run)
    assert (done.returncode, done.stderr) == (0, "")
    assert b"- Step time -" in told("show", run, "--ascii").stdout.encode("ascii")
    assert told("show", run, "--csv").stdout.splitlines()[0].startswith("name,engine,line,")
    assert len(told("show", run, "--csv", "--table", "steps").stdout.splitlines()) == 41


def test_one_file_is_shown_like_a_directory_and_ranks_can_be_chosen(run: Path) -> None:
    (first, _) = sorted(run.iterdir())
    one, chosen = told("show", first, "--json"), told("show", run, "--rank", "0", "--json")
    assert one.stdout == chosen.stdout
    assert json.loads(one.stdout)["flop_total"] == 20 * FLOPS
    missing = told("show", run, "--rank", "0,7")
    assert (missing.returncode, missing.stdout) == (6, "")
    assert missing.stderr.endswith("no profile of rank 7; it has those of rank 0-1\n")


def test_the_document_keeps_to_its_schema(run: Path) -> None:
    from pydantic import TypeAdapter

    from neurontools.views.profile_document import ProfileDocument

    assert told("--help", "--nonsense").returncode == 0
    schema = json.loads(told("--json-schema").stdout)
    document = told("show", run, "--json").stdout
    assert schema["title"] == "neuron-profile show --json"
    assert set(schema["required"]) == set(json.loads(document))
    assert TypeAdapter(ProfileDocument).validate_json(document, strict=True).steps_total == 20


def test_the_report_is_written_over_what_was_there(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("older")
    done = told("report", run, "-o", page)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"neuron-profile: {page}: {page.stat().st_size / 1024:.1f} KiB; open it in any browser\n"
    assert told("report", run, "-o", "-").stdout == page.read_text("utf-8")
    done = told("report", run, "-o", tmp_path / "missing" / "page.html")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "No such file or directory; name a file that can be written" in done.stderr


def test_what_is_left_of_a_worker_that_died_is_shown_and_told(run: Path) -> None:
    (first, second) = sorted(run.iterdir())
    first.write_bytes(first.read_bytes()[:-40])
    profile = trained(20, 2)[1]
    second.unlink()
    write(second, replace(profile, state=replace(profile.state, has_ended=False)))
    done = told("show", run)
    assert done.returncode == 1
    assert "2 ranks, 20 steps" in done.stdout
    assert done.stderr.splitlines() == [
        f"neuron-profile: {run}: the profile of rank 0 is damaged; only its readable part is shown",
        f"neuron-profile: {run}: the profile of rank 1 has no regular end (the worker still runs, or died)",
    ]
    first.write_bytes(b"something else")
    done = told("show", run, "--json")
    assert done.returncode == 1
    assert [each["rank"] for each in json.loads(done.stdout)["ranks"]] == [1]
    assert "not a profile" in done.stderr


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (None, 6, "No such file or directory"),
        ({"train.py": b"print()"}, 6, "no profile in it"),
        ({"a.neuronprofile": b""}, 1, "not a profile"),
        ({"a.neuronprofile": b"NEURONPROFILE 9 {}\n"}, 1, "another version"),
    ],
)
def test_what_is_no_profile_is_a_line_that_says_what_to_give(
    tmp_path: Path, content: dict[str, bytes] | None, code: int, said: str
) -> None:
    directory, page = tmp_path / "d", tmp_path / "page.html"
    for name, data in (content or {}).items():
        directory.mkdir()
        (directory / name).write_bytes(data)
    for words in (("show", directory), ("report", directory, "-o", page), ("diff", directory, directory)):
        done = told(*words)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (code, "", 1)
        assert said in done.stderr
        assert "neuron-run --profile" in done.stderr
        assert not page.exists()


def served(*arguments: object, path: Path, interpreter: Path | None = None) -> subprocess.CompletedProcess[str]:
    """neuron-profile serve as a process, which becomes the viewer; `interpreter` is what it takes for Python."""
    program = "import sys; sys.executable = sys.argv.pop(1); from neurontools.cli.profile.command import main; main()"
    command = [sys.executable, "-c", program, str(interpreter or sys.executable), "serve", *map(str, arguments)]
    environment = {**os.environ, "PATH": str(path)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_serve_becomes_the_viewer_that_is_installed(tmp_path: Path) -> None:
    logs, programs = tmp_path / "logs", tmp_path / "bin"
    programs.mkdir()
    assert told("serve", tmp_path / "none").returncode == 6
    nothing = told("serve", programs)
    assert (nothing.returncode, nothing.stdout) == (6, "")
    assert "no plugins/profile/*/*.xplane.pb in it; give a directory that" in nothing.stderr
    (logs / "plugins/profile/now").mkdir(parents=True)
    (logs / "plugins/profile/now/host.xplane.pb").touch()
    done = served(logs, path=programs, interpreter=tmp_path / "python")
    assert (done.returncode, done.stderr) == (
        6,
        "neuron-profile: neither xprof nor tensorboard is installed; pip install xprof, then try again\n",
    )
    tensorboard, xprof = programs / "tensorboard", programs / "xprof"
    tensorboard.write_text(VIEWER)
    tensorboard.chmod(0o755)
    done = served(logs, "--port", "7007", path=programs)
    assert done.returncode == 0
    assert done.stdout == f"{[str(tensorboard), '--logdir', str(logs), '--port', '7007', '--host', '127.0.0.1']}\n"
    assert done.stderr == "neuron-profile: tensorboard at http://127.0.0.1:7007/, until it is interrupted\n"
    tensorboard.rename(xprof)
    assert served(logs, path=programs).stdout.startswith(f"['{xprof}', 'server', '--logdir', ")


def test_of_several_runs_in_one_directory_the_latest_is_shown(run: Path) -> None:
    for number, profile in enumerate(trained(5, 2)):
        began_ns = profile.state.ended_ns + 10**12 + number
        metadata = replace(profile.metadata, began_ns=began_ns, pid=9)
        state = replace(profile.state, ended_ns=began_ns + 10**9)
        path = run / f"host-rank{number}-9.neuronprofile"
        write(path, replace(profile, metadata=metadata, state=state))
    done = told("show", run, "--json")
    assert (done.returncode, [each["steps_total"] for each in json.loads(done.stdout)["ranks"]]) == (0, [5, 5])
    assert done.stderr == (
        f"neuron-profile: {run}: 2 profile(s) of earlier runs are left out; name a file to see that one\n"
    )
    older = json.loads(told("show", run / "host-rank0-7.neuronprofile", "--json").stdout)
    assert older["steps_total"] == 20


def test_export_writes_the_files_that_a_killed_run_left_out(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    for profile in trained(5, 2):
        killed = replace(profile, state=replace(profile.state, has_ended=False))
        write(tmp_path / "made" / f"rank{profile.metadata.rank}.neuronprofile", killed)
    done = told("export", tmp_path / "made")
    paths = [Path(line) for line in done.stdout.splitlines()]
    assert (done.returncode, len(paths)) == (1, 2 * 3 + 1)
    assert "has no regular end" in done.stderr
    assert all(path.stat().st_size for path in paths)
    assert {path.parent for path in paths if path.suffix == ".pb"} == {paths[1].parent}
    again = told("export", tmp_path / "made")
    assert again.stdout == ""
    assert "all files for viewers exist already" in again.stderr
    assert len(told("export", tmp_path / "made", "-o", tmp_path / "new/other").stdout.splitlines()) == 7
    (tmp_path / "file").touch()
    assert "file: " in told("export", tmp_path / "made", "-o", tmp_path / "file").stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_profile_of_another_user_names_the_user() -> None:
    with tempfile.TemporaryDirectory() as name:
        (profile,) = trained(5)
        path = Path(name, "a.neuronprofile")
        write(path, profile)
        path.chmod(0o600)
        for mode in (0o755, 0o700):  # the file is private, then its directory
            Path(name).chmod(mode)
            os.seteuid(65534)
            try:
                shown = [told("show", each) for each in (name, path)]
            finally:
                os.seteuid(0)
            assert {done.returncode for done in shown} == {4}
            assert all("it belongs to user root; ask root for read access" in done.stderr for done in shown)
