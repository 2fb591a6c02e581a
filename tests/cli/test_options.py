from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.cli.line.about import help_text
from neurontools.cli.line.devices import DeviceSelection
from neurontools.cli.line.options import Option, parse
from neurontools.cli.ls.options import OPTIONS
from neurontools.errors import UserError
from neurontools.text.terminal import visible


@pytest.mark.parametrize(
    ("arguments", "given_options"),
    [
        ([], {}),
        (["--"], {}),
        (["-wat"], {"wide": "", "show-all-procs": "", "topology": ""}),
        (["-wd1"], {"wide": "", "device": "1"}),
        (["-wd", "1", "-j"], {"wide": "", "device": "1", "json-output": ""}),
        (["-d=1"], {"device": "1"}),
        (["--device=1", "-d", "2"], {"device": "1,2"}),
        (["--socket=a=b", "--socket", "c"], {"socket": "c"}),
        (["--socket=-x"], {"socket": "-x"}),
        (["--socket", "-"], {"socket": "-"}),
        (["-h", "--nonsense"], {"help": ""}),
    ],
)
def test_parse(arguments: list[str], given_options: dict[str, str]) -> None:
    assert parse(OPTIONS, arguments) == given_options


@given(st.lists(st.text(max_size=8) | st.sampled_from(["-", "--", "-d", "--wide", "--socket=", "-wat"]), max_size=6))
def test_whatever_is_given_is_parsed_or_refused_in_one_line(arguments: list[str]) -> None:
    refusal: UserError | None = None
    names: dict[str, str] = {}
    try:
        names = parse(OPTIONS, arguments)
    except UserError as error:
        refusal = error
    assert set(names) <= {option.name for option in OPTIONS}
    assert refusal is None or (refusal.exit_code in (1, 2) and visible(str(refusal)) == str(refusal))


@given(st.text(max_size=12) | st.from_regex(r"[0-9a-f:.,-]{0,14}", fullmatch=True))
def test_whatever_is_asked_for_is_a_selection_or_refused(text: str) -> None:
    refusal: UserError | None = None
    selection = DeviceSelection("")
    try:
        selection = DeviceSelection(text)
    except UserError as error:
        refusal = error
    assert all(0 <= index < 1024 for index in selection.indices)
    assert all(len(bdf) >= 12 for bdf in selection.bdfs)
    assert refusal is None or (refusal.exit_code == 2 and visible(str(refusal)) == str(refusal))


def test_bdf_without_domain_is_of_domain_0() -> None:
    assert DeviceSelection("10:1C.0,0001:a0:1d.0").bdfs == ["0000:10:1c.0", "0001:a0:1d.0"]


def test_help_aligns_what_has_no_short_flag() -> None:
    options = (Option("all", "everything", short="a"), Option("out", "where to", value="FILE", aliases=("to",)))
    assert help_text("x [options]", "Does x.", options, "Note.\n", ((0, "fine"), (124, "too late"))) == (
        "Usage: x [options]\n\nDoes x.\n\nOptions:\n"
        "  -a, --all             everything\n"
        "      --out, --to FILE  where to\n"
        "\nNote.\n"
        "\nExit codes:\n"
        "  0    fine\n"
        "  124  too late\n"
    )
