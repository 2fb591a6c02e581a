"""`neuron-profile`: shows, compares and captures profiles of training runs."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from neurontools.cli.line import (
    END_CODES,
    FILES,
    SOCKET_OPTION,
    Option,
    exclude_each_other,
    parse_options,
    print_information,
    schema_text,
    seconds_option,
    whole_number,
    whole_option,
    word_option,
)
from neurontools.profile.analysis.report import RunReport, build_report
from neurontools.rpc.profile_protocol import LONGEST_SECONDS, MOST_STEPS
from neurontools.util.command_lifecycle import run_command, write_document, write_stderr, write_text
from neurontools.util.errors import EXIT_FAILURE, EXIT_NOT_FOUND, EXIT_USAGE, UserError
from neurontools.util.terminal import error_excerpt, escape_controls
from neurontools.util.units import iec_bytes_text, ranges_text
from neurontools.views.profile_document import CSV_TABLES, profile_csv_lines

if TYPE_CHECKING:
    from neurontools.profile import Profile


ACTIONS = ("show", "report", "diff", "export", "serve", "capture")
USAGE = """neuron-profile show DIR [options]
       neuron-profile report DIR -o FILE.html
       neuron-profile diff DIR_A DIR_B [options]
       neuron-profile export DIR [-o DIR]
       neuron-profile serve DIR [--port PORT]
       neuron-profile capture --pid PID | --job NAME [--seconds S] [--steps N] [-o DIR]"""
SUMMARY = (
    "Shows a profile of a training run: the time of its steps, its operators, graphs and memory.\n"
    "DIR is a directory that neuron-run --profile DIR script.py wrote, or a file of one worker in it."
)
OPTIONS = (
    Option("help", "print this help", short="h", ends=True),
    Option("version", "print the version", short="V", ends=True),
    Option("json", "show, diff: one JSON document"),
    Option("csv", "show: a table as CSV, with a header"),
    Option("table", "show: which table --csv prints", value="TABLE", words=CSV_TABLES),
    Option("top", "show, diff: how many rows a table has at most (10)", short="n", value="ROWS"),
    Option("rank", "show, report, diff: only this rank; again for several", short="r", value="RANK", joins=True),
    Option("ascii", "show: draw with ASCII characters alone"),
    Option(
        "output",
        "report: the file to write, - is standard output; export, capture: the directory to write to",
        short="o",
        value="FILE",
        completes=FILES,
    ),
    Option("port", "serve: the port of the viewer (6006)", value="PORT"),
    Option("pid", "capture: profile this running process; again for several", short="p", value="PID", joins=True),
    Option("job", "capture: profile all processes of this job, by a part of its name", value="NAME"),
    Option("seconds", "capture: for so many seconds (5; with --steps 60)", short="s", value="SECONDS"),
    Option("steps", "capture: for so many whole steps, if they take no longer than --seconds", value="N"),
    Option("max-size", "capture: refuse more data than this, all processes together (256)", value="MIB"),
    SOCKET_OPTION,
    Option("json-schema", "print the JSON Schema of the document of show", ends=True),
    Option(
        "completion", "print the completion script for a shell", value="SHELL", words=("bash", "zsh", "fish"), ends=True
    ),
)
NOTES = """export writes the files for viewers of a run that did not write them, because it was killed.
serve starts xprof or TensorBoard. If neither is installed, it prints how to install one.
capture profiles a running process of yours without stopping it. neuron-ls shows the PIDs.
"""
EXIT_CODES = (
    (0, "success"),
    (1, "an option is unknown, a profile is invalid or incomplete, or an operation failed"),
    (2, "an option has an invalid value, or an argument is missing"),
    (4, "this user may not read the profile, or not profile the process"),
    (6, "the directory, profile, rank, process, job or viewer does not exist"),
    (12, "no daemon answers"),
    (124, "the daemon, or the process, did not answer in time"),
    *END_CODES,
)
_OPTIONS_BY_ACTION = {
    "show": ("json", "csv", "table", "top", "rank", "ascii"),
    "report": ("output", "rank"),
    "diff": ("json", "top", "rank"),
    "export": ("output",),
    "serve": ("port",),
    "capture": ("pid", "job", "seconds", "steps", "max-size", "output", "socket"),
}
_PATH_COUNTS = {"show": 1, "report": 1, "diff": 2, "export": 1, "serve": 1, "capture": 0}
_PATHS = ("no directory", "one directory", "two directories")
_DEFAULT_ROWS = 10
_MOST_ROWS = 100_000
_DEFAULT_PORT = 6006
_HIGHEST_PORT = 65535
_HIGHEST_PID = 2**31 - 1
_DEFAULT_SECONDS, _STEPS_SECONDS = 5.0, 60.0
_DEFAULT_SIZE_MIB, _LARGEST_SIZE_MIB = 256, 1024
SHORTEST_SECONDS = 0.01


def check_options(given: dict[str, str], words: list[str]) -> None:
    """Raises UserError for an unknown action, or for options or paths that the action does not take."""
    action, *paths = words or [""]
    if action not in ACTIONS:
        problem = f"there is no action {error_excerpt(action)}" if action else "no action given"
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
    whole_option(given, "max-size", None, 1, _LARGEST_SIZE_MIB)
    requested_steps(given)
    csv_table(given)
    max_rows(given)
    requested_ranks(given)
    viewer_port(given)


def csv_table(given: dict[str, str]) -> str:
    return word_option(given, "table", CSV_TABLES, CSV_TABLES[0])


def max_rows(given: dict[str, str]) -> int:
    return whole_option(given, "top", _DEFAULT_ROWS, 1, _MOST_ROWS)


def viewer_port(given: dict[str, str]) -> int:
    return whole_option(given, "port", _DEFAULT_PORT, 1, _HIGHEST_PORT)


def requested_pids(given: dict[str, str]) -> list[int]:
    """Returns the PIDs of --pid without duplicates."""
    numbers = [whole_number("--pid", text, 1, _HIGHEST_PID) for text in given.get("pid", "").split(",") if text]
    return list(dict.fromkeys(numbers))


def requested_steps(given: dict[str, str]) -> int | None:
    """Returns the maximum number of steps of a capture; None for no limit."""
    return whole_option(given, "steps", None, 1, MOST_STEPS)


def requested_seconds(given: dict[str, str]) -> float:
    usual = _STEPS_SECONDS if "steps" in given else _DEFAULT_SECONDS
    return seconds_option(given, "seconds", usual, SHORTEST_SECONDS, LONGEST_SECONDS)


def requested_ranks(given: dict[str, str]) -> frozenset[int]:
    """Returns the ranks of --rank; empty selects all ranks."""
    return frozenset(whole_number("--rank", text, 0, 10**6) for text in given.get("rank", "").split(",") if text)


@dataclass(slots=True)
class ProfileLoader:
    """Loads profiles and writes their errors to standard error. `exit_code` is 1 after an error."""

    exit_code: int = 0

    def report(self, where: str, ranks: frozenset[int]) -> RunReport:
        """Returns the report on a profile file, or on the latest run in a directory.

        `ranks` selects ranks; empty selects all. Skips unreadable files with a message. Raises UserError if no file is
        readable or a selected rank is missing.
        """
        from neurontools.profile.analysis.report import latest_run
        from neurontools.profile.reader import profile_paths, read_profile

        paths = profile_paths(where)
        profiles: list[Profile] = []
        failures: list[UserError] = []
        for path in paths:
            try:
                profiles.append(read_profile(path))
            except UserError as error:
                failures.append(error)
        if not profiles:
            raise failures[0]
        for failure in failures:
            self._report_error(str(failure))
        found, profiles = len(profiles), latest_run(profiles)
        if found > len(profiles):
            older = f"{found - len(profiles)} profile(s) of earlier runs are left out; name a file to see that one"
            write_stderr(f"neuron-profile: {escape_controls(where[:200])}: {older}")
        missing = ranks - {each.metadata.rank for each in profiles}
        if missing:
            there = ranges_text(each.metadata.rank for each in profiles)
            problem = f"no profile of rank {ranges_text(missing)}; it has those of rank {there}"
            raise UserError(f"{escape_controls(where[:200])}: {problem}", EXIT_NOT_FOUND)
        run_report = build_report([each for each in profiles if not ranks or each.metadata.rank in ranks])
        for rank in run_report.ranks:
            if rank.incomplete_reason:
                self._report_error(
                    f"{escape_controls(where[:200])}: the profile of rank {rank.number} {rank.incomplete_reason}"
                )
        return run_report

    def _report_error(self, text: str) -> None:
        write_stderr(f"neuron-profile: {text}")
        self.exit_code = EXIT_FAILURE


def write_html_report(where: str, given: dict[str, str]) -> int:
    """Writes the report as HTML. Returns exit code 1 if a profile is incomplete."""
    from neurontools.views.profile_web_page import profile_web_page

    path = given.get("output")
    if path is None:
        raise UserError("report needs -o FILE.html; - is standard output", EXIT_USAGE)
    reading = ProfileLoader()
    content = profile_web_page(reading.report(where, requested_ranks(given))).encode("utf-8", "replace")
    if path == "-":
        write_document(content)
        return reading.exit_code
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        problem = f"--output {escape_controls(path[:200])}: {error.strerror}; name a file that can be written"
        raise UserError(problem, EXIT_FAILURE) from error
    write_stderr(f"neuron-profile: {path}: {iec_bytes_text(len(content))}; open it in any browser")
    return reading.exit_code


def export_profiles(where: str, given: dict[str, str]) -> int:
    """Writes the files for viewers of the latest run in a directory. Keeps the files of workers that have them.

    Prints the paths of new files. Returns exit code 1 if a profile is incomplete.
    """
    from neurontools.profile.formats.outputs import has_outputs, run_name, write_outputs, write_ranks

    reading = ProfileLoader()
    profiles = reading.report(where, frozenset()).profiles
    run = run_name(min(profile.metadata.began_ns for profile in profiles))
    source = Path(where)
    directory = Path(given.get("output") or (source if source.is_dir() else source.parent))
    missing = [profile for profile in profiles if not has_outputs(profile.metadata, directory)]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        paths = [path for profile in missing for path in write_outputs(profile, directory, run)]
        if missing and len(profiles) > 1:
            paths.append(write_ranks(profiles, directory))
    except OSError as error:
        shown = escape_controls(str(directory))[:200]
        problem = f"{shown}: {error.strerror}; give another directory with -o, or free space"
        raise UserError(problem, EXIT_FAILURE) from error
    write_text("".join(f"{escape_controls(str(path))}\n" for path in paths))
    if not missing:
        write_stderr(f"neuron-profile: {escape_controls(where[:200])}: all files for viewers exist already")
    return reading.exit_code


_PLUGIN = ("plugins", "profile")  # subdirectory of the log directory that xprof and TensorBoard read


def run_viewer(where: str, port: int) -> NoReturn:
    """Replaces this process by xprof, or by TensorBoard if xprof is not installed.

    Searches PATH and the directory of the Python interpreter, because the virtual environment may not be activated.
    Raises UserError if the directory has no profiles or no viewer is installed.
    """
    shown = escape_controls(where[:200])
    directory = Path(where)
    if not directory.is_dir():
        raise UserError(
            f"{shown}: there is no such directory; give one that neuron-run --profile wrote", EXIT_NOT_FOUND
        )
    if not any(directory.joinpath(*_PLUGIN).glob("*/*.xplane.pb")):
        problem = f"no {'/'.join(_PLUGIN)}/*/*.xplane.pb in it"
        raise UserError(f"{shown}: {problem}; give a directory that neuron-profile export wrote", EXIT_NOT_FOUND)
    own = Path(sys.executable).parent
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), str(own)))
    for name, arguments, remark in (
        (
            "xprof",
            ("server", "--logdir", where, "--port", str(port), "--grpc_port", str(_find_free_port())),
            " (it listens on all addresses)",
        ),
        ("tensorboard", ("--logdir", where, "--port", str(port), "--host", "127.0.0.1"), ""),
    ):
        program = shutil.which(name, path=path)
        if program is not None:
            write_stderr(f"neuron-profile: {name} at http://127.0.0.1:{port}/{remark}, until it is interrupted")
            os.execv(program, (name, *arguments))  # noqa: S606 - a program that the user installed
    raise UserError("neither xprof nor tensorboard is installed; pip install xprof, then try again", EXIT_NOT_FOUND)


def _find_free_port() -> int:
    """Returns a free port for xprof's gRPC server, because two instances cannot share the default port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


_COMMAND = "neuron-profile"
_LEAST_WIDTH = 60
_USUAL_SIZE = (140, 50)


def main() -> None:
    run_command(_COMMAND, _run_profile)


def _run_profile(arguments: list[str]) -> int:
    words: list[str] = []
    given = parse_options(OPTIONS, arguments, words)
    if print_information(_COMMAND, sys.modules[__name__], given):
        return 0
    if "json-schema" in given:
        from neurontools.views.profile_document import ProfileDocument

        write_text(schema_text(ProfileDocument, "neuron-profile show --json"))
        return 0
    check_options(given, words)
    exclude_each_other(given, "json", "csv")
    action, *paths = words
    if action == "capture":
        from neurontools.cli.profile.capture import capture

        most_bytes = whole_option(given, "max-size", _DEFAULT_SIZE_MIB, 1, _LARGEST_SIZE_MIB) << 20
        return capture(given, requested_pids(given), requested_seconds(given), requested_steps(given), most_bytes)
    if action == "serve":
        run_viewer(paths[0], viewer_port(given))
    if action == "report":
        return write_html_report(paths[0], given)
    if action == "export":
        return export_profiles(paths[0], given)
    return _show_report(paths[0], given) if action == "show" else _show_difference(paths, given)


def _show_report(where: str, given: dict[str, str]) -> int:
    reading = ProfileLoader()
    report = reading.report(where, requested_ranks(given))
    if "json" in given:
        from neurontools.views.profile_document import profile_json

        write_text(profile_json(report) + "\n")
    elif "csv" in given:
        write_text("".join(profile_csv_lines(report, csv_table(given))))
    else:
        from neurontools.util.terminal import locale_is_utf8, terminal_size
        from neurontools.views.drawing.glyphs import ASCII, glyphs_for
        from neurontools.views.drawing.lines import ascii_only, plain_text
        from neurontools.views.profile_report import profile_page

        glyphs = glyphs_for(is_ascii="ascii" in given or not locale_is_utf8(), terminal=os.environ.get("TERM", ""))
        width = max(_LEAST_WIDTH, terminal_size(1, _USUAL_SIZE)[0])
        lines = profile_page(report, width, glyphs, max_rows(given)).lines
        if glyphs is ASCII:
            lines = [ascii_only(line) for line in lines]
        write_text("".join(f"{plain_text(line)}\n" for line in lines))
    return reading.exit_code


def _show_difference(paths: list[str], given: dict[str, str]) -> int:
    from neurontools.profile.analysis.comparison import compare
    from neurontools.views.profile_difference import profile_difference_json, profile_difference_text

    reading = ProfileLoader()
    reports = [reading.report(path, requested_ranks(given)) for path in paths]
    compared = compare(*reports)
    if "json" in given:
        write_text(profile_difference_json(paths, compared) + "\n")
    else:
        write_text(profile_difference_text(paths, compared, max_rows(given)))
    return reading.exit_code


if __name__ == "__main__":
    main()
