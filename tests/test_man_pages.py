"""The manual pages say what the commands do: the same options, no faults, installed with the wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from neurontools import errors
from neurontools.query import problems

ROOT = Path(__file__).parents[1]
PAGES = {
    "neuron-ls.1": [sys.executable, str(ROOT / "scripts/neuron-ls")],
    "neuron-run.1": [sys.executable, "-m", "neurontools.cli.run.command"],
    "neuron-profile.1": [sys.executable, "-m", "neurontools.cli.profile.command"],
    "neuron-monitor.1": [sys.executable, "-m", "neurontools.cli.monitor.command"],
    "neuron-monitor-prometheus.1": [sys.executable, "-m", "neurontools.cli.monitor.prometheus"],
    "neuron-fault.1": [sys.executable, "-m", "neurontools.cli.fault.command"],
    "neuron-top.1": [sys.executable, str(ROOT / "scripts/neuron-top")],
    "neuron-healthcheck.8": [sys.executable, str(ROOT / "scripts/neuron-healthcheck")],
    "neuron-fleet-sim.1": [sys.executable, "-m", "neurond.fleet.command"],
    "neuron-doctor.8": [sys.executable, "-m", "neurontools.cli.doctor.command"],
    "neurond.8": [sys.executable, "-m", "neurond"],
}


def options_in_help(command: list[str]) -> set[str]:
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    defined = (re.match(r"\s+(-[\w-]+.*?)(?:\s{2,}|$)", line) for line in shown.splitlines())
    return {option for match in defined if match for option in re.findall(r"(?<![\w-])--?[\w-]+", match[1])}


def options_in_page(page: str) -> set[str]:
    items = re.findall(r"^\.It (Fl .*)$", (ROOT / "man" / page).read_text("utf-8"), re.MULTILINE)
    return {f"-{option}" for item in items for option in re.findall(r"Fl (-?[\w-]+)", item)}


@pytest.mark.parametrize("page", PAGES)
def test_page_and_help_have_the_same_options(page: str) -> None:
    assert len(options_in_help(PAGES[page])) > 7
    assert options_in_page(page) == options_in_help(PAGES[page])


def exit_codes_in_help(command: list[str]) -> dict[str, str]:
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    listed = re.findall(r"^  (\d+) +(.*)$", shown.partition("\nExit codes:\n")[2], re.MULTILINE)
    return dict(listed)


def exit_codes_in_page(page: str) -> dict[str, str]:
    """Their meanings in plain text, as the help has them: without a capital and a full stop."""
    section = (ROOT / "man" / page).read_text("utf-8").partition("\n.Sh EXIT STATUS\n")[2].partition("\n.Sh ")[0]
    found = {}
    for code, text in re.findall(r"^\.It (\d+)\n((?:(?!\.It |\.El).*\n)+)", section, re.MULTILINE):
        meaning = re.sub(r"^\.Fl -", "--", " ".join(text.split("\n"))).strip().removesuffix(".")
        found[code] = meaning[:1].lower() + meaning[1:]
    return found


@pytest.mark.parametrize("page", PAGES)
def test_page_and_help_tell_the_same_exit_codes(page: str) -> None:
    of_help = exit_codes_in_help(PAGES[page])
    assert "70" in of_help
    assert exit_codes_in_page(page) == of_help


def test_the_suite_documents_the_exit_codes_that_its_commands_have() -> None:
    of_commands = set().union(*map(exit_codes_in_page, PAGES))
    of_code = {str(value) for name, value in vars(errors).items() if name.startswith("EXIT_")} | {"0"}
    assert set(exit_codes_in_page("neurontools.7")) == of_commands == of_code


@pytest.mark.skipif(not shutil.which("mandoc"), reason="mandoc is not installed; CI installs it")
def test_pages_have_no_faults() -> None:
    checked = subprocess.run([ROOT / "scripts/check-man-pages"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "manual pages: no faults\n")


def test_every_page_is_installed_with_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    installed = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    for page in (ROOT / "man").iterdir():
        assert installed[f"man/{page.name}"] == f"share/man/man{page.suffix[1:]}/{page.name}"


def test_the_page_of_the_health_check_has_every_name_of_a_problem() -> None:
    section = (
        (ROOT / "man/neuron-healthcheck.8").read_text("utf-8").partition("\n.Ss Names\n")[2].partition("\n.Ss ")[0]
    )
    assert sorted(re.findall(r"\.Ql ([A-Z_]+)", section)) == sorted(problems.NAMES)
