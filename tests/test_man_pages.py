"""The manual pages say what the commands do: the same options, no faults, installed with the wheel."""

from __future__ import annotations

import importlib
import re
import shutil
import tomllib
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


@pytest.mark.parametrize("page", PAGES)
def test_page_and_help_have_the_same_options(page: str) -> None:
    defined = (re.match(r"\s+(-[\w-]+.*?)(?:\s{2,}|$)", line) for line in help_of(page).splitlines())
    of_help = {option for match in defined if match for option in re.findall(r"(?<![\w-])--?[\w-]+", match[1])}
    assert len(of_help) > 7
    items = re.findall(r"^\.It (Fl .*)$", (ROOT / "man" / page).read_text("utf-8"), re.MULTILINE)
    assert {f"-{option}" for item in items for option in re.findall(r"Fl (-?[\w-]+)", item)} == of_help


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
