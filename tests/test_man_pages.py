"""The manual pages say what the commands do: the same options, no faults, installed with the wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = {
    "neuron-ls.1": [sys.executable, str(ROOT / "scripts/neuron-ls")],
    "neuron-run.1": [sys.executable, "-m", "neurontools.cli.run.command"],
    "neuron-monitor.1": [sys.executable, "-m", "neurontools.cli.monitor.command"],
    "neuron-monitor-prometheus.1": [sys.executable, "-m", "neurontools.cli.monitor.prometheus"],
    "neuron-top.1": [sys.executable, str(ROOT / "scripts/neuron-top")],
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


@pytest.mark.parametrize("page", PAGES)
def test_every_exit_code_is_one_that_the_suite_documents(page: str) -> None:
    codes = re.compile(r"^\.It (\d+)$", re.MULTILINE)
    of_suite = codes.findall((ROOT / "man/neurontools.7").read_text("utf-8"))
    of_page = codes.findall((ROOT / "man" / page).read_text("utf-8"))
    assert of_page
    assert set(of_page) <= set(of_suite)


@pytest.mark.skipif(not shutil.which("mandoc"), reason="mandoc is not installed; CI installs it")
def test_pages_have_no_faults() -> None:
    checked = subprocess.run([ROOT / "scripts/check-man-pages"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "manual pages: no faults\n")


def test_every_page_is_installed_with_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    installed = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    for page in (ROOT / "man").iterdir():
        assert installed[f"man/{page.name}"] == f"share/man/man{page.suffix[1:]}/{page.name}"
