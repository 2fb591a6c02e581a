"""`neuron-diag`: tests whether the Neuron devices of this host are good enough for a job.

Level 1 runs before each job of a cluster, so it must start fast, as `neuron-healthcheck` does.
"""

import os
import sys
from contextlib import ExitStack
from time import monotonic, time

from neurontools.cli.daemon.connection import ask_or_start_daemon
from neurontools.cli.line import (
    DEVICE_OPTION,
    END_CODES,
    FILES,
    HOST_OPTION_NAMES,
    HOST_OPTIONS,
    INFORMATION_OPTIONS,
    SIMULATE_OPTION,
    SOCKET_OPTION,
    DeviceSelection,
    Option,
    exclude_each_other,
    names_hosts,
    parse_options,
    print_information,
    seconds_option,
    whole_number,
    whole_option,
)
from neurontools.util import light_imports
from neurontools.util.command_lifecycle import run_command, write_text
from neurontools.util.errors import EXIT_USAGE, UserError

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, whose import takes several milliseconds
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

    from neurontools.diagnose.host_state import HostState
    from neurontools.diagnose.level2 import Peer
    from neurontools.diagnose.results import DiagReport, TestResult
    from neurontools.diagnose.table import DiagTest

OPTIONS = (
    Option(
        "level",
        "1 executes nothing on a device; 2 computes on free cores; 3 adds sustained load and links; default: 1",
        short="r",
        value="N",
    ),
    Option("test", "only these tests, of any level", value="NAMES", joins=True),
    DEVICE_OPTION,
    Option("duration", "how long the sustained load of level 3 lasts; default: 900", value="SECONDS"),
    Option(
        "timeout",
        "when to give up; default: 30 for level 1, 600 for level 2, and for level 3 the duration more",
        value="SECONDS",
    ),
    Option("json", "print the report as JSON", short="j"),
    Option("textfile", "also write metrics to this file, for the node exporter", value="FILE", completes=FILES),
    SOCKET_OPTION,
    SIMULATE_OPTION,
    *(option for option in HOST_OPTIONS if option.name in ("hosts", "hostfile", "slurm", "file-sd")),
    Option("peer", "transfer data to this host, as HOST:PORT or listen:ADDRESS; --hosts runs this", value="ADDRESS"),
    Option("list-tests", "print the tests, their levels and the faults that they find", ends=True),
    Option("json-schema", "print the JSON Schema of the report, after --hosts that of many hosts", ends=True),
    *INFORMATION_OPTIONS,
)
USAGE = "neuron-diag [--level N] [--test NAMES] [--device LIST] [options]"
SUMMARY = "Tests whether the Neuron devices of this host are good enough for a job."
NOTES = """\
Level 1 takes a second. It judges what the driver, the monitor daemon (neurond) and the environment say. Level 2 takes
minutes. It computes on free cores and checks the results; cores that others hold are not tested. Level 3 takes about 15
minutes more. It also trains, measures each link between devices, and keeps all free cores under load.
A pass is a statement on these tests only. On a simulated host, it says nothing about hardware.
With --hosts, neuron-diag runs on each host, reached by SSH, or on this one for unix:/path. The worst is printed first.
"""
VARIABLES = (("NEURONTOOLS_REMOTE_DIAG, NEURONTOOLS_SSH", "for --hosts; see neuron-diag(1)"),)
EXIT_CODES = (
    (0, "no test failed; warnings are possible"),
    (1, "a test failed: the host, or one of the hosts, is not good enough"),
    (2, "a test could not run or a host is lost, so the health is unknown, or an option is invalid"),
    *END_CODES,
)

_COMMAND = "neuron-diag"
_TIMEOUTS_SECONDS = {1: 30.0, 2: 600.0, 3: 600.0}  # of level 3 without its sustained load
_SUSTAINED_SECONDS = 900.0
_TIMEOUT_ACTION = "give more seconds with --timeout"
_LONGEST_TIMEOUT_SECONDS = 86_400.0
_PROVES_SIMULATED = "The host is simulated: a pass proves that the tests work, and nothing about hardware."
_PROVES_LEVEL_1 = "Nothing was executed: a pass proves that the driver and neurond report no problem."


class DiagTimeout(Exception):
    """The tests took longer than --timeout."""


def main() -> None:
    run_command(_COMMAND, _run_diag)


def _run_diag(arguments: list[str]) -> int:
    try:
        given = parse_options(OPTIONS, arguments)
        if print_information(_COMMAND, sys.modules[__name__], given) or _print_tables(given):
            return 0
        if not {"level", "test", *HOST_OPTION_NAMES} & given.keys():  # level 2 and many hosts need the real modules
            light_imports.install_dataclasses()
            with light_imports.LightEnum():
                from neurontools.diagnose import host_state, level1  # noqa: F401
        if names_hosts(given):
            return _run_on_hosts(given)
        return _Run(given).run()
    except UserError as error:
        # Exit code 1 means that a test failed, so an error needs another code.
        raise UserError(str(error), EXIT_USAGE) from error


def _print_tables(given: dict[str, str]) -> bool:
    if "json-schema" in given:
        from neurontools.cli.line import schema_text
        from neurontools.diagnose.document import DiagDocument

        if names_hosts(given):
            from neurontools.cli.diag.hosts import HostsDocument

            write_text(schema_text(HostsDocument, "neuron-diag --hosts --json"))
        else:
            write_text(schema_text(DiagDocument, "neuron-diag --json"))
    elif "list-tests" in given:
        from neurontools.diagnose.table import table_text

        write_text(table_text())
    else:
        return False
    return True


_PASSED_OPTIONS = ("level", "test", "device", "duration", "timeout")  # those that the command on each host gets


def _run_on_hosts(given: dict[str, str]) -> int:
    """Runs the command on each named host, and prints the results, the worst host first."""
    from neurontools.cli.daemon.fleet import requested_hosts
    from neurontools.cli.diag.host_links import measure_links
    from neurontools.cli.diag.hosts import exit_code, hosts_document, hosts_text, run_on_hosts
    from neurontools.diagnose.table import BETWEEN_HOSTS

    exclude_each_other(given, *HOST_OPTION_NAMES)
    name = next(each for each in HOST_OPTION_NAMES if each in given)
    for other in ("socket", "simulate", "textfile"):
        exclude_each_other(given, name, other)
    run = _Run(given)
    hosts = requested_hosts(given)
    passed = {name: given[name] for name in _PASSED_OPTIONS if name in given}
    if "test" in given:  # without another test, one tells whether the daemon answers
        passed["test"] = ",".join(name for name in run.test_names if name != BETWEEN_HOSTS) or "daemon"
    options = [f"--{name}={value}" for name, value in passed.items()]
    runs = run_on_hosts(hosts.places, options, run.timeout_seconds, _write_progress)
    ran = [each.host for each in runs if each.report is not None]
    linked = [host for host in hosts.places if host in ran]
    links = []
    if BETWEEN_HOSTS in run.test_names and len(linked) > 1:
        links = measure_links(linked, [f"--device={given['device']}"] if "device" in given else [])
    if "json" in given:
        from neurontools.util.formats import json_text

        write_text(json_text(hosts_document(runs, links, hosts.problems), indent=2) + "\n")
    else:
        for problem in hosts.problems:
            os.write(2, f"neuron-diag: {problem}\n".encode())
        write_text(hosts_text(runs, links))
    return exit_code(runs, links, hosts.problems)


class _Run:
    """One run of the command. Raises UserError for invalid options."""

    def __init__(self, given: dict[str, str]) -> None:
        from neurontools.diagnose.table import LEVELS

        exclude_each_other(given, "simulate", "socket")
        self._given = given
        self._tests = _named_tests(given, whole_option(given, "level", LEVELS[0], LEVELS[0], LEVELS[-1]))
        self._selection = DeviceSelection(given.get("device", ""))
        self._level = max(test.level for test in self._tests)
        self._sustained_seconds = seconds_option(
            given, "duration", _SUSTAINED_SECONDS, 0.0, _LONGEST_TIMEOUT_SECONDS / 2
        )
        longer_seconds = self._sustained_seconds if self._level == LEVELS[-1] else 0.0
        self.timeout_seconds = seconds_option(
            given, "timeout", _TIMEOUTS_SECONDS[self._level] + longer_seconds, 0.1, _LONGEST_TIMEOUT_SECONDS
        )
        self._timeout_reason = f"not done within {self.timeout_seconds:g} s"
        self.test_names = [test.name for test in self._tests]
        self._stack_name = ""
        self._proves = _PROVES_LEVEL_1
        self._results: list[TestResult] = []
        self._state: HostState | None = None
        if given.get("textfile", "x").endswith("/"):
            raise UserError("--textfile: give the name of a file, not of a directory", EXIT_USAGE)

    def run(self) -> int:
        """Runs the tests, prints the report and returns the exit code."""
        from _signal import ITIMER_REAL, SIGALRM, setitimer, signal  # type: ignore[import-not-found]

        from neurontools.diagnose.results import Outcome, TestResult, report_document, report_metrics, report_text

        began, began_at_unix_seconds = monotonic(), time()
        signal(SIGALRM, _raise_timeout)
        setitimer(ITIMER_REAL, self.timeout_seconds)
        try:
            with ExitStack() as stack:
                self._run_tests(stack)
        except DiagTimeout:
            done = {result.test for result in self._results}
            self._results += [
                TestResult(test.name, Outcome.NOT_RUN, self._timeout_reason, _TIMEOUT_ACTION)
                for test in self._tests
                if test.name not in done
            ]
        finally:
            setitimer(ITIMER_REAL, 0)
        report = self._report(began_at_unix_seconds, monotonic() - began)
        if "textfile" in self._given:
            _write_textfile(self._given["textfile"], report_metrics(report))
        if "json" in self._given:
            from neurontools.util.formats import json_text

            write_text(json_text(report_document(report), indent=2) + "\n")
        else:
            write_text(report_text(report))
        return report.exit_code

    def _run_tests(self, stack: ExitStack) -> None:
        from neurontools.diagnose.host_checks import CheckContext
        from neurontools.diagnose.level1 import run_host_tests
        from neurontools.diagnose.results import Outcome, TestResult
        from neurontools.driver.environment import Roots
        from neurontools.rpc.ask import NoDaemon, TimedOut

        try:
            state = self._state = ask_or_start_daemon(self._read_state, self._given, stack)
        except (NoDaemon, TimedOut) as error:
            self._results += [TestResult(test.name, Outcome.NOT_RUN, str(error)) for test in self._tests]
            return
        indices = self._selected_devices(state)
        context = CheckContext(os.environ, Roots.from_environment(os.environ), state.socket_path)
        for result in run_host_tests(state, context, self.test_names, indices):
            self._results.append(result)
        if any(test.level > 1 for test in self._tests):
            self._run_device_tests(state, indices)

    def _run_device_tests(self, state: "HostState", indices: list[int]) -> None:
        """Runs the tests that execute something, and marks failures on devices that have injected faults."""
        from dataclasses import replace

        from neurontools.diagnose.level2 import EXECUTING_TESTS, PROVES_LEVEL_2, DeviceTests
        from neurontools.diagnose.results import Outcome
        from neurontools.rpc import fault_calls

        peer = _peer(self._given["peer"]) if "peer" in self._given else None
        with DeviceTests(state.socket_path, indices, _write_progress, self._sustained_seconds, peer) as tests:
            found: list[TestResult] = []
            names = self.test_names
            if tests.stack_name is not None and not EXECUTING_TESTS.isdisjoint(names):
                self._stack_name, self._proves = tests.stack_name, PROVES_LEVEL_2
            try:
                for result in tests.run(names):
                    found.append(result)  # noqa: PERF402 - keeps the results before a timeout
            except DiagTimeout:
                found += tests.missing_results(names, found, self._timeout_reason, _TIMEOUT_ACTION)
            finally:
                _write_progress("")
                faulty: set[int] = set()
                if state.is_simulated and any(result.outcome is Outcome.FAIL for result in found):
                    faulty.update(*(fault.device_indices for fault in fault_calls.list_faults(state.socket_path)))
                self._results += [
                    replace(result, injected=result.outcome is Outcome.FAIL and result.device_index in faulty)
                    for result in found
                ]

    def _read_state(self, path: str) -> "HostState":
        """Returns the state from the daemon at this socket. Raises NoDaemon or TimedOut if none answers there."""
        from neurontools.diagnose.host_state import METHOD, read_host_state
        from neurontools.rpc.ask import ask

        reply = ask(path, METHOD, b"", self.timeout_seconds)
        try:
            return read_host_state(path, reply, time())
        except ValueError:
            raise UserError(f"the reply of unix:{path} holds no snapshot; is something else listening there?") from None

    def _selected_devices(self, state: "HostState") -> list[int]:
        """Returns the devices to test: those of --device, else all. Raises UserError for a device that is not here."""
        known = sorted({*state.expected_indices, *state.devices})
        if "device" not in self._given:
            return known
        by_name = {**state.index_by_bdf, **state.index_by_serial_number}
        chosen = sorted({*self._selection.indices, *self._selection.named_indices(by_name)})
        for index in chosen:
            if index not in known:
                raise UserError(f"--device: this host has no device {index}; it has {len(known)} devices", EXIT_USAGE)
        return chosen

    def _report_to_daemon(self) -> str:
        """Reports failed tests, and passed ones that failed earlier. Returns whether the daemon keeps findings."""
        from neurontools.diagnose.level1 import reportable_results
        from neurontools.model.finding import FindingKind

        state = self._state
        if state is None or state.health is None:
            return ""
        failed, passed = reportable_results(self._results)
        if not failed and not any(finding.kind == FindingKind.TEST_FAILED for finding in state.health.findings):
            return ""
        from neurontools.rpc.diagnosis_calls import report_diagnosis

        try:
            count = report_diagnosis(state.socket_path, self._level, failed, passed)
        except UserError as error:
            return f"neurond does not keep these results: {error}."
        if not count:
            return "neurond keeps no failed test any more."
        return "neurond keeps the failed tests as findings until a later run passes them, or it restarts."

    def _report(self, began_at_unix_seconds: float, seconds: float) -> "DiagReport":
        from neurontools.diagnose.results import DiagReport

        state = self._state
        return DiagReport(
            level=self._level,
            instance_type=None if state is None else state.instance_type,
            is_simulated=None if state is None else state.is_simulated,
            device_count=None if state is None else len(state.expected_indices),
            began_at_unix_seconds=began_at_unix_seconds,
            seconds=seconds,
            kept=self._report_to_daemon(),
            stack=self._stack_name,
            proves=_PROVES_SIMULATED if state is not None and state.is_simulated else self._proves,
            results=tuple(self._results),
        )


def _named_tests(given: dict[str, str], level: int) -> tuple["DiagTest", ...]:
    from neurontools.diagnose.table import TEST_NAMES, select_tests

    names = [name.strip() for name in given.get("test", "").split(",") if name.strip()]
    for name in names:
        if name not in TEST_NAMES:
            from neurontools.util.terminal import error_excerpt

            raise UserError(
                f"--test: {error_excerpt(name)} is none of the tests {', '.join(TEST_NAMES)}; give one", EXIT_USAGE
            )
    return select_tests(level, names)


def _peer(text: str) -> "Peer":
    """Parses `listen:ADDRESS` or `HOST:PORT`. Raises UserError for other texts."""
    from neurontools.diagnose.level2 import Peer

    address, _, port = text.rpartition(":")
    if address == "listen" and port:
        return Peer(port, None, _announce_port)
    if not address:
        raise UserError("--peer: give HOST:PORT or listen:ADDRESS", EXIT_USAGE)
    return Peer(address, whole_number("--peer", port, 1, 65535), _announce_port)


def _announce_port(port: int) -> None:
    """Tells `neuron-diag --hosts` the port before the report."""
    os.write(1, f'{{"listening": {port}}}\n'.encode())


def _write_progress(text: str) -> None:
    """Shows what runs now on the last line of the terminal; "" clears the line."""
    if os.isatty(2):
        os.write(2, f"\r\x1b[K{text and f'neuron-diag: {text}'}".encode())


def _write_textfile(path: str, text: str) -> None:
    """Replaces the file atomically, because the node exporter may read it at any time."""
    from neurontools.util.directory import Directory, split_file_path

    directory_path, name = split_file_path(path)
    try:
        with Directory.open(directory_path) as directory:
            directory.replace(name, text.encode())
    except OSError as error:
        from neurontools.util.terminal import error_excerpt

        raise UserError(
            f"--textfile {error_excerpt(path)}: {error.strerror}; give a file that can be written"
        ) from error


def _raise_timeout(_number: int, _frame: "FrameType | None") -> "NoReturn":
    raise DiagTimeout


if __name__ == "__main__":
    main()
