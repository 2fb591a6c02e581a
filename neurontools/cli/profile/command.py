"""`neuron-profile`: shows, compares and captures profiles of training runs."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from neurontools.cli.line import exclude_each_other, information_text, parse_options, requests_information
from neurontools.cli.profile import options
from neurontools.profile.analysis.report import RunReport, build_report
from neurontools.util.command_lifecycle import run_command, write_document, write_stderr, write_text
from neurontools.util.errors import EXIT_FAILURE, EXIT_NOT_FOUND, EXIT_USAGE, UserError
from neurontools.util.terminal import escape_controls
from neurontools.util.units import bytes_text, ranges_text
from neurontools.views.profile_document import profile_csv_lines

if TYPE_CHECKING:
    from neurontools.profile import Profile


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
    content = profile_web_page(reading.report(where, options.requested_ranks(given))).encode("utf-8", "replace")
    if path == "-":
        write_document(content)
        return reading.exit_code
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        problem = f"--output {escape_controls(path[:200])}: {error.strerror}; name a file that can be written"
        raise UserError(problem, EXIT_FAILURE) from error
    write_stderr(f"neuron-profile: {path}: {bytes_text(len(content))}; open it in any browser")
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
        raise UserError(f"{shown}: {problem}; give a directory that neuron-run --profile wrote", EXIT_NOT_FOUND)
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
    given = parse_options(options.OPTIONS, arguments, words)
    if requests_information(given):
        write_text(information_text(_COMMAND, options, given))
        return 0
    if "json-schema" in given:
        write_text(_schema_text())
        return 0
    options.check_options(given, words)
    exclude_each_other(given, "json", "csv")
    action, *paths = words
    if action == "capture":
        from neurontools.cli.profile.capture import capture

        return capture(given)
    if action == "serve":
        run_viewer(paths[0], options.viewer_port(given))
    if action == "report":
        return write_html_report(paths[0], given)
    return _show_report(paths[0], given) if action == "show" else _show_difference(paths, given)


def _show_report(where: str, given: dict[str, str]) -> int:

    reading = ProfileLoader()
    report = reading.report(where, options.requested_ranks(given))
    if "json" in given:
        from neurontools.views.profile_document import profile_json

        write_text(profile_json(report) + "\n")
    elif "csv" in given:
        write_text("".join(profile_csv_lines(report, options.csv_table(given))))
    else:
        from neurontools.util.terminal import locale_is_utf8, terminal_size
        from neurontools.views.drawing.glyphs import ASCII, glyphs_for
        from neurontools.views.drawing.lines import ascii_only, plain_text
        from neurontools.views.profile_report import profile_page

        glyphs = glyphs_for(is_ascii="ascii" in given or not locale_is_utf8(), terminal=os.environ.get("TERM", ""))
        width = max(_LEAST_WIDTH, terminal_size(1, _USUAL_SIZE)[0])
        lines = profile_page(report, width, glyphs, options.max_rows(given)).lines
        if glyphs is ASCII:
            lines = [ascii_only(line) for line in lines]
        write_text("".join(f"{plain_text(line)}\n" for line in lines))
    return reading.exit_code


def _show_difference(paths: list[str], given: dict[str, str]) -> int:
    from neurontools.profile.analysis.comparison import compare
    from neurontools.views.profile_difference import profile_difference_json, profile_difference_text

    reading = ProfileLoader()
    reports = [reading.report(path, options.requested_ranks(given)) for path in paths]
    compared = compare(*reports)
    if "json" in given:
        write_text(profile_difference_json(paths, compared) + "\n")
    else:
        write_text(profile_difference_text(paths, compared, options.max_rows(given)))
    return reading.exit_code


def _schema_text() -> str:
    from pydantic import TypeAdapter

    from neurontools.util.formats import json_text
    from neurontools.views.profile_document import ProfileDocument

    schema = TypeAdapter(ProfileDocument).json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "neuron-profile show --json"
    return json_text(schema, indent=2) + "\n"


if __name__ == "__main__":
    main()
