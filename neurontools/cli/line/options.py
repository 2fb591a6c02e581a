"""Command-line options from a table: one definition for parsing, help and completion.

By hand, because `import argparse` costs more than a whole one-shot command.
"""

from neurontools.util.errors import EXIT_FAILURE, EXIT_USAGE, UserError

FILES = "files"  # Option.completes: paths
_BETWEEN = "\0"  # two values of one option; no argument of a program has this in it
INSTANCE_TYPES = "instance types"  # Option.completes: the types of the catalog


class Option:
    """One option; with `value`, the name of its value in help, it takes one; of two names, two (`two_values`).

    `joins`: given again, its values are joined by commas; else the last counts. `ends`: nothing after it is read.
    `words` and `completes` say what a shell may offer as the value.
    """

    __slots__ = ("aliases", "completes", "ends", "joins", "name", "short", "text", "value", "words")

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

    @property
    def flags(self) -> tuple[str, ...]:
        """All its spellings, the short one first."""
        short = (f"-{self.short}",) if self.short else ()
        return (*short, f"--{self.name}", *(f"--{alias}" for alias in self.aliases))


def parse(options: tuple[Option, ...], arguments: list[str], words: "list[str] | None" = None) -> dict[str, str]:
    """What was given, by the option's name; the text is empty for options without a value.

    What is no option is added to `words`, by commands that take any. Raises UserError: exit 1 for an unknown flag, as
    the original tools do, 2 for any other misuse.
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
            raise UserError(f"unexpected argument {_shown(argument)}; all choices are flags, see --help", EXIT_USAGE)
        flag, value, rest = _split(argument)
        option = by_flag.get(flag)
        if option is None:
            raise UserError(f"unknown flag {_shown(flag)}{_suggestion(flag, by_flag)}; see --help", EXIT_FAILURE)
        if option.value:
            wanted = len(option.value.split())
            values = [] if value is None else [value]
            while len(values) < wanted and position < len(arguments) and not _is_flag(arguments[position]):
                values.append(arguments[position])
                position += 1
            if len(values) < wanted or not all(values):
                what = "a value" if wanted == 1 else f"{wanted} values"
                raise UserError(f"{flag} needs {what}: {flag} {option.value}", EXIT_USAGE)
            value = _BETWEEN.join(values)
            joined = option.joins and option.name in given
            given[option.name] = f"{given[option.name]},{value}" if joined else value
        else:
            if value is not None and not rest:
                raise UserError(f"{flag} takes no value; leave {_shown(value)} out", EXIT_USAGE)
            given[option.name] = ""
            if rest:
                arguments = [*arguments[:position], f"-{rest}", *arguments[position:]]
        if option.ends:
            break
    return given


def two_values(given: str) -> tuple[str, str]:
    """Both values of an option that takes two."""
    first, _, second = given.partition(_BETWEEN)
    return first, second


def is_about_itself(given: dict[str, str]) -> bool:
    """Whether it was asked for what `about.text` tells."""
    return "help" in given or "version" in given or "completion" in given


def exclude_each_other(given: dict[str, str], *names: str) -> None:
    """UserError when more than one of these options was given."""
    found = [f"--{name}" for name in names if name in given]
    if len(found) > 1:
        raise UserError(f"{' and '.join(found)} exclude each other; give one of them", EXIT_USAGE)


def _split(argument: str) -> tuple[str, str | None, str]:
    """Flag, value behind it, and for short flags what may be further ones: `--a=b`, `-d0`, `-d=0`, `-wat`."""
    if argument.startswith("--"):
        flag, equals, value = argument.partition("=")
        return flag, value if equals else None, ""
    rest = argument[2:]
    if rest.startswith("="):
        return argument[:2], rest[1:], ""
    return argument[:2], rest or None, rest


def _is_flag(argument: str) -> bool:
    return len(argument) > 1 and argument.startswith("-")


def _suggestion(flag: str, known: dict[str, Option]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(flag, known, n=1, cutoff=0.7) if flag.startswith("--") else []
    return f" (did you mean {near[0]}?)" if near else ""


def _shown(text: str) -> str:
    from neurontools.util.terminal import error_excerpt

    return error_excerpt(text)
