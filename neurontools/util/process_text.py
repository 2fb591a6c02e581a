"""Prepares processes for display: shortens command lines, and hides secrets in environment variables."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LONGEST_COMMAND = 4096
_INTERPRETERS = ("python", "pypy")
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")  # interpreter options whose value is the next argument
_LAUNCHERS = ("neurontools.runtime",)  # modules after `python -m` whose first argument is the script to run


def script_text(command: str) -> str:
    """Shortens a command line: `/opt/venv/bin/python3 -u /home/me/train.py --lr 0.1` to `train.py --lr 0.1`.

    For `python -m`, keeps the module and its arguments; for `python -c`, the code. For other programs, removes the
    directory. A path ends at its first space, so `/home/my dir/train.py` becomes `my dir/train.py`.
    """
    words = command[:_LONGEST_COMMAND].split()
    if not words or words[0].startswith("["):  # a name in brackets, of a kernel thread or a synthetic process
        return " ".join(words)
    script = _after_interpreter(words) if _is_interpreter(words[0]) else words
    return " ".join([_base(script[0]), *script[1:]]) if script else _base(words[0])


def script_name(arguments: Sequence[str]) -> str:
    """Returns the file name of a process's script or program, or its module; "" for an empty command line.

    For `python -c`, returns `python -c` without the code.
    """
    if not arguments or not arguments[0]:
        return ""
    script = _after_interpreter(arguments) if _is_interpreter(arguments[0]) else arguments
    if not script or not script[0]:
        return _base(arguments[0])
    return "python -c" if script[0] == "-c" else _base(script[0])


def _is_interpreter(word: str) -> bool:
    base = _base(word)
    return any(base.startswith(name) and not base[len(name) :].strip("0123456789.t") for name in _INTERPRETERS)


def _after_interpreter(words: Sequence[str]) -> list[str]:
    """Returns the script, module or `-c` code of a Python command line with its arguments; empty if it has none."""
    position = 1
    while position < len(words):
        word = words[position]
        if word == "-m" or word == "-c":
            following = list(words[position + 1 :])
            if word == "-m" and following and following[0] in _LAUNCHERS:
                return _after_interpreter(following)
            return following if word == "-m" else ["-c", *following]
        if not word.startswith("-"):
            return list(words[position:])
        position += 2 if word in _WITH_VALUE else 1
    return []


def _base(word: str) -> str:
    return word.rstrip("/").rpartition("/")[2] or word


HIDDEN = "(hidden)"

_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASS(?:WD|WORD|PHRASE|CODE)|(?:^|_)(?:PASS|PW|PWD|PAT|PIN|DSN|SAS)(?:_|$)|CREDENTIAL|CREDS|COOKIE|"
    r"(?:^|_)AUTH(?:$|_(?!SOCK))|AUTHORIZATION|BEARER|SESSION|SIGNATURE|(?:^|_)SALT(?:_|$)|JWT|OAUTH|WEBHOOK|"
    r"(?:^|_)KEYS?(?:$|_)|APIKEY|ACCESSKEY|PRIVATEKEY|KEYRING|CONNECTION_?STRING|LICEN[CS]E|(?:^|_)CERT(?:$|_)",
    re.IGNORECASE,
)
_PLAIN_SECRET_NAMES = frozenset({"PWD", "OLDPWD"})
_SECRET_VALUE = re.compile(
    r"(?:^|[^A-Za-z0-9])(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{12,}|gh[opsur]_[A-Za-z0-9]{16}|github_pat_|glpat-|"
    r"\bhf_[A-Za-z0-9]{16}|\bsk-[A-Za-z0-9_-]{12}|xox[abeoprs]-|\bAIza[A-Za-z0-9_-]{20}|\bya29\.|\bnpm_[A-Za-z0-9]{20}|"
    r"\beyJ[A-Za-z0-9_-]{8,}\.|-----BEGIN|\b(?:bearer|basic)\s+\S|[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@|"
    r"(?:token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key|signature|credential)s?[\"']?\s*[=:]",
    re.IGNORECASE,
)
_RANDOM = re.compile(r"[A-Za-z0-9+/=_.-]{24,}")
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]{32,}")


def shown_value(name: str, value: str) -> str:
    """Returns the value of an environment variable for display. A secret becomes HIDDEN."""
    if name in _PLAIN_SECRET_NAMES or not value:
        return value
    return HIDDEN if _SECRET_NAME.search(name) or is_secret(value) else value


def is_secret(value: str) -> bool:
    if _SECRET_VALUE.search(value):
        return True
    return any(_is_random(word) for word in re.split(r"[\s,;:&?'\"@]+", value))


def _is_random(word: str) -> bool:
    """Returns whether a word looks random: 32 or more hexadecimal digits, or 24 or more mixed characters.

    Mixed means upper-case, lower-case and digits. Words like paths or versions are excluded.
    """
    if _HEXADECIMAL.fullmatch(word):
        return True
    if not _RANDOM.fullmatch(word) or word.count("/") > 1 or word.startswith(("/", ".", "-")):
        return False
    kinds = (str.isupper, str.islower, str.isdigit)
    return all(any(map(kind, word)) for kind in kinds) and word.count(".") + word.count("-") + word.count("_") < 3
