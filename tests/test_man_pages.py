"""The manual pages say what the commands do: the same options, no faults, installed with the wheel."""

from __future__ import annotations

import importlib
import re
import shutil
import tomllib
from collections.abc import Iterator
from functools import cache

import pytest

from neurontools.model import health
from neurontools.util import errors
from tests.harness.command import call_main
from tests.harness.paths import ROOT
from tests.harness.waiting import run_to_end

PAGES = {
    "neuron-ls.1": "neurontools.cli.ls.command",
    "neuron-run.1": "neurontools.cli.run.command",
    "neuron-profile.1": "neurontools.cli.profile.command",
    "neuron-monitor.1": "neurontools.cli.monitor.command",
    "neuron-monitor-prometheus.1": "neurontools.cli.monitor.prometheus",
    "neuron-fault.1": "neurontools.cli.fault.command",
    "neuron-diag.1": "neurontools.cli.diag.command",
    "nccom-test.1": "neurontools.cli.nccom.command",
    "neuron-mcp.1": "neurontools.cli.mcp.command",
    "neuron-top.1": "neurontools.cli.top.command",
    "neuron-healthcheck.8": "neurontools.cli.healthcheck.command",
    "neuron-fleet-sim.1": "neurond.fleet.command",
    "neuron-doctor.8": "neurontools.cli.doctor.command",
    "neurond.8": "neurond.__main__",
}


@cache
def help_of(page: str) -> str:
    return call_main(importlib.import_module(PAGES[page]).main, "--help", COLUMNS="100").stdout


def section(page: str, begin: str, end: str) -> str:
    return (ROOT / "man" / page).read_text("utf-8").partition(f"\n{begin}\n")[2].partition(f"\n{end} ")[0]


def options_of_page(page: str) -> Iterator[tuple[str, str]]:
    """The flags of each option, and the name of its value in capitals. An item may have several options with values."""
    for item in re.findall(r"^\.It (Fl .*)$", (ROOT / "man" / page).read_text("utf-8"), re.MULTILINE):
        flags = ""
        for flag, value in re.findall(r"Fl (\S+)(?: (?:Ar|Cm) ([^,]*[^, ]))?", item):
            flags += f"-{flag} "
            if value:
                yield (
                    flags.strip(),
                    re.sub(r" (: NS )?AR |( : NS )", lambda found: ":" if ":" in found[0] else " ", value.upper()),
                )
                flags = ""
        if flags:
            yield flags.strip(), ""


@pytest.mark.parametrize("page", PAGES)
def test_page_and_help_have_the_same_options_and_variables(page: str) -> None:
    text, of_page, of_help = help_of(page), dict(options_of_page(page)), {}
    for names in re.findall(r"^ +(-[\w-]+.*?)(?:  |$)", text, re.MULTILINE):
        flags, value = re.fullmatch(r"((?:--?[\w-]+(?:, )?)+) ?(.*)", names).groups()  # type: ignore[union-attr]
        flags = flags.replace(",", "")
        of_help[flags] = (
            of_page.get(flags, "") if value.startswith("{") else value.upper()
        )  # argparse lists choices there
    assert len(of_help) > 5
    assert of_help == of_page
    manual = (ROOT / "man" / page).read_text("utf-8")
    variables = re.findall(r"^  ([A-Z_]+) ", text.partition("\nEnvironment:\n")[2].partition("\n\n")[0], re.MULTILINE)
    assert set(variables) <= set(re.findall(r"[A-Z_]+", " ".join(re.findall(r"^\.It Ev (.*)", manual, re.MULTILINE))))
    module = importlib.import_module(PAGES[page])
    words = {word for option in getattr(module, "OPTIONS", ()) for word in option.words if not word.isdigit()}
    assert words | set(getattr(module, "ACTIONS", ())) <= set(re.split(r"[\s,.()]+", manual))


def exit_codes(page: str) -> dict[str, str]:
    """Their meanings in plain text, as the help has them: without a capital and a full stop."""
    found = {}
    for code, text in re.findall(
        r"^\.It (\d+)\n((?:(?!\.It |\.El).*\n)+)", section(page, ".Sh EXIT STATUS", ".Sh"), re.MULTILINE
    ):
        meaning = re.sub(r"^\.Fl -", "--", " ".join(text.split("\n"))).strip().removesuffix(".")
        found[code] = meaning[:1].lower() + meaning[1:]
    return found


@pytest.mark.parametrize("page", PAGES)
def test_page_and_help_tell_the_same_exit_codes(page: str) -> None:
    of_help = dict(re.findall(r"^  (\d+) +(.*)$", help_of(page).partition("\nExit codes:\n")[2], re.MULTILINE))
    assert "70" in of_help
    assert exit_codes(page) == of_help


def test_the_suite_documents_the_exit_codes_that_its_commands_have() -> None:
    of_commands = set().union(*map(exit_codes, PAGES))
    of_code = {str(value) for name, value in vars(errors).items() if name.startswith("EXIT_")} | {"0"}
    assert set(exit_codes("neurontools.7")) == of_commands == of_code


@pytest.mark.skipif(not shutil.which("mandoc"), reason="mandoc is not installed; CI installs it")
def test_pages_have_no_faults() -> None:
    checked = run_to_end([ROOT / "scripts/check-man-pages"], cwd=ROOT)
    assert (checked.returncode, checked.stdout) == (0, "manual pages: no faults\n")


def test_every_page_is_installed_with_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    installed = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    for page in (ROOT / "man").iterdir():
        assert installed[f"man/{page.name}"] == f"share/man/man{page.suffix[1:]}/{page.name}"


def test_the_page_of_the_health_check_has_every_name_of_a_problem() -> None:
    names = re.findall(r"\.Ql ([A-Z_]+)", section("neuron-healthcheck.8", ".Ss Names", ".Ss"))
    assert sorted(names) == sorted(health.FINDING_NAMES)
