"""What every command says about itself: --help, --version and --completion."""

from __future__ import annotations

from neurontools.cli.line.options import help_text

TYPE_CHECKING = False  # as typing has it, without its import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def about(command: str, page: Any) -> dict[str, Callable[[str], str]]:
    """What --help, --version and --completion print, by option name; each takes the option's value.

    `page` is what defines the command: OPTIONS, USAGE, SUMMARY and NOTES.
    """

    def shown_help(_value: str) -> str:
        return help_text(page.USAGE, page.SUMMARY, page.OPTIONS, page.NOTES)

    def version(_value: str) -> str:
        from neurontools.version import __version__

        return f"{command} {__version__}\n"

    def completion(shell: str) -> str:
        from neurontools.cli.line.completion import script

        return script(shell, command, page.OPTIONS)

    return {"help": shown_help, "version": version, "completion": completion}
