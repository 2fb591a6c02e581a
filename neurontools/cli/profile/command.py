"""`neuron-profile`: what the profile of a training run tells, in the terminal, as a page, beside another one."""

from __future__ import annotations

import os

from neurontools.cli.line import frame
from neurontools.cli.line.frame import write_text
from neurontools.cli.line.options import exclude_each_other, is_about_itself, parse
from neurontools.cli.profile import options

_COMMAND = "neuron-profile"
_LEAST_WIDTH = 60
_USUAL_SIZE = (140, 50)


def main() -> None:
    """Run the command and end the process."""
    frame.run(_COMMAND, _run)


def _run(arguments: list[str]) -> int:
    words: list[str] = []
    given = parse(options.OPTIONS, arguments, words)
    if is_about_itself(given):
        from neurontools.cli.line import about

        write_text(about.text(_COMMAND, options, given))
        return 0
    if "json-schema" in given:
        write_text(_schema_text())
        return 0
    options.check(given, words)
    exclude_each_other(given, "json", "csv")
    action, *paths = words
    if action == "capture":
        from neurontools.cli.profile import capture

        return capture.capture(given)
    if action == "serve":
        from neurontools.cli.profile import viewer

        viewer.serve(paths[0], options.port(given))
    if action == "report":
        from neurontools.cli.profile import report_file

        return report_file.write(paths[0], given)
    return _show(paths[0], given) if action == "show" else _diff(paths, given)


def _show(where: str, given: dict[str, str]) -> int:
    from neurontools.cli.profile.reading import Reading

    reading = Reading()
    report = reading.report(where, options.ranks(given))
    if "json" in given:
        from neurontools.views.profile_document import profile_json

        write_text(profile_json(report) + "\n")
    elif "csv" in given:
        from neurontools.views.profile_document import profile_csv_lines

        write_text("".join(profile_csv_lines(report, options.table(given))))
    else:
        from neurontools.util.terminal import locale_is_utf8, terminal_size
        from neurontools.views.drawing.glyphs import ASCII, glyphs_for
        from neurontools.views.drawing.lines import ascii_only, plain_text
        from neurontools.views.profile_report import profile_page

        glyphs = glyphs_for(is_ascii="ascii" in given or not locale_is_utf8(), terminal=os.environ.get("TERM", ""))
        width = max(_LEAST_WIDTH, terminal_size(1, _USUAL_SIZE)[0])
        lines = profile_page(report, width, glyphs, options.rows(given)).lines
        if glyphs is ASCII:
            lines = [ascii_only(line) for line in lines]
        write_text("".join(f"{plain_text(line)}\n" for line in lines))
    return reading.exit_code


def _diff(paths: list[str], given: dict[str, str]) -> int:
    from neurontools.cli.profile.reading import Reading
    from neurontools.profile.analysis.comparison import compare
    from neurontools.views.profile_difference import profile_difference_json, profile_difference_text

    reading = Reading()
    reports = [reading.report(path, options.ranks(given)) for path in paths]
    compared = compare(*reports)
    if "json" in given:
        write_text(profile_difference_json(paths, compared) + "\n")
    else:
        write_text(profile_difference_text(paths, compared, options.rows(given)))
    return reading.exit_code


def _schema_text() -> str:
    """The JSON Schema of the document."""
    from pydantic import TypeAdapter

    from neurontools.util.formats import json_text
    from neurontools.views.profile_document import ProfileDocument

    schema = TypeAdapter(ProfileDocument).json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "neuron-profile show --json"
    return json_text(schema, indent=2) + "\n"


if __name__ == "__main__":
    main()
