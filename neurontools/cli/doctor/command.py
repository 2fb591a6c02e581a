"""`neuron-doctor`: checks the host without changing it, and writes support bundles."""

from __future__ import annotations

import os
import sys

from neurontools.cli.doctor import bundle
from neurontools.cli.doctor.checks import report_json, report_text, run_examinations
from neurontools.cli.line import (
    END_CODES,
    FILES,
    INFORMATION_OPTIONS,
    SOCKET_OPTION,
    Option,
    exclude_each_other,
    parse_options,
    print_information,
)
from neurontools.diagnose.host_checks import CheckContext, CheckLevel
from neurontools.driver.environment import Roots
from neurontools.rpc import socket_path
from neurontools.util.command_lifecycle import run_command, write_text
from neurontools.util.errors import EXIT_FAILURE, EXIT_USAGE, UserError
from neurontools.util.terminal import excerpt

_COMMAND = "neuron-doctor"
OPTIONS = (
    Option("json-output", "print what was found as JSON", short="j", aliases=("json",)),
    Option(
        "bundle",
        "write a redacted support bundle to this file, after listing its contents",
        value="FILE.tar.gz",
        completes=FILES,
    ),
    Option("yes", "with --bundle: write it without asking", short="y"),
    SOCKET_OPTION,
    *INFORMATION_OPTIONS,
)
USAGE = "neuron-doctor [options]"
SUMMARY = "Checks the Neuron tools, driver and daemon of this host, and says what to do about problems."
NOTES = "Nothing is changed and no device is opened.\n"
EXIT_CODES = (
    (0, "no check found a problem, or the bundle was written"),
    (1, "a check found a problem, an option is unknown, or the bundle could not be written"),
    (2, "an option has an invalid value"),
    *END_CODES,
)


def main() -> None:
    run_command(_COMMAND, _run)


def _run(arguments: list[str]) -> int:
    given = parse_options(OPTIONS, arguments)
    if print_information(_COMMAND, sys.modules[__name__], given):
        return 0
    exclude_each_other(given, "bundle", "json-output")
    if "yes" in given and "bundle" not in given:
        raise UserError("--yes needs --bundle", EXIT_USAGE)
    if "bundle" in given and not given["bundle"].endswith((".tar.gz", ".tgz")):
        shown = excerpt(given["bundle"], 200)
        raise UserError(f"--bundle: {shown} does not end in .tar.gz; give a name that does", EXIT_USAGE)
    place = CheckContext(os.environ, Roots.from_environment(os.environ), given.get("socket"))
    socket_path.configured_socket(place.socket, place.environment)  # raises UserError for an invalid socket path
    checks = run_examinations(place)
    if "bundle" in given:
        return _write_bundle_if_confirmed(bundle.bundle_contents(checks, place), given)
    write_text(report_json(checks) if "json-output" in given else report_text(checks))
    return EXIT_FAILURE if any(check.level is CheckLevel.PROBLEM for check in checks) else 0


def _write_bundle_if_confirmed(files: dict[str, str], given: dict[str, str]) -> int:
    path = given["bundle"]
    shown = excerpt(path, 200)
    write_text(bundle.bundle_listing(files, shown))
    if "yes" not in given and not _user_confirms():
        raise UserError(f"{shown} was not written; answer y, or pass --yes", EXIT_FAILURE)
    try:
        bundle.write_bundle(files, path)
    except OSError as error:
        raise UserError(f"{shown}: {error.strerror}; give the name of a new file", EXIT_FAILURE) from error
    write_text(f"{shown} is written; review it before you send it\n")
    return 0


def _user_confirms() -> bool:
    """Asks the user for confirmation. Returns False if standard input is no terminal."""
    if not os.isatty(0):
        return False
    sys.stderr.write("Write it? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline(16).strip().lower() in ("y", "yes")


if __name__ == "__main__":
    main()
