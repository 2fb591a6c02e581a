"""The server's side: a TLS context that follows its files.

Certificates are renewed under a running server by renaming files, by swapping a symbolic link, as Kubernetes does, or
by writing into them. What is half there, or doesn't fit yet, changes nothing.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from neurontools.net.tls.files import FileProblem, identities, load_authorities, load_certificate, told
from neurontools.util.errors import EXIT_USAGE, UserError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """PEM files."""

    certificate: str
    key: str | None = None  # None: in the file of the certificate
    client_ca: str | None = None  # who signs the certificates that clients must show; None: they need none


class ServerTls:
    """Makes TLS contexts of files. UserError when one is wrong at first; `place` begins the names of their settings.

    `protocols` are those of ALPN. Belongs to one thread.
    """

    def __init__(self, files: ServerFiles, place: str, protocols: Sequence[str] = ()) -> None:
        self._files = files
        self._place = place
        self._protocols = list(protocols)
        self._read_at = self._changed_at()
        try:
            self._context, self._authorities = self._read()
        except FileProblem as problem:
            raise UserError(f"{place}{problem}", EXIT_USAGE) from None

    @property
    def context(self) -> ssl.SSLContext:
        """For the next handshake: what was renewed is in another one than what was there before."""
        return self._context

    @property
    def authorities(self) -> bytes:
        """What the file of the authorities holds, to be compared."""
        return self._authorities

    def renew(self) -> bool:
        """Reads the files if any has changed, and whether what they hold is taken from here on."""
        changed_at = self._changed_at()
        if changed_at == self._read_at:
            return False
        self._read_at = changed_at
        try:
            self._context, self._authorities = self._read()
        except FileProblem as problem:
            _log.warning("%s%s; what was there before holds on", self._place, problem)
            return False
        _log.info("%scertificate and what belongs to it were read again", self._place)
        return True

    def _read(self) -> tuple[ssl.SSLContext, bytes]:
        """What the files hold now; FileProblem."""
        context = server_context(self._files, self._protocols)
        if self._files.client_ca is None:
            return context, b""
        with told("client_ca", self._files.client_ca):
            return context, Path(self._files.client_ca).read_bytes()

    def _changed_at(self) -> object:
        return identities((self._files.certificate, self._files.key, self._files.client_ca))


def server_context(files: ServerFiles, protocols: Sequence[str] = ()) -> ssl.SSLContext:
    """A context of what the files hold now; FileProblem.

    Nothing is resumed: a session would outlive what its certificate was checked against.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    if protocols:
        context.set_alpn_protocols(list(protocols))
    load_certificate(context, files.certificate, files.key)
    if files.client_ca is not None:
        load_authorities(context, "client_ca", files.client_ca)
    return context
