"""What every command says about itself: --help, --version and --completion. Imported when one of them is asked for."""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, without its import
if TYPE_CHECKING:
    from typing import Any

    from neurontools.cli.line.options import Option


def text(command: str, page: Any, given: dict[str, str]) -> str:
    """What the first of them prints.

    `page` is what defines the command: OPTIONS, USAGE, SUMMARY, NOTES and EXIT_CODES, and ACTIONS where it has any.
    """
    if "help" in given:
        return help_text(page.USAGE, page.SUMMARY, page.OPTIONS, page.NOTES, page.EXIT_CODES)
    if "version" in given:
        from neurontools.util.version import __version__

        return f"{command} {__version__}\n"
    from neurontools.cli.line.completion import script

    return script(given["completion"], command, page.OPTIONS, getattr(page, "ACTIONS", ()))


def help_text(
    usage: str, summary: str, options: tuple[Option, ...], notes: str, exit_codes: tuple[tuple[int, str], ...]
) -> str:
    """The text of --help, ended by a newline."""
    left = [f"{', '.join(option.flags)}{' ' + option.value if option.value else ''}" for option in options]
    # Options without a short flag are indented to where the long ones begin.
    left = [text if option.short else "    " + text for text, option in zip(left, options, strict=True)]
    width = max(map(len, left)) + 2
    lines = []
    for text, option in zip(left, options, strict=True):
        lines.append(f"  {text:<{width}}{option.text}")
        if not all(word in option.text for word in option.words):
            lines.append(" " * (width + 2) + ", ".join(option.words))
    described = "\n".join(("Options:", *lines))
    return f"Usage: {usage}\n\n{summary}\n\n{described}\n\n{notes}\n{exit_code_text(exit_codes)}\n"


def exit_code_text(exit_codes: tuple[tuple[int, str], ...]) -> str:
    """The paragraph of --help on exit codes."""
    return "\n".join(("Exit codes:", *(f"  {code:<3}  {meaning}" for code, meaning in exit_codes)))
