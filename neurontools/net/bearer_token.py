"""The bearer token of a server: reading it from its file, checking requests, and limiting wrong guesses by address."""

from __future__ import annotations

import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum, auto

from neurontools.net.secret_files import FileProblem, read_secret
from neurontools.net.tls import identities
from neurontools.util.errors import EXIT_USAGE, UserError
from neurontools.util.rate_limited_log import RateLimitedLogger

SHORTEST_TOKEN = 32  # characters; 32 hexadecimal digits have 128 bits
MOST_GUESSES = 10  # wrong tokens that an address may send at once
_SECONDS_PER_GUESS = 6.0  # an address may send another wrong token after this time
_TRUSTED_SECONDS = 3600.0  # an address that has sent the right token is not refused for this time
_MOST_ADDRESSES = 1024

_log = logging.getLogger(__name__)
_log_guess = RateLimitedLogger(_log, logging.WARNING)


class TokenCheck(Enum):
    """Result of checking a client's token."""

    ADMITTED = auto()
    MISSING = auto()
    WRONG = auto()
    TOO_MANY = auto()  # the address has sent too many wrong tokens, so this one was not compared


def read_token(setting: str, file: str) -> bytes:
    """Returns the token in a file. Raises FileProblem if others can read it, or it is too short."""
    token = read_secret(setting, file, "a token")
    if len(token) < SHORTEST_TOKEN:
        raise FileProblem(
            f"{setting}: {file}: the token has {len(token)} characters; write at least {SHORTEST_TOKEN}, "
            "such as the output of: openssl rand -hex 32"
        )
    return token.encode()


class BearerToken:
    """The token that clients of a server must send. It is read again when its file changes.

    `setting` is the name of the setting of the file, for messages. The constructor raises UserError for an unusable
    file. For one thread only.
    """

    def __init__(self, file: str, setting: str, now: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._setting = setting
        self._guesses = GuessLimiter(now)
        self._read_at = identities(file)
        try:
            self._token = read_token(setting, file)
        except FileProblem as problem:
            raise UserError(str(problem), EXIT_USAGE) from None

    def check(self, given: str | None, client: str) -> TokenCheck:
        """Checks the token that a client at an address sent, None for none. Logs wrong tokens."""
        if not given:
            return TokenCheck.MISSING
        if self._guesses.is_refused(client):
            return TokenCheck.TOO_MANY
        if hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token):
            self._guesses.trust(client)
            return TokenCheck.ADMITTED
        count = self._guesses.record_wrong(client)
        _log_guess("%s: a client at %s sent a wrong token; it was number %d", self._setting, client, count)
        return TokenCheck.WRONG

    def signature(self, text: str) -> str:
        """Returns the HMAC of a text, with the token as the key."""
        return hmac.new(self._token, text.encode(), "sha256").hexdigest()

    def reload(self) -> None:
        """Reads the file again if it has changed. If it is unusable, the old token stays in use."""
        changed_at = identities(self._file)
        if changed_at == self._read_at:
            return
        self._read_at = changed_at
        try:
            self._token = read_token(self._setting, self._file)
            _log.info("the token was read again")
        except FileProblem as problem:
            _log.warning("%s; the old contents stay in use", problem)


class GuessLimiter:
    """Limits the wrong guesses of each address, with a token bucket for each.

    An address that guessed right in the last hour is never refused, so that a neighbour behind the same address cannot
    shut out a scraper. Forgets the addresses of the oldest events first.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._wrong: OrderedDict[str, tuple[float, float, int]] = OrderedDict()  # guesses left, time, number of wrong
        self._trusted_at: OrderedDict[str, float] = OrderedDict()

    def is_refused(self, client: str) -> bool:
        trusted_at = self._trusted_at.get(client)
        if trusted_at is not None and self._now() - trusted_at < _TRUSTED_SECONDS:
            return False
        return self._guesses_left(client) < 1

    def trust(self, client: str) -> None:
        """Records a right guess."""
        self._trusted_at[client] = self._now()
        self._trusted_at.move_to_end(client)
        _limit(self._trusted_at)

    def record_wrong(self, client: str) -> int:
        """Records a wrong guess. Returns the number of wrong guesses of this address."""
        left = max(0.0, self._guesses_left(client) - 1)
        count = self._wrong[client][2] + 1 if client in self._wrong else 1
        self._wrong[client] = (left, self._now(), count)
        self._wrong.move_to_end(client)
        _limit(self._wrong)
        return count

    def _guesses_left(self, client: str) -> float:
        if client not in self._wrong:
            return float(MOST_GUESSES)
        left, at_seconds, _ = self._wrong[client]
        return min(MOST_GUESSES, left + (self._now() - at_seconds) / _SECONDS_PER_GUESS)


def _limit(addresses: OrderedDict[str, float] | OrderedDict[str, tuple[float, float, int]]) -> None:
    while len(addresses) > _MOST_ADDRESSES:
        addresses.popitem(last=False)
