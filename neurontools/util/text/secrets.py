"""Which variables of an environment are secrets, as far as that can be seen: what is shown is shown to shoulders too.

When in doubt a value is hidden: it can be looked up otherwise, and a picture of a screen can't be taken back.
"""

from __future__ import annotations

import re

HIDDEN = "(hidden)"

_NAME = re.compile(
    r"TOKEN|SECRET|PASS(?:WD|WORD|PHRASE|CODE)|(?:^|_)(?:PASS|PW|PWD|PAT|PIN|DSN|SAS)(?:_|$)|CREDENTIAL|CREDS|COOKIE|"
    r"(?:^|_)AUTH(?:$|_(?!SOCK))|AUTHORIZATION|BEARER|SESSION|SIGNATURE|(?:^|_)SALT(?:_|$)|JWT|OAUTH|WEBHOOK|"
    r"(?:^|_)KEYS?(?:$|_)|APIKEY|ACCESSKEY|PRIVATEKEY|KEYRING|CONNECTION_?STRING|LICEN[CS]E|(?:^|_)CERT(?:$|_)",
    re.IGNORECASE,
)
_PLAIN_NAMES = frozenset({"PWD", "OLDPWD"})
_VALUE = re.compile(
    r"(?:^|[^A-Za-z0-9])(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{12,}|gh[opsur]_[A-Za-z0-9]{16}|github_pat_|glpat-|"
    r"\bhf_[A-Za-z0-9]{16}|\bsk-[A-Za-z0-9_-]{12}|xox[abeoprs]-|\bAIza[A-Za-z0-9_-]{20}|\bya29\.|\bnpm_[A-Za-z0-9]{20}|"
    r"\beyJ[A-Za-z0-9_-]{8,}\.|-----BEGIN|\b(?:bearer|basic)\s+\S|[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@|"
    r"(?:token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key|signature|credential)s?[\"']?\s*[=:]",
    re.IGNORECASE,
)
_RANDOM = re.compile(r"[A-Za-z0-9+/=_.-]{24,}")
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]{32,}")


def shown_value(name: str, value: str) -> str:
    """The value of a variable as it may be shown: itself, or HIDDEN."""
    if name in _PLAIN_NAMES or not value:
        return value
    return HIDDEN if _NAME.search(name) or is_secret(value) else value


def is_secret(value: str) -> bool:
    """Whether a value looks like a token, a password or a key."""
    if _VALUE.search(value):
        return True
    return any(_is_random(word) for word in re.split(r"[\s,;:&?'\"@]+", value))


def _is_random(word: str) -> bool:
    """Long, not shaped like a path or a version, with letters of both cases and digits; or all hexadecimal."""
    if _HEXADECIMAL.fullmatch(word):
        return True
    if not _RANDOM.fullmatch(word) or word.count("/") > 1 or word.startswith(("/", ".", "-")):
        return False
    kinds = (str.isupper, str.islower, str.isdigit)
    return all(any(map(kind, word)) for kind in kinds) and word.count(".") + word.count("-") + word.count("_") < 3
