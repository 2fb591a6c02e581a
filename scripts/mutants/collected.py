"""A process in which pytest has collected all tests. Each trial is a fork of it, so that a trial costs only its tests.

The fork changes the code of the live functions of the mutated module. Processes that a test starts import the mutant
from the tree.
"""

from __future__ import annotations

import marshal
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import NoReturn

import pytest
from live_code import ChangedCode, change_code, live_functions

_CPU_FACTOR, _CPU_SECONDS = 5.0, 8.0  # the limit of a test: its CPU time times this factor, plus these seconds


class CollectedTests:
    """The process. Its trials become children of the calling process, which must be a subreaper."""

    def __init__(self, directory: Path, run_pytest: Callable[[object], NoReturn]) -> None:
        """`run_pytest` runs pytest in a fork, on all tests and with the given plugin. It never returns."""
        self._request_file = directory / "request"
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.fork()
        if self._pid == 0:
            self._socket.close()
            run_pytest(_TrialServer(theirs, self._request_file))
        theirs.close()

    def wait_until_collected(self) -> None:
        """Waits for the end of the collection, which would import a mutant that is in the tree."""
        self._socket.recv(1)

    def start(
        self, tests: Mapping[str, float], failures: Path, *, stops_at_first: bool, path: Path, changed: ChangedCode
    ) -> int:
        """Starts a trial of these tests and returns its PID. It writes the names of failed tests to `failures`.

        `tests` has the CPU seconds of each test without a mutant. SIGXCPU ends a trial that needs far more.
        `changed` is the code of the mutant for the functions of the module at `path`, and empty without a mutant.
        """
        request = {
            "tests": dict(tests),
            "failures": str(failures),
            "stops_at_first": stops_at_first,
            "path": str(path),
            "changed": changed,
        }
        self._request_file.write_bytes(marshal.dumps(request))
        self._socket.send(b"x")
        answer = self._socket.recv(20)
        if not answer:
            raise RuntimeError("the process with the collected tests has ended")
        return int(answer)

    def close(self) -> None:
        """Ends the process. A closed socket would not, because later processes have a copy of it."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._socket.close()


class _TrialServer:
    """The pytest plugin that forks a trial for each request, instead of running all tests."""

    def __init__(self, requests: socket.socket, request_file: Path) -> None:
        self._socket, self._request_file = requests, request_file

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Serves until the socket is closed."""
        from tests.harness.loaded_interpreter import fork_orphan  # of the tree whose tests were collected

        items = {item.nodeid: item for item in session.items}
        functions = live_functions()
        self._socket.send(b"x")
        while self._socket.recv(1):
            pid = fork_orphan(lambda ready: self._run(ready, session, items, functions))
            self._socket.send(pid)
        os._exit(0)

    def _run(
        self,
        ready: socket.socket,
        session: pytest.Session,
        items: Mapping[str, pytest.Item],
        functions: Mapping[str, list[FunctionType]],
    ) -> NoReturn:
        code = 70
        try:
            os.setpgid(0, 0)
            ready.close()
            self._socket.close()
            request = marshal.loads(self._request_file.read_bytes())
            change_code(functions.get(request["path"], ()), request["changed"])
            selected = [items[name] for name in request["tests"] if name in items]
            failures = FailureRecorder(Path(request["failures"]))
            session.config.pluginmanager.register(failures)
            for item, following in zip(selected, [*selected[1:], None], strict=True):
                _limit_cpu_time(request["tests"][item.nodeid])
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if failures.count and request["stops_at_first"]:
                    break
            code = 1 if failures.count else 0
        finally:
            os._exit(code)


def _limit_cpu_time(usual_seconds: float) -> None:
    limit_seconds = time.process_time() + _CPU_SECONDS + _CPU_FACTOR * usual_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit_seconds) + 1, resource.RLIM_INFINITY))


class FailureRecorder:
    """A pytest plugin that writes the names of failed tests, one per line."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self.count = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Writes the name of a test with a failed phase."""
        self._record(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Writes the name of a test file that can't be imported."""
        self._record(report)

    def _record(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and report.nodeid:
            self.count += 1
            with self._output.open("a", encoding="utf-8") as file:
                file.write(report.nodeid + "\n")
