"""Options, --help, --completion and the selection of devices."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools import catalog
from neurontools.cli.line import (
    FILES,
    INSTANCE_TYPES,
    DeviceSelection,
    Option,
    completion_script,
    help_text,
    parse_options,
)
from neurontools.cli.ls.options import OPTIONS
from neurontools.cli.profile import command as profile
from neurontools.util.errors import UserError
from neurontools.util.terminal import escape_controls
from tests.harness.command import RunCommand
from tests.harness.pictures import is_as_stored
from tests.harness.waiting import run_to_end

GOLDEN = Path(__file__).parent / "golden/options.txt"


@pytest.mark.parametrize(
    ("arguments", "given_options"),
    [
        ([], {}),
        (["--"], {}),
        (["-wat"], {"wide": "", "show-all-procs": "", "topology": ""}),
        (["-wd1"], {"wide": "", "device": "1"}),
        (["-wd", "1", "-j"], {"wide": "", "device": "1", "json-output": ""}),
        (["-d=1"], {"device": "1"}),
        (["--show-all-procs", "--json"], {"show-all-procs": "", "json-output": ""}),
        (["--device=1", "-d", "2"], {"device": "1,2"}),
        (["--socket=a=b", "--socket", "c"], {"socket": "c"}),
        (["--socket=-x"], {"socket": "-x"}),
        (["--socket", "-"], {"socket": "-"}),
        (["-h", "--nonsense"], {"help": ""}),
    ],
)
def test_parse(arguments: list[str], given_options: dict[str, str]) -> None:
    assert parse_options(OPTIONS, arguments) == given_options


@given(st.lists(st.text(max_size=8) | st.sampled_from(["-", "--", "-d", "--wide", "--socket=", "-wat"]), max_size=6))
def test_whatever_is_given_is_parsed_or_refused_in_one_line(arguments: list[str]) -> None:
    refusal: UserError | None = None
    names: dict[str, str] = {}
    try:
        names = parse_options(OPTIONS, arguments)
    except UserError as error:
        refusal = error
    assert set(names) <= {option.name for option in OPTIONS}
    assert refusal is None or (refusal.exit_code in (1, 2) and escape_controls(str(refusal)) == str(refusal))


@given(st.text(max_size=12) | st.from_regex(r"[0-9a-f:.,-]{0,14}", fullmatch=True))
def test_whatever_is_asked_for_is_a_selection_or_refused(text: str) -> None:
    refusal: UserError | None = None
    selection = DeviceSelection("")
    try:
        selection = DeviceSelection(text)
    except UserError as error:
        refusal = error
    assert all(0 <= index < 1024 for index in selection.indices)
    assert all(len(name) >= 12 for name in selection.names)
    assert refusal is None or (refusal.exit_code == 2 and escape_controls(str(refusal)) == str(refusal))


def test_bdf_without_domain_is_of_domain_0() -> None:
    assert DeviceSelection("10:1C.0,0001:a0:1d.0").names == ["0000:10:1c.0", "0001:a0:1d.0"]


def test_serial_numbers_have_16_digits() -> None:
    selection = DeviceSelection("9FF5434815C8BD80,1,0000000000000001")
    assert (selection.names, selection.indices) == (["9ff5434815c8bd80", "0000000000000001"], [1])
    with pytest.raises(UserError, match="is no device"):
        DeviceSelection("9ff5434815c8bd8")


def test_help_and_completion_scripts_of_a_table() -> None:
    options = (
        Option("all", "everything: [a] or 'b'", short="a"),
        Option("out", "where to", value="FILE", aliases=("to",), completes=FILES),
        Option("only", "only a, b", short="o", value="PART", words=("a", "b"), joins=True, variable="ONLY"),
        Option("shell-name", "a shell", value="SHELL", words=("bash", "zsh")),
        Option("simulate", "such a host", value="TYPE", completes=INSTANCE_TYPES),
        Option("both", "first and last", value="A B"),
    )
    exit_codes = ((0, "fine"), (124, "too late"))
    texts = [
        help_text("x [options]", "Does x.", options, "Note.\n", exit_codes, ("LONG_VARIABLE", "as it says")),
        *(completion_script(shell, "neuron-x", options, ("show", "diff")) for shell in ("bash", "zsh", "fish")),
    ]
    text = "\n".join(texts).replace(" ".join(catalog.names()), "EVERY INSTANCE TYPE")
    assert is_as_stored(text, GOLDEN), "options.txt differs; UPDATE_GOLDEN=1 writes it anew"


DRIVER = """
source ./script
complete -p neuron-ls
offer() {{
    COMP_WORDS=("$@")
    COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
    _neuron_ls
    echo "${{COMPREPLY[@]}}"
}}
{calls}
"""


def offered_by_bash(directory: Path, text: str, lines: list[list[str]]) -> list[set[str]]:
    """What bash offers behind each of these lines of words, with this script."""
    (directory / "script").write_text(text)
    calls = "\n".join("offer neuron-ls " + " ".join(f"'{word}'" for word in words) for words in lines)
    command = ["bash", "-c", DRIVER.format(calls=calls)]
    done = run_to_end(command, cwd=directory, check=True)
    assert done.stderr == ""
    registered, *offered = done.stdout.splitlines()
    assert registered == "complete -F _neuron_ls neuron-ls"
    return [set(line.split()) for line in offered]


def test_bash_offers(tmp_path: Path) -> None:
    (tmp_path / "here.sock").touch()
    cases: list[tuple[list[str], set[str]]] = [
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
    ]
    text = completion_script("bash", "neuron-ls", OPTIONS)
    assert offered_by_bash(tmp_path, text, [words for words, _ in cases]) == [offered for _, offered in cases]


def test_bash_offers_actions_first_and_then_paths(tmp_path: Path) -> None:
    (tmp_path / "here.neuronprofile").touch()
    cases = [
        (["sh"], {"show"}),
        (["--ver"], {"--version"}),
        (["show", "her"], {"here.neuronprofile"}),
        (["show", "--js"], {"--json", "--json-schema"}),
        (["show", "--table", "s"], {"steps"}),
    ]
    text = completion_script("bash", "neuron-ls", profile.OPTIONS, profile.ACTIONS)
    assert offered_by_bash(tmp_path, text, [words for words, _ in cases]) == [offered for _, offered in cases]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(neuron_ls: RunCommand, tmp_path: Path, shell: str) -> None:
    text = completion_script(shell, "neuron-ls", OPTIONS)
    done = neuron_ls("--completion", shell)
    assert (done.stdout, done.stderr, done.returncode) == (text, "", 0)
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    for each in (text, completion_script(shell, "neuron-profile", profile.OPTIONS, profile.ACTIONS)):
        (tmp_path / "script").write_text(each)
        command = [shell, "-n", str(tmp_path / "script")]
        checked = run_to_end(command)
        assert (checked.stderr, checked.returncode) == ("", 0)
