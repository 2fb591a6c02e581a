"""The client's side: a TLS context that follows its files."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from neurontools.net.tls.files import FileProblem, identities, load_authorities, load_certificate
from neurontools.util.errors import EXIT_USAGE, UserError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """PEM files."""

    certificate: str
    key: str | None = None  # None: in the file of the certificate
    authorities: str | None = None  # who signs the certificates of servers; None: those that the system trusts


class ClientTls:
    """Makes TLS contexts of files, for any thread. UserError when one is wrong at first."""

    def __init__(self, files: ClientFiles, protocols: Sequence[str] = ()) -> None:
        self._files = files
        self._protocols = list(protocols)
        self._read_at = self._changed_at()
        try:
            self._context = self._made()
        except FileProblem as problem:
            raise UserError(f"TLS {problem}", EXIT_USAGE) from None

    def context(self) -> ssl.SSLContext:
        """For the next handshake, of what the files hold now; of what they held before where that is wrong."""
        changed_at = self._changed_at()
        if changed_at != self._read_at:
            self._read_at = changed_at
            try:
                self._context = self._made()
            except FileProblem as problem:
                _log.debug("%s", problem)
        return self._context

    def _made(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
        if self._files.authorities is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            load_authorities(context, "ca", self._files.authorities)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(self._protocols)
        load_certificate(context, self._files.certificate, self._files.key)
        return context

    def _changed_at(self) -> object:
        return identities((self._files.certificate, self._files.key, self._files.authorities))
