from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from neurontools import catalog
from neurontools.cli.line.completion import script
from neurontools.cli.ls.options import OPTIONS
from neurontools.cli.profile import options as profile
from tests.harness.neuron_ls import RunNeuronLs

DRIVER = """
source {script}
complete -p neuron-ls
COMP_WORDS=({words})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_neuron_ls
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def complete_in_bash(directory: Path, *words: str) -> set[str]:
    """What bash offers behind these words."""
    path = directory / "completion.bash"
    path.write_text(script("bash", "neuron-ls", OPTIONS))
    quoted = " ".join(f"'{word}'" for word in words)
    done = subprocess.run(
        ["bash", "-c", DRIVER.format(script=path, words=quoted)],
        capture_output=True,
        text=True,
        cwd=directory,
        check=True,
    )
    assert done.stderr == ""
    registered, *offered = done.stdout.splitlines()
    assert registered == "complete -F _neuron_ls neuron-ls"
    return set(filter(None, offered))


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["--w"], {"--wide", "--wait-free"}),
        (["-w", "--js"], {"--json-output", "--json"}),
        (["--completion", ""], {"bash", "zsh", "fish"}),
        (["--completion", "=", "z"], {"zsh"}),
        (["--completion", "="], {"bash", "zsh", "fish"}),
        (["--simulate", "inf2."], {"inf2.xlarge", "inf2.8xlarge", "inf2.24xlarge", "inf2.48xlarge"}),
        (["--simulate", ""], set(catalog.names())),
        (["--device", ""], set()),
        (["--socket", "here"], {"here.sock"}),
        ([""], {flag for option in OPTIONS for flag in option.flags}),
    ],
)
def test_bash_offers(tmp_path: Path, words: list[str], offered: set[str]) -> None:
    (tmp_path / "here.sock").touch()
    assert complete_in_bash(tmp_path, "neuron-ls", *words) == offered


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["sh"], {"show"}),
        (["--ver"], {"--version"}),
        (["show", "her"], {"here.neuronprofile"}),
        (["show", "--js"], {"--json", "--json-schema"}),
        (["show", "--table", "s"], {"steps"}),
    ],
)
def test_bash_offers_actions_first_and_then_paths(tmp_path: Path, words: list[str], offered: set[str]) -> None:
    (tmp_path / "here.neuronprofile").touch()
    (tmp_path / "script").write_text(script("bash", "neuron-ls", profile.OPTIONS, profile.ACTIONS))
    quoted = " ".join(f"'{word}'" for word in ("neuron-ls", *words))
    driver = DRIVER.format(script=tmp_path / "script", words=quoted)
    done = subprocess.run(["bash", "-c", driver], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stderr == ""
    assert set(done.stdout.splitlines()[1:]) == offered


def test_shells_accept_a_script_with_actions(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "completion"
    path.write_text(script(shell, "neuron-profile", profile.OPTIONS, profile.ACTIONS))
    done = subprocess.run([shell, "-n", path], capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0)


def test_shell_accepts_the_script(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "completion"
    path.write_text(script(shell, "neuron-ls", OPTIONS))
    done = subprocess.run([shell, "-n", path], capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0)


def test_every_flag_is_in_every_script(shell: str) -> None:
    text = script(shell, "neuron-ls", OPTIONS)
    for option in OPTIONS:
        for name in (option.name, *option.aliases):
            assert (f"-l {name}" if shell == "fish" else f"--{name}") in text


def test_the_command_prints_it(neuron_ls: RunNeuronLs, shell: str) -> None:
    done = neuron_ls("--completion", shell)
    assert (done.stdout, done.stderr, done.returncode) == (script(shell, "neuron-ls", OPTIONS), "", 0)
