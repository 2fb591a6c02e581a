"""Texts that --help, --version and --completion print. Imported only for these options."""

from __future__ import annotations

from neurontools.cli.line.options import FILES, INSTANCE_TYPES, Option
from neurontools.util.command_lifecycle import exit_code_text
from neurontools.util.errors import EXIT_USAGE, UserError

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, whose import takes several milliseconds
if TYPE_CHECKING:
    from typing import Any


def information_text(command: str, page: Any, given: dict[str, str]) -> str:
    """Returns the text that --help, --version or --completion prints; the first of them that is given counts.

    `page` is the module of the command. It defines OPTIONS, USAGE, SUMMARY, NOTES, EXIT_CODES and optionally ACTIONS.
    """
    if "help" in given:
        return help_text(page.USAGE, page.SUMMARY, page.OPTIONS, page.NOTES, page.EXIT_CODES)
    if "version" in given:
        from neurontools.util.version import __version__

        return f"{command} {__version__}\n"

    return completion_script(given["completion"], command, page.OPTIONS, getattr(page, "ACTIONS", ()))


def help_text(
    usage: str, summary: str, options: tuple[Option, ...], notes: str, exit_codes: tuple[tuple[int, str], ...]
) -> str:
    left = [f"{', '.join(option.flags)}{' ' + option.value if option.value else ''}" for option in options]
    # Indents options without a short flag, so that all long flags are aligned.
    left = [text if option.short else "    " + text for text, option in zip(left, options, strict=True)]
    width = max(map(len, left)) + 2
    lines = []
    for text, option in zip(left, options, strict=True):
        lines.append(f"  {text:<{width}}{option.text}")
        if not all(word in option.text for word in option.words):
            lines.append(" " * (width + 2) + ", ".join(option.words))
    described = "\n".join(("Options:", *lines))
    return f"Usage: {usage}\n\n{summary}\n\n{described}\n\n{notes}\n{exit_code_text(exit_codes)}\n"


def completion_script(shell: str, command: str, options: tuple[Option, ...], actions: tuple[str, ...] = ()) -> str:
    """Returns the completion script for a shell. Raises UserError for an unknown shell.

    `actions` are the possible first arguments; paths may follow them.
    """
    write = _SCRIPTS_BY_SHELL.get(shell)
    if write is None:
        from neurontools.util.terminal import excerpt

        shells = ", ".join(_SCRIPTS_BY_SHELL)
        raise UserError(f"--completion: {excerpt(shell, 60)} is none of the shells {shells}; give one", EXIT_USAGE)
    return write(command, options, actions)


def _completion_words(option: Option) -> tuple[str, ...]:
    """Returns the values that completion offers for an option."""
    if option.completes == INSTANCE_TYPES:
        from neurontools import catalog

        return catalog.names()
    return option.words


def _bash(command: str, options: tuple[Option, ...], actions: tuple[str, ...]) -> str:
    function = "_" + command.replace("-", "_")
    cases = []
    for option in options:
        if option.value:
            flags = "|".join(option.flags)
            offer = (
                'compgen -f -- "$cur"'
                if option.completes == FILES
                else f'compgen -W "{" ".join(_completion_words(option))}" -- "$cur"'
            )
            names = "compopt -o filenames 2>/dev/null; " if option.completes == FILES else ""
            cases.append(f"        {flags}) {names}mapfile -t COMPREPLY < <({offer}); return ;;")
    flags = " ".join(flag for option in options for flag in option.flags)
    paths = []
    if actions:
        paths = [
            "    if (( COMP_CWORD == 1 )); then",
            f'        mapfile -t COMPREPLY < <(compgen -W "{" ".join(actions)} {flags}" -- "$cur")',
            "        return",
            "    fi",
            "    if [[ $cur != -* ]]; then",
            "        compopt -o filenames 2>/dev/null",
            '        mapfile -t COMPREPLY < <(compgen -f -- "$cur")',
            "        return",
            "    fi",
        ]
    return "\n".join(
        [
            f"# bash completion of {command}; use: source <({command} --completion bash)",
            f"{function}() {{",
            '    local cur=${COMP_WORDS[COMP_CWORD]} prev=""',
            "    (( COMP_CWORD > 0 )) && prev=${COMP_WORDS[COMP_CWORD-1]}",
            "    # bash splits --option=value at the equals sign",
            "    if [[ $cur == = ]]; then cur=",
            "    elif [[ $prev == = ]] && (( COMP_CWORD > 1 )); then prev=${COMP_WORDS[COMP_CWORD-2]}; fi",
            "    COMPREPLY=()",
            "    case $prev in",
            *cases,
            "    esac",
            *paths,
            f'    mapfile -t COMPREPLY < <(compgen -W "{flags}" -- "$cur")',
            "}",
            f"complete -F {function} {command}",
            "",
        ]
    )


def _zsh(command: str, options: tuple[Option, ...], actions: tuple[str, ...]) -> str:
    function = "_" + command
    arguments = []
    for option in options:
        text = option.text.replace("'", "'\\''").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
        value = ""
        if option.value:
            action = "_files" if option.completes == FILES else f"({' '.join(_completion_words(option))})"
            value = f":{option.value}:{action}"
        others = " ".join(option.flags)
        for flag in option.flags:
            mark = "" if not option.value else "=" if flag.startswith("--") else "+"
            exclusion = "*" if option.joins else f"({others})"
            arguments.append(f"    '{exclusion}{flag}{mark}[{text}]{value}'")
    if actions:
        arguments += [f"    '1:action:({' '.join(actions)})'", "    '*:path:_files'"]
    body = " \\\n".join(arguments)
    return (
        f"#compdef {command}\n"
        f"# zsh completion of {command}; use: source <({command} --completion zsh)\n"
        f"{function}() {{\n  _arguments -s \\\n{body}\n}}\n"
        f'if [ "$funcstack[1]" = "{function}" ]; then {function} "$@"; else compdef {function} {command}; fi\n'
    )


def _fish(command: str, options: tuple[Option, ...], actions: tuple[str, ...]) -> str:
    lines = [f"# fish completion of {command}; use: {command} --completion fish | source", f"complete -c {command} -f"]
    if actions:
        lines.append(f"complete -c {command} -n __fish_use_subcommand -a '{' '.join(actions)}'")
        lines.append(f"complete -c {command} -n 'not __fish_use_subcommand' -F")
    for option in options:
        names = f"-l {option.name}" + "".join(f" -l {alias}" for alias in option.aliases)
        short = f"-s {option.short} " if option.short else ""
        value = ""
        if option.value:
            offer = (
                " -F"
                if option.completes == FILES
                else f" -a '{' '.join(_completion_words(option))}'"
                if _completion_words(option)
                else ""
            )
            value = f" -r{offer}"
        text = option.text.replace("\\", "\\\\").replace("'", "\\'")
        lines.append(f"complete -c {command} {short}{names}{value} -d '{text}'")
    return "\n".join(lines) + "\n"


_SCRIPTS_BY_SHELL = {"bash": _bash, "zsh": _zsh, "fish": _fish}
