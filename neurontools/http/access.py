"""Who may see the pages: TLS, certificates of clients and a bearer token, from files that may be renewed; and Host.

The file of authorities alone is read once: a TLS context can't be told to trust one less.
"""

from __future__ import annotations

import hmac
import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from neurontools.errors import EXIT_USAGE, UserError
from neurontools.http.host_check import HostCheck

_LONGEST_TOKEN_BYTES = 4096

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AccessFiles:
    """PEM files and the file of the token; without any of them everybody is let in, over plain HTTP."""

    tls_certificate: str | None = None
    tls_key: str | None = None  # None: in the file of the certificate
    tls_client_ca: str | None = None  # who signs the certificates that clients must show; None: they need none
    bearer_token_file: str | None = None


class Access:
    """Lets in who shows what is asked for. UserError when a file is wrong; `place` says whose settings they are.

    `context` is the TLS context, None for plain HTTP. It stays the same: a renewed certificate is loaded into it.
    `hosts` checks the names that requests are for; without it, any will do.
    """

    def __init__(self, files: AccessFiles, place: str = "", hosts: HostCheck | None = None) -> None:
        self._files = files
        self._place = place
        self._hosts = hosts
        self._token: bytes | None = None
        self.context: ssl.SSLContext | None = None
        if files.tls_certificate is not None:
            self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._watched = [file for file in (files.tls_certificate, files.tls_key, files.bearer_token_file) if file]
        self._read_at = self._changed_at()
        self._read()
        if self.context is not None and files.tls_client_ca is not None:
            with self._told("tls_client_ca", files.tls_client_ca):
                self.context.load_verify_locations(files.tls_client_ca)
            self.context.verify_mode = ssl.CERT_REQUIRED

    def admits_host(self, authority: str) -> bool:
        """Whether a request for this host and port may be answered."""
        return self._hosts is None or self._hosts.admits(authority)

    def admits(self, authorization: str) -> bool:
        """Whether a request with this Authorization header may see the pages."""
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
            _log.info("certificates and token were read again")
        except UserError as error:
            _log.warning("%s; what was there before holds on", error)

    def _read(self) -> None:
        files = self._files
        if self.context is not None and files.tls_certificate is not None:
            if files.tls_key is not None:
                with self._told("tls_key", files.tls_key), Path(files.tls_key).open("rb"):
                    pass
            with self._told("tls_certificate", files.tls_certificate):
                # First into another: a certificate and a key that don't fit would leave this one without either.
                for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
                    # Without the function OpenSSL would ask the terminal for the password of a key.
                    context.load_cert_chain(files.tls_certificate, files.tls_key, password=lambda: "")
        if files.bearer_token_file is not None:
            with self._told("bearer_token_file", files.bearer_token_file):
                with Path(files.bearer_token_file).open("rb") as opened:
                    content = opened.read(_LONGEST_TOKEN_BYTES + 1)
            token = content.strip()
            if not token or len(content) > _LONGEST_TOKEN_BYTES or not token.isascii():
                raise UserError(
                    f"{self._place}bearer_token_file: {files.bearer_token_file}: no token; write one line of ASCII",
                    EXIT_USAGE,
                )
            self._token = token

    def _changed_at(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_identity(file) for file in self._watched)

    @contextmanager
    def _told(self, key: str, file: str) -> Iterator[None]:
        """Tells whatever is wrong with a file as an error of its key."""
        try:
            yield
        except ssl.SSLError as error:
            cause = (error.reason or str(error)).replace("_", " ").lower()
            raise UserError(f"{self._place}{key}: {file}: {cause}; give PEM files that fit", EXIT_USAGE) from None
        except OSError as error:
            raise UserError(f"{self._place}{key}: {file}: {error.strerror}; give a readable file", EXIT_USAGE) from None


def _identity(file: str) -> tuple[int, int] | None:
    """What changes when a file does, also one behind a symbolic link, as Kubernetes mounts them."""
    try:
        status = os.stat(file)  # noqa: PTH116 - at each tick
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
