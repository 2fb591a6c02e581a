"""Our commands: called in this process, which is cheap, or started as processes of their own."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, NoReturn, Protocol

import pytest

Done = subprocess.CompletedProcess[str]


class RunCommand(Protocol):
    def __call__(self, *arguments: str, **environment: str) -> Done: ...


class _Ended(BaseException):
    """The command ended with this exit code."""

    def __init__(self, code: int) -> None:
        self.code = code


def streams(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    """Standard output and standard error of a process that has pipes for them."""
    assert process.stdout is not None
    assert process.stderr is not None
    return process.stdout, process.stderr


def calls(command: str, base: Mapping[str, str]) -> RunCommand:
    """What calls `main` of a command in this process, in this environment and what a call adds to it.

    Standard input is empty. Not for what starts threads, sends signals to itself or writes to a pipe that closes.
    """

    def call(*arguments: str, **environment: str) -> Done:
        main = importlib.import_module(_module(command)).main
        return _call(main, [command, *arguments], {**base, **environment})

    return call


def call_main(main: Callable[[], Any], *arguments: str, cwd: Path | None = None, **environment: str) -> Done:
    """Calls `main` of a command in this process, in the environment of the tests and any directory."""
    with contextlib.chdir(cwd or Path.cwd()):
        return _call(main, ["command", *arguments], {**os.environ, **environment})


def _call(main: Callable[[], Any], arguments: list[str], environment: Mapping[str, str]) -> Done:
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        with _environment(environment), _standard_streams(output, errors), _patch() as patch:
            patch.setattr(sys, "argv", arguments)
            patch.setattr(tempfile, "tempdir", None)
            patch.setattr(os, "_exit", _end)
            patch.setattr(os, "execv", _refuse)
            with _restored_handlers():
                code = _exit_code(main)
        return Done(arguments, code, _text(output), _text(errors))


def _module(command: str) -> str:
    others = {
        "neurond": "neurond.__main__",
        "neuron-fleet-sim": "neurond.fleet.command",
        "neuron-monitor-prometheus": "neurontools.cli.monitor.prometheus",
        "nccom-test": "neurontools.cli.nccom.command",
    }
    if command in others:
        return others[command]
    return f"neurontools.cli.{command.removeprefix('neuron-')}.command"


_patch = pytest.MonkeyPatch.context


def _end(code: int) -> NoReturn:
    raise _Ended(code)


def _refuse(program: str, _arguments: object) -> NoReturn:
    raise AssertionError(f"the command becomes another program, {program}; run it as a process")


def _exit_code(main: Callable[[], Any]) -> int:
    try:
        main()
    except _Ended as end:
        return end.code
    raise AssertionError("the command did not end")


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode()


@contextlib.contextmanager
def _restored_handlers() -> Iterator[None]:
    before = {
        number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    time.tzset()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        time.tzset()


@contextlib.contextmanager
def _standard_streams(output: BinaryIO, errors: BinaryIO) -> Iterator[None]:
    """Has what is written to standard output and standard error, by descriptor or by Python, go to these files."""
    with Path(os.devnull).open("rb") as empty, contextlib.ExitStack() as stack:
        for number, file in enumerate((empty, output, errors)):
            saved = os.dup(number)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, number)
            os.dup2(file.fileno(), number)
        patch = stack.enter_context(_patch())
        for name, number in (("stdout", 1), ("stderr", 2)):
            patch.setattr(sys, name, stack.enter_context(open(number, "w", encoding="utf-8", closefd=False)))
        yield
