"""The first stage of the daemon: flags and configuration become validated settings."""

from __future__ import annotations

import argparse
from typing import NoReturn

from neurontools.cli.line import FILES, INFORMATION_OPTIONS, Option, completion_script
from neurontools.util.command_lifecycle import write_text
from neurontools.util.errors import EXIT_USAGE, UserError


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser that reports an error in one line, with a pointer to --help, and has --completion."""

    def add_completion(self) -> None:
        """Adds --completion. It knows only the options that the parser has when it is used."""
        self.add_argument("--completion", metavar="SHELL", action=_Completion, help="print a completion script")

    def options(self) -> tuple[Option, ...]:
        """Returns the options as those of a completion script."""
        return tuple(
            Option(
                action.option_strings[-1].removeprefix("--"),
                (action.help or "").replace("%%", "%"),
                short=next((flag[1:] for flag in action.option_strings if not flag.startswith("--")), ""),
                value="" if action.nargs == 0 else str(action.metavar or action.dest).upper(),
                words=tuple(map(str, action.choices or ())),
                completes=FILES if action.metavar in _PATHS else "",
            )
            for action in self._actions
            if not isinstance(action, _Completion)
        ) + tuple(option for option in INFORMATION_OPTIONS if option.name == "completion")

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help", EXIT_USAGE)

    def print_help(self, file: object = None) -> None:  # noqa: ARG002
        write_text(self.format_help())


_PATHS = ("PATH", "FILE", "DIR", "SOCKET")


class _Completion(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        del namespace, option
        if isinstance(parser, CommandParser):
            write_text(completion_script(str(values), parser.prog, parser.options()))
        parser.exit()
