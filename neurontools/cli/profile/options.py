"""The actions and options of neuron-profile."""

from __future__ import annotations

from neurontools.cli.line.options import FILES, Option
from neurontools.errors import EXIT_USAGE, UserError

ACTIONS = ("show", "report", "diff", "serve")
TABLES = ("operators", "steps", "graphs", "ranks")  # those of views/profile/tables.py
USAGE = """neuron-profile show DIR [options]
       neuron-profile report DIR -o FILE.html
       neuron-profile diff DIR_A DIR_B [options]
       neuron-profile serve DIR [--port PORT]"""
SUMMARY = (
    "Show what a profile of a training run tells: where the time of its steps went, its operators, graphs and memory.\n"
    "DIR is a directory that neuron-run --profile DIR script.py wrote, or a file of one worker in it."
)
OPTIONS = (
    Option("help", "print this help", short="h", ends=True),
    Option("version", "print the version", short="V", ends=True),
    Option("json", "show, diff: one JSON document"),
    Option("csv", "show: a table as CSV, with a header"),
    Option("table", "show: which table --csv prints", value="TABLE", words=TABLES),
    Option("top", "show, diff: how many rows a table has at most (10)", short="n", value="N"),
    Option("rank", "show, report, diff: only this rank; again for several", short="r", value="RANK", joins=True),
    Option("ascii", "show: draw with ASCII characters alone"),
    Option("output", "report: the file to write; - is standard output", short="o", value="FILE", completes=FILES),
    Option("port", "serve: the port of the viewer (6006)", value="PORT"),
    Option("json-schema", "print the JSON Schema of the document of show", ends=True),
    Option(
        "completion", "print the completion script for a shell", value="SHELL", words=("bash", "zsh", "fish"), ends=True
    ),
)
NOTES = """serve starts xprof or TensorBoard, whichever is installed, and says how to get one where none is.
"""
EXIT_CODES = (
    (0, "what was asked for was shown"),
    (1, "an option is unknown, a profile is none or not whole, or something failed"),
    (2, "an option has a value that can't be meant, or words are missing"),
    (4, "the profile may not be read by this user"),
    (6, "there is no such directory, profile or rank, or no viewer"),
    (70, "a fault of the command itself"),
    (130, "interrupted"),
)
_OF_ACTION = {
    "show": ("json", "csv", "table", "top", "rank", "ascii"),
    "report": ("output", "rank"),
    "diff": ("json", "top", "rank"),
    "serve": ("port",),
}
_PATH_COUNTS = {"show": 1, "report": 1, "diff": 2, "serve": 1}
_USUAL_ROWS = 10
_MOST_ROWS = 100_000
_USUAL_PORT = 6006
_HIGHEST_PORT = 65535


def check(given: dict[str, str], words: list[str]) -> None:
    """UserError when there is no such action, or something that it has no use for."""
    action, *paths = words or [""]
    if action not in ACTIONS:
        what = f"there is no action {_shown(action)}" if action else "what is it to do?"
        raise UserError(f"{what}; give one of {', '.join(ACTIONS)}, such as: neuron-profile show DIR", EXIT_USAGE)
    if len(paths) != _PATH_COUNTS[action]:
        wanted = "two directories" if _PATH_COUNTS[action] == 2 else "one directory"
        raise UserError(f"{action} takes {wanted} of profiles, not {len(paths)}; see --help", EXIT_USAGE)
    foreign = [f"--{name}" for name in given if name not in _OF_ACTION[action]]
    if foreign:
        raise UserError(f"{' and '.join(foreign)}: not for {action}; see --help", EXIT_USAGE)
    if "table" in given and "csv" not in given:
        raise UserError("--table needs --csv", EXIT_USAGE)
    table(given)
    rows(given)
    ranks(given)
    port(given)


def table(given: dict[str, str]) -> str:
    """The table that --csv prints."""
    name = given.get("table", TABLES[0])
    if name not in TABLES:
        raise UserError(f"--table {_shown(name)}: give one of {', '.join(TABLES)}", EXIT_USAGE)
    return name


def rows(given: dict[str, str]) -> int:
    """How many rows a table has at most."""
    return _number("--top", given.get("top"), _USUAL_ROWS, 1, _MOST_ROWS)


def port(given: dict[str, str]) -> int:
    """The port that a viewer is to listen on."""
    return _number("--port", given.get("port"), _USUAL_PORT, 1, _HIGHEST_PORT)


def ranks(given: dict[str, str]) -> frozenset[int]:
    """The ranks that were asked for; none for all."""
    return frozenset(_number("--rank", text, 0, 0, 10**6) for text in given.get("rank", "").split(",") if text)


def _number(flag: str, text: str | None, usual: int, least: int, most: int) -> int:
    if text is None:
        return usual
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise UserError(f"{flag} {_shown(text)}: give a whole number from {least} to {most}", EXIT_USAGE)
    return int(text)


def _shown(text: str) -> str:
    from neurontools.text.terminal import cut, visible

    return cut(visible(text), 60) or '""'
