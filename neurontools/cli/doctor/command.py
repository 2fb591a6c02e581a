"""`neuron-doctor`: looks at everything, changes nothing."""

from __future__ import annotations

import os
import sys

from neurontools.cli.doctor import bundle, options
from neurontools.cli.doctor.check import Level, Place
from neurontools.cli.doctor.report import examination, report_json, report_text
from neurontools.cli.line import frame
from neurontools.cli.line.options import exclude_each_other, is_about_itself, parse
from neurontools.rpc import socket_path
from neurontools.util.errors import EXIT_FAILURE, EXIT_USAGE, UserError
from neurontools.util.terminal import excerpt

_COMMAND = "neuron-doctor"


def main() -> None:
    """Run the command and end the process."""
    frame.run(_COMMAND, _run)


def _run(arguments: list[str]) -> int:
    given = parse(options.OPTIONS, arguments)
    if is_about_itself(given):
        from neurontools.cli.line import about

        frame.write_text(about.text(_COMMAND, options, given))
        return 0
    exclude_each_other(given, "bundle", "json-output")
    if "yes" in given and "bundle" not in given:
        raise UserError("--yes is for --bundle; leave it out", EXIT_USAGE)
    place = Place.here(given.get("socket"))
    socket_path.configured_socket(place.socket, place.environment)  # refuses what can't be one
    checks = examination(place)
    if "bundle" in given:
        return _bundle(bundle.contents(checks, place), given)
    frame.write_text(report_json(checks) if "json-output" in given else report_text(checks))
    return EXIT_FAILURE if any(check.level is Level.PROBLEM for check in checks) else 0


def _bundle(files: dict[str, str], given: dict[str, str]) -> int:
    path = given["bundle"]
    shown = excerpt(path, 200)
    if not path.endswith((".tar.gz", ".tgz")):
        raise UserError(f"--bundle: {shown} does not end in .tar.gz; give a name that does", EXIT_USAGE)
    frame.write_text(bundle.listing(files, shown))
    if "yes" not in given and not _agrees():
        raise UserError(f"{shown} was not written; answer y, or pass --yes", EXIT_FAILURE)
    try:
        bundle.write(files, path)
    except OSError as error:
        raise UserError(f"{shown}: {error.strerror}; give another file", EXIT_FAILURE) from error
    frame.write_text(f"{shown} is written; look through it before you send it\n")
    return 0


def _agrees() -> bool:
    """Asks, where somebody is there to answer."""
    if not os.isatty(0):
        return False
    sys.stderr.write("Write it? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline(16).strip().lower() in ("y", "yes")


if __name__ == "__main__":
    main()
