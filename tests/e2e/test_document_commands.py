"""The commands that the documents show: each names a command of ours with options that this command has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache

from tests.harness.command import calls
from tests.harness.paths import ROOT

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "deploy/FLEET.md",
    *(str(path.relative_to(ROOT)) for folder in ("docs", "docs/tutorials") for path in (ROOT / folder).glob("*.md")),
)
BLOCK = re.compile(r"^```(?:console|sh|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OF_A_SCRIPT = {"neuron-run"}  # what follows the script belongs to it


def lines_of(text: str) -> Iterator[str]:
    """The command lines of a page: those of its blocks, and those within its sentences and tables."""
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith(("$ ", "neuron")):
                yield line.removeprefix("$ ").partition("  # ")[0]
    yield from re.findall(r"`(neuron[^`\n]* [^`\n]*)`", text)


def shown() -> Iterator[tuple[str, list[str]]]:
    """The page and the words of each of our commands; a line with a pipe or a list has several."""
    for page in PAGES:
        for line in lines_of((ROOT / page).read_text("utf-8")):
            for part in re.split(r"\s*(?:\|\|?|&&|;|&(?:\s|$))\s*", line):
                words = shlex.split(part, comments=True) if part.count("'") % 2 == 0 and '"' not in part else []
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words.pop(0)
                if words and re.fullmatch(r"neurond?(-[a-z-]+)?", words[0]):
                    yield page, words


@cache
def options_of(command: str) -> frozenset[str]:
    done = calls(command, {"COLUMNS": "200"})("--help")
    assert done.returncode == 0, f"{command}: there is no such command"
    return frozenset(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", done.stdout))


def test_documents_show_commands_and_options_that_exist() -> None:
    commands = list(shown())
    assert len(commands) >= 60
    assert {"neurond", "neuron-ls", "neuron-top", "neuron-run"} <= {words[0] for _, words in commands}
    wrong = []
    for page, (command, *arguments) in commands:
        for word in arguments:
            if command in OF_A_SCRIPT and word.endswith(".py"):
                break
            option = word.partition("=")[0]
            if re.fullmatch(r"--[a-z][\w-]*|-[a-zA-Z]", option) and option not in options_of(command):
                wrong.append(f"{page}: {command} has no option {option}")
    assert not wrong
