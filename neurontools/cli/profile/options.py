"""The actions and options of neuron-profile."""

from __future__ import annotations

from neurontools.cli.line import FILES, Option
from neurontools.rpc.profile_protocol import LONGEST_SECONDS, MOST_STEPS
from neurontools.util.errors import EXIT_USAGE, UserError

ACTIONS = ("show", "report", "diff", "serve", "capture")
TABLES = ("operators", "steps", "graphs", "ranks")  # a copy of CSV_TABLES in views/profile_document.py
USAGE = """neuron-profile show DIR [options]
       neuron-profile report DIR -o FILE.html
       neuron-profile diff DIR_A DIR_B [options]
       neuron-profile serve DIR [--port PORT]
       neuron-profile capture --pid PID | --job NAME [--seconds S] [--steps N] [-o DIR]"""
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
    Option(
        "output",
        "report: the file to write, - is standard output; capture: the directory to write to",
        short="o",
        value="FILE",
        completes=FILES,
    ),
    Option("port", "serve: the port of the viewer (6006)", value="PORT"),
    Option("pid", "capture: profile this running process; again for several", short="p", value="PID", joins=True),
    Option("job", "capture: profile all processes of this job, by a part of its name", value="NAME"),
    Option("seconds", "capture: for so many seconds (5; with --steps 60)", short="s", value="SECONDS"),
    Option("steps", "capture: for so many whole steps, if they take no longer than --seconds", value="N"),
    Option("socket", "capture: use only the monitor daemon at this socket", value="PATH", completes=FILES),
    Option("json-schema", "print the JSON Schema of the document of show", ends=True),
    Option(
        "completion", "print the completion script for a shell", value="SHELL", words=("bash", "zsh", "fish"), ends=True
    ),
)
NOTES = """serve starts xprof or TensorBoard, whichever is installed, and says how to get one where none is.
capture asks the runtime of a process of yours, which goes on; PIDs are those that neuron-ls shows.

Environment:
  NEURONTOOLS_SOCKET        as --socket
"""
EXIT_CODES = (
    (0, "success"),
    (1, "an option is unknown, a profile is invalid or incomplete, or an operation failed"),
    (2, "an option has an invalid value, or an argument is missing"),
    (4, "this user may not read the profile, or not profile the process"),
    (6, "the directory, profile, rank, process, job or viewer does not exist"),
    (12, "no daemon answers"),
    (70, "a defect of the command"),
    (124, "the daemon, or the process, did not answer in time"),
    (130, "interrupted"),
)
_OPTIONS_BY_ACTION = {
    "show": ("json", "csv", "table", "top", "rank", "ascii"),
    "report": ("output", "rank"),
    "diff": ("json", "top", "rank"),
    "serve": ("port",),
    "capture": ("pid", "job", "seconds", "steps", "output", "socket"),
}
_PATH_COUNTS = {"show": 1, "report": 1, "diff": 2, "serve": 1, "capture": 0}
_PATHS = ("no directory", "one directory", "two directories")
_DEFAULT_ROWS = 10
_MOST_ROWS = 100_000
_DEFAULT_PORT = 6006
_HIGHEST_PORT = 65535
_HIGHEST_PID = 2**31 - 1
_DEFAULT_SECONDS, _STEPS_SECONDS = 5.0, 60.0
SHORTEST_SECONDS = 0.01


def check_options(given: dict[str, str], words: list[str]) -> None:
    """Raises UserError for an unknown action, or for options or paths that the action does not take."""
    action, *paths = words or [""]
    if action not in ACTIONS:
        problem = f"there is no action {_excerpt(action)}" if action else "what is it to do?"
        raise UserError(f"{problem}; give one of {', '.join(ACTIONS)}, such as: neuron-profile show DIR", EXIT_USAGE)
    if len(paths) != _PATH_COUNTS[action]:
        path_count_text = _PATHS[_PATH_COUNTS[action]]
        raise UserError(f"{action} takes {path_count_text} of profiles, not {len(paths)}; see --help", EXIT_USAGE)
    foreign = [f"--{name}" for name in given if name not in _OPTIONS_BY_ACTION[action]]
    if foreign:
        raise UserError(f"{' and '.join(foreign)}: not for {action}; see --help", EXIT_USAGE)
    if "table" in given and "csv" not in given:
        raise UserError("--table needs --csv", EXIT_USAGE)
    if action == "capture" and ("pid" in given) == ("job" in given):
        raise UserError("capture needs --pid or --job; neuron-ls shows PIDs, neuron-top jobs", EXIT_USAGE)
    requested_pids(given)
    requested_seconds(given)
    requested_steps(given)
    csv_table(given)
    max_rows(given)
    requested_ranks(given)
    viewer_port(given)


def csv_table(given: dict[str, str]) -> str:
    """Returns the name of the table that --csv prints."""
    name = given.get("table", TABLES[0])
    if name not in TABLES:
        raise UserError(f"--table {_excerpt(name)}: give one of {', '.join(TABLES)}", EXIT_USAGE)
    return name


def max_rows(given: dict[str, str]) -> int:
    """Returns the maximum number of rows of a table, from --top."""
    return _parse_number("--top", given.get("top"), _DEFAULT_ROWS, 1, _MOST_ROWS)


def viewer_port(given: dict[str, str]) -> int:
    """Returns the port on which the viewer serves, from --port."""
    return _parse_number("--port", given.get("port"), _DEFAULT_PORT, 1, _HIGHEST_PORT)


def requested_pids(given: dict[str, str]) -> list[int]:
    """Returns the PIDs of --pid without duplicates."""
    numbers = [_parse_number("--pid", text, 0, 1, _HIGHEST_PID) for text in given.get("pid", "").split(",") if text]
    return list(dict.fromkeys(numbers))


def requested_steps(given: dict[str, str]) -> int | None:
    """Returns the maximum number of steps of a capture; None for no limit."""
    return _parse_number("--steps", given["steps"], 0, 1, MOST_STEPS) if "steps" in given else None


def requested_seconds(given: dict[str, str]) -> float:
    """Returns the maximum duration of a capture in seconds."""
    text = given.get("seconds")
    if text is None:
        return _STEPS_SECONDS if "steps" in given else _DEFAULT_SECONDS
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not SHORTEST_SECONDS <= value <= LONGEST_SECONDS:
        problem = f"--seconds {_excerpt(text)}: give a number from {SHORTEST_SECONDS:g} to {LONGEST_SECONDS:g}"
        raise UserError(problem, EXIT_USAGE)
    return value


def requested_ranks(given: dict[str, str]) -> frozenset[int]:
    """Returns the ranks of --rank; empty selects all ranks."""
    return frozenset(_parse_number("--rank", text, 0, 0, 10**6) for text in given.get("rank", "").split(",") if text)


def _parse_number(flag: str, text: str | None, usual: int, least: int, most: int) -> int:
    if text is None:
        return usual
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and least <= int(text) <= most):
        raise UserError(f"{flag} {_excerpt(text)}: give a whole number from {least} to {most}", EXIT_USAGE)
    return int(text)


def _excerpt(text: str) -> str:
    from neurontools.util.terminal import error_excerpt

    return error_excerpt(text)
