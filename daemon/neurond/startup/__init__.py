"""The first stage of the daemon: flags and configuration become validated settings."""

from __future__ import annotations

import argparse
from typing import NoReturn

from neurontools.util.command_lifecycle import write_text
from neurontools.util.errors import EXIT_USAGE, UserError


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser that reports an error in one line, with a pointer to --help."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help", EXIT_USAGE)

    def print_help(self, file: object = None) -> None:  # noqa: ARG002
        write_text(self.format_help())
