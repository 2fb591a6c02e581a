"""Who may read the metrics: TLS, certificates of clients and a bearer token, from files that may be renewed.

The file of authorities alone is read once: a TLS context can't be told to trust one less.
"""

from __future__ import annotations

import hmac
import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neurond.settings import Settings
from neurontools.errors import EXIT_USAGE, UserError

_LONGEST_TOKEN_BYTES = 4096

_log = logging.getLogger(__name__)


class MetricsAccess:
    """What the settings ask of those who read the metrics; without any of it, nothing. UserError when a file is wrong.

    `context` is the TLS context, None for plain HTTP. It stays the same: a renewed certificate is loaded into it.
    """

    def __init__(self, settings: Settings) -> None:
        self._certificate = settings.metrics_tls_certificate
        self._key = settings.metrics_tls_key
        self._client_ca = settings.metrics_tls_client_ca
        self._token_file = settings.metrics_bearer_token_file
        self._token: bytes | None = None
        self.context: ssl.SSLContext | None = None
        if self._certificate is not None:
            self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._files = [file for file in (self._certificate, self._key, self._token_file) if file]
        self._read_at = self._changed_at()
        self._read()
        if self.context is not None and self._client_ca is not None:
            with _told("tls_client_ca", self._client_ca):
                self.context.load_verify_locations(self._client_ca)
            self.context.verify_mode = ssl.CERT_REQUIRED

    def admits(self, authorization: str) -> bool:
        """Whether a request with this Authorization header may read the metrics."""
        if self._token is None:
            return True
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), self._token)

    def renew(self) -> None:
        """Reads files that have changed; where that fails, what was known holds on."""
        changed_at = self._changed_at()
        if changed_at == self._read_at:
            return
        self._read_at = changed_at
        try:
            self._read()
            _log.info("certificates and token of the metrics were read again")
        except UserError as error:
            _log.warning("%s; what was there before holds on", error)

    def _read(self) -> None:
        if self.context is not None and self._certificate is not None:
            if self._key is not None:
                with _told("tls_key", self._key), Path(self._key).open("rb"):
                    pass
            with _told("tls_certificate", self._certificate):
                # First into another: a certificate and a key that don't fit would leave this one without either.
                for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
                    # Without the function OpenSSL would ask the terminal for the password of a key.
                    context.load_cert_chain(self._certificate, self._key, password=lambda: "")
        if self._token_file is not None:
            with _told("bearer_token_file", self._token_file), Path(self._token_file).open("rb") as opened:
                content = opened.read(_LONGEST_TOKEN_BYTES + 1)
            token = content.strip()
            if not token or len(content) > _LONGEST_TOKEN_BYTES or not token.isascii():
                raise UserError(
                    f"neurond: metrics.bearer_token_file: {self._token_file}: no token; write one line of ASCII",
                    EXIT_USAGE,
                )
            self._token = token

    def _changed_at(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_identity(file) for file in self._files)


@contextmanager
def _told(key: str, file: str) -> Iterator[None]:
    """Tells whatever is wrong with a file as an error of its key."""
    try:
        yield
    except ssl.SSLError as error:
        cause = (error.reason or str(error)).replace("_", " ").lower()
        raise UserError(f"neurond: metrics.{key}: {file}: {cause}; give PEM files that fit", EXIT_USAGE) from None
    except OSError as error:
        raise UserError(f"neurond: metrics.{key}: {file}: {error.strerror}; give a readable file", EXIT_USAGE) from None


def _identity(file: str) -> tuple[int, int] | None:
    """What changes when a file does, also one behind a symbolic link, as Kubernetes mounts them."""
    try:
        status = os.stat(file)  # noqa: PTH116 - at each tick
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
