"""What a command line runs: the script and its arguments, without the interpreter and the launcher before it."""

from __future__ import annotations

from itertools import islice

_MOST_CHARACTERS = 4096
_INTERPRETERS = ("python", "pypy")
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")  # options of the interpreter that take the next argument
_LAUNCHERS = ("neurontools.runtime",)  # modules that run a script, in the place of which they stand


def script_text(command: str) -> str:
    """`train.py --lr 0.1` for `/opt/venv/bin/python3 -u /home/me/train.py --lr 0.1`; others without their directory.

    Of a module the name is left, of `-c` the code. "" where nothing is known. A command line is words with spaces
    between them by now, so one whose paths have spaces in them is shown from its last directory on.
    """
    words = command[:_MOST_CHARACTERS].split()
    if not words or words[0].startswith("["):  # of the kernel, or invented
        return " ".join(words)
    script = _after_interpreter(words) if _is_interpreter(words[0]) else words
    return " ".join([_base(script[0]), *script[1:]]) if script else _base(words[0])


def _is_interpreter(word: str) -> bool:
    base = _base(word)
    return any(base.startswith(name) and not base[len(name) :].strip("0123456789.t") for name in _INTERPRETERS)


def _after_interpreter(words: list[str]) -> list[str]:
    """The words from the script, the module or the code on; [] where there is none."""
    position = 1
    while position < len(words):
        word = words[position]
        if word == "-m" or word == "-c":
            following = words[position + 1 :]
            if word == "-m" and following and following[0] in _LAUNCHERS:
                return _after_interpreter(following)
            return following if word == "-m" else ["-c", *following]
        if not word.startswith("-"):
            return list(islice(words, position, None))
        position += 2 if word in _WITH_VALUE else 1
    return []


def _base(word: str) -> str:
    return word.rstrip("/").rpartition("/")[2] or word
