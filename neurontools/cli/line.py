"""Command-line options from a table: one definition for parsing, help and completion.

The parser is our own, because `import argparse` takes longer than a whole one-shot command.
"""

from __future__ import annotations

from neurontools.rpc import socket_path
from neurontools.util.command_lifecycle import exit_code_text, write_text
from neurontools.util.errors import EXIT_FAILURE, EXIT_NOT_FOUND, EXIT_USAGE, UserError

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, whose import takes several milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeVar

    T = TypeVar("T")

FILES = "files"  # as the value of Option.completes: completes paths
INSTANCE_TYPES = "instance types"  # as the value of Option.completes: completes instance types
INTERVAL_SECONDS = (0.05, 3600.0)  # shortest and longest refresh interval in seconds
_BETWEEN = "\0"  # separates two values of one option; no program argument can contain NUL


class Option:
    """One command-line option.

    `value` is the placeholder of the option's value in --help; an option whose `value` has two words takes two values.
    With `joins`, the values of a repeated option are joined by commas; otherwise the last value counts. With `ends`,
    parsing stops after this option. Shell completion offers `words` as values, or the paths or instance types that
    `completes` selects. `variable` is an environment variable with the default of the option.
    """

    __slots__ = ("aliases", "completes", "ends", "joins", "name", "short", "text", "value", "variable", "words")

    def __init__(
        self,
        name: str,
        text: str,
        *,
        short: str = "",
        aliases: tuple[str, ...] = (),
        value: str = "",
        words: tuple[str, ...] = (),
        completes: str = "",
        joins: bool = False,
        ends: bool = False,
        variable: str = "",
    ) -> None:
        self.name = name
        self.text = text
        self.short = short
        self.aliases = aliases
        self.value = value
        self.words = words
        self.completes = completes
        self.joins = joins
        self.ends = ends
        self.variable = variable

    @property
    def flags(self) -> tuple[str, ...]:
        """All flags of the option, the short flag first."""
        short = (f"-{self.short}",) if self.short else ()
        return (*short, f"--{self.name}", *(f"--{alias}" for alias in self.aliases))


def parse_options(options: tuple[Option, ...], arguments: list[str], words: list[str] | None = None) -> dict[str, str]:
    """Returns the value of each given option by name; "" for an option that takes no value.

    Appends arguments that are no options to `words`, and refuses them if `words` is None. Raises UserError with exit
    code 1 for an unknown flag, as the original tools do, and exit code 2 for other usage errors.
    """
    by_flag = {flag: option for option in options for flag in option.flags}
    given: dict[str, str] = {}
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        if argument == "--" and (words is not None or position == len(arguments)):
            if words is not None:
                words += arguments[position:]
            break
        if words is not None and not _is_flag(argument):
            words.append(argument)
            continue
        if argument == "--" or not argument.startswith("-") or argument == "-":
            raise UserError(f"unexpected argument {_excerpt(argument)}; all choices are flags, see --help", EXIT_USAGE)
        flag, value, rest = _split_flag(argument)
        option = by_flag.get(flag)
        if option is None:
            raise UserError(f"unknown flag {_excerpt(flag)}{_suggestion(flag, by_flag)}; see --help", EXIT_FAILURE)
        if option.value:
            value_count = len(option.value.split())
            values = [] if value is None else [value]
            while len(values) < value_count and position < len(arguments) and not _is_flag(arguments[position]):
                values.append(arguments[position])
                position += 1
            if len(values) < value_count or not all(values):
                value_text = "a value" if value_count == 1 else f"{value_count} values"
                raise UserError(f"{flag} needs {value_text}: {flag} {option.value}", EXIT_USAGE)
            value = _BETWEEN.join(values)
            joined = option.joins and option.name in given
            given[option.name] = f"{given[option.name]},{value}" if joined else value
        else:
            if value is not None and not rest:
                raise UserError(f"{flag} takes no value; leave {_excerpt(value)} out", EXIT_USAGE)
            given[option.name] = ""
            if rest:
                arguments = [*arguments[:position], f"-{rest}", *arguments[position:]]
        if option.ends:
            break
    return given


def two_values(given: str) -> tuple[str, str]:
    """Splits the stored value of an option that takes two values."""
    first, _, second = given.partition(_BETWEEN)
    return first, second


def whole_number(flag: str, text: str, least: int, most: int | None = None) -> int:
    """Parses a whole number. Raises UserError if the text is invalid or the number is outside `least` to `most`."""
    if text.isascii() and text.isdigit() and len(text) <= 18:
        number = int(text)
        if least <= number and (most is None or number <= most):
            return number
    limit = "" if most is None else f" to {most}"
    raise UserError(f"{flag} {_excerpt(text)}: give a whole number from {least}{limit}", EXIT_USAGE)


def whole_option(given: Mapping[str, str], name: str, default: T, least: int, most: int | None = None) -> int | T:
    """Returns the value of an option as a whole number; `default` if not given. Raises UserError if it is invalid."""
    return whole_number(f"--{name}", given[name], least, most) if name in given else default


def seconds_option(given: Mapping[str, str], name: str, default: T, least: float, most: float) -> float | T:
    """Returns the value of an option in seconds; `default` if not given. Raises UserError if it is invalid."""
    if name not in given:
        return default
    try:
        seconds = float(given[name].removesuffix("s"))
    except ValueError:
        seconds = -1.0
    if not least <= seconds <= most:  # NaN fails too
        shown = _excerpt(given[name])
        raise UserError(f"--{name} {shown}: give seconds from {least:.15g} to {most:.15g}", EXIT_USAGE)
    return seconds


def word_option(given: Mapping[str, str], name: str, words: tuple[str, ...], default: T) -> str | T:
    """Returns the value of an option; `default` if not given. Raises UserError if the value is not in `words`."""
    if name not in given:
        return default
    if given[name] not in words:
        raise UserError(f"--{name} {_excerpt(given[name])}: give one of {', '.join(words)}", EXIT_USAGE)
    return given[name]


def exclude_each_other(given: dict[str, str], *names: str) -> None:
    """Raises UserError if more than one of the options `names` is given."""
    found = [f"--{name}" for name in names if name in given]
    if len(found) > 1:
        raise UserError(f"{' and '.join(found)} exclude each other; give one of them", EXIT_USAGE)


def _split_flag(argument: str) -> tuple[str, str | None, str]:
    """Splits an argument such as `--a=b`, `-d0`, `-d=0` or `-wat` into flag, value and further short flags."""
    if argument.startswith("--"):
        flag, equals, value = argument.partition("=")
        return flag, value if equals else None, ""
    rest = argument[2:]
    if rest.startswith("="):
        return argument[:2], rest[1:], ""
    return argument[:2], rest or None, rest


def _is_flag(argument: str) -> bool:
    return len(argument) > 1 and argument.startswith("-")


def _suggestion(flag: str, options: dict[str, Option]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(flag, options, n=1, cutoff=0.7) if flag.startswith("--") else []
    return f" (did you mean {near[0]}?)" if near else ""


def _excerpt(text: str) -> str:
    from neurontools.util.terminal import error_excerpt

    return error_excerpt(text)


HIGHEST_INDEX = 1023  # highest accepted device index, far above any host's: it bounds a mistyped range
_HEXADECIMAL = frozenset("0123456789abcdef")
_SERIAL_NUMBER_DIGITS = 16  # the driver prints 64 bits; an index has at most 5 digits
_BDF_PARTS = ((4, 8), (2, 2), (2, 2), (1, 1))  # fewest and most digits of domain, bus, device, function


class DeviceSelection:
    """The devices that --device selects: indices, PCI addresses and serial numbers.

    `names` has the addresses in the kernel's form, `0000:10:1c.0`, and the serial numbers in the driver's form.
    """

    __slots__ = ("indices", "names")

    def __init__(self, text: str) -> None:
        self.indices: list[int] = []
        self.names: list[str] = []
        for part in text.split(",") if text else ():
            entry = part.strip()
            name = _normalized_bdf(entry) or _normalized_serial_number(entry)
            if name:
                self.names.append(name)
            else:
                self.indices += _index_range(entry)

    @property
    def has_serial_numbers(self) -> bool:
        return not all(map(_is_bdf, self.names))

    def named_indices(self, index_of: Mapping[str, int]) -> list[int]:
        """Returns the indices of the selected names. Raises UserError if `index_of` lacks a name."""
        for name in self.names:
            if name not in index_of:
                is_bdf = _is_bdf(name)
                kind, wanted = ("PCI addresses", "at") if is_bdf else ("serial numbers", "with serial number")
                known = ", ".join(sorted(each for each in index_of if _is_bdf(each) == is_bdf))
                names = known or "none known; give an index"
                raise UserError(f"no device {wanted} {name} on this host; its {kind}: {names}", EXIT_NOT_FOUND)
        return [index_of[name] for name in self.names]


def _is_bdf(name: str) -> bool:
    return ":" in name


def _index_range(entry: str) -> list[int]:
    low, dash, high = (piece.strip() for piece in entry.partition("-"))
    if not (_is_index(low) and (_is_index(high) if dash else True)):
        example = "give indices, ranges or PCI addresses such as 0,2-3 or 0000:10:1c.0, or serial numbers"
        raise UserError(f"--device: {_excerpt(entry)} is no device; {example}", EXIT_USAGE)
    first, last = int(low), int(high if dash else low)
    if last < first:
        raise UserError(f"--device: the range {first}-{last} runs backwards; write {last}-{first}", EXIT_USAGE)
    return list(range(first, last + 1))


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= HIGHEST_INDEX


def _normalized_bdf(entry: str) -> str | None:
    """Returns a PCI address in the kernel's form; None if the text is no address. A missing domain becomes 0000."""
    parts = entry.lower().replace(".", ":").split(":")
    if len(parts) == 3:
        parts.insert(0, "0000")
    if len(parts) != 4 or entry.count(".") != 1 or entry.rfind(":") > entry.find("."):
        return None
    for part, (fewest, most) in zip(parts, _BDF_PARTS, strict=True):
        if not fewest <= len(part) <= most or not _HEXADECIMAL.issuperset(part):
            return None
    return "{}:{}:{}.{}".format(*parts)


def _normalized_serial_number(entry: str) -> str | None:
    """Returns a serial number in the driver's form, 16 hexadecimal digits; None if the text is no serial number."""
    digits = entry.lower()
    return digits if len(digits) == _SERIAL_NUMBER_DIGITS and _HEXADECIMAL.issuperset(digits) else None


SOCKET_OPTION = Option(
    "socket",
    "use only the monitor daemon at this socket",
    value="PATH",
    completes=FILES,
    variable=socket_path.VARIABLE,
)
SIMULATE_OPTION = Option(
    "simulate",
    "use a simulated, idle host of this instance type; needs no daemon",
    value="TYPE",
    completes=INSTANCE_TYPES,
    variable=socket_path.SIMULATE_VARIABLE,
)
DEVICE_OPTION = Option(
    "device",
    "only these devices: indices, ranges, PCI addresses or serial numbers, such as 0,2-3 or 0000:10:1c.0",
    short="d",
    value="LIST",
    joins=True,
)
SERVE_CONFIG_OPTION = Option(
    "serve-config",
    "a TOML file with the access rules of --serve, and what readers see",
    value="FILE",
    completes=FILES,
)

HOST_OPTION_NAMES = ("hosts", "hostfile", "slurm", "file-sd", "prometheus")
"""Names of the options that name hosts. A command accepts only one of them."""

HOST_OPTIONS = (
    Option(
        "hosts",
        "many hosts by SSH: names, lists as trn[1-4,7], grpcs://host:port, or unix:/path of a socket",
        value="LIST",
        joins=True,
    ),
    Option(
        "hostfile",
        "many hosts: a file with a host name, and optionally its address, on each line",
        value="FILE",
        completes=FILES,
    ),
    Option("slurm", "many hosts by SSH: those of this Slurm job", value="JOBID"),
    Option(
        "file-sd", "many hosts by SSH: those of a JSON file of targets of Prometheus", value="FILE", completes=FILES
    ),
    Option("prometheus", "many hosts, read from the Prometheus server at this address", value="URL"),
    Option(
        "prometheus-config",
        "with --prometheus: a TOML file that names the files with token, password, certificates",
        value="FILE",
        completes=FILES,
    ),
)


TLS_OPTIONS = (
    Option("tls-cert", "for grpcs://: the certificate to show, a PEM file", value="FILE", completes=FILES),
    Option("tls-key", "for grpcs://: the key of the certificate", value="FILE", completes=FILES),
    Option(
        "tls-ca", "for grpcs://: the authority that signs the certificates of daemons", value="FILE", completes=FILES
    ),
)

INFORMATION_OPTIONS = (
    Option("completion", "print a completion script for this shell", value="SHELL", words=("bash", "zsh", "fish")),
    Option("version", "print the version", ends=True),
    Option("help", "print this text", short="h", ends=True),
)

END_CODES = ((70, "a defect of the command"), (130, "interrupted"))
"""The last rows of each command's table of exit codes."""


def names_hosts(given: dict[str, str]) -> bool:
    return any(name in given for name in HOST_OPTION_NAMES)


def refuse_without_hosts(given: dict[str, str], *names: str) -> None:
    """Raises UserError if one of the options `names` is given without an option that names hosts."""
    if "prometheus-config" in given and "prometheus" not in given:
        raise UserError("--prometheus-config needs --prometheus URL, such as http://prometheus:9090", EXIT_USAGE)
    for name in names:
        if name in given and not names_hosts(given):
            raise UserError(f"--{name} is for many hosts; name them, as with --hosts, or leave it out", EXIT_USAGE)


def print_information(command: str, page: Any, given: dict[str, str]) -> bool:
    """Prints the text of the first of --help, --version and --completion that is given. Returns False without any.

    `page` is the module of the command. It defines OPTIONS, USAGE, SUMMARY, NOTES, EXIT_CODES, and optionally ACTIONS
    and VARIABLES: the names and texts of further environment variables.
    """
    if "help" in given:
        write_text(
            help_text(
                page.USAGE, page.SUMMARY, page.OPTIONS, page.NOTES, page.EXIT_CODES, *getattr(page, "VARIABLES", ())
            )
        )
    elif "version" in given:
        from neurontools.util.version import __version__

        write_text(f"{command} {__version__}\n")
    elif "completion" in given:
        write_text(completion_script(given["completion"], command, page.OPTIONS, getattr(page, "ACTIONS", ())))
    else:
        return False
    return True


def schema_text(document_type: Any, title: str) -> str:
    from pydantic import TypeAdapter

    from neurontools.util.formats import json_text

    schema = TypeAdapter(document_type).json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = title
    return json_text(schema, indent=2) + "\n"


def help_text(
    usage: str,
    summary: str,
    options: tuple[Option, ...],
    notes: str,
    exit_codes: tuple[tuple[int, str], ...],
    *variables: tuple[str, str],
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
    rows = [*((option.variable, f"as --{option.name}") for option in options if option.variable), *variables]
    width = max((len(name) for name, _ in rows), default=0)
    environment = "\n".join(("Environment:", *(f"  {name:<{width}}  {text}" for name, text in rows), "", ""))
    return (
        f"Usage: {usage}\n\n{summary}\n\n{described}\n\n{notes}\n"
        f"{environment if rows else ''}{exit_code_text(exit_codes)}\n"
    )


def completion_script(shell: str, command: str, options: tuple[Option, ...], actions: tuple[str, ...] = ()) -> str:
    """Returns the completion script for a shell. Raises UserError for an unknown shell.

    `actions` are the possible first arguments; paths may follow them.
    """
    write = _SCRIPTS_BY_SHELL.get(shell)
    if write is None:
        shells = ", ".join(_SCRIPTS_BY_SHELL)
        raise UserError(f"--completion: {_excerpt(shell)} is none of the shells {shells}; give one", EXIT_USAGE)
    return write(command, options, actions)


def _completion_words(option: Option) -> tuple[str, ...]:
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
            names, offer = "", f'-W "{" ".join(_completion_words(option))}"'
            if option.completes == FILES:
                names, offer = "compopt -o filenames 2>/dev/null; ", "-f"
            cases.append(f'        {flags}) {names}mapfile -t COMPREPLY < <(compgen {offer} -- "$cur"); return ;;')
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
            words = " ".join(_completion_words(option))
            value = " -r -F" if option.completes == FILES else f" -r -a '{words}'" if words else " -r"
        text = option.text.replace("\\", "\\\\").replace("'", "\\'")
        lines.append(f"complete -c {command} {short}{names}{value} -d '{text}'")
    return "\n".join(lines) + "\n"


_SCRIPTS_BY_SHELL = {"bash": _bash, "zsh": _zsh, "fish": _fish}
