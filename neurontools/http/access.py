"""Who may see the pages: TLS, certificates of clients and a bearer token, from files that may be renewed; and Host.

The file of authorities alone is read once: a TLS context can't be told to trust one less.
"""

from __future__ import annotations

import hmac
import logging
import os
import ssl

from neurontools.errors import EXIT_USAGE, UserError
from neurontools.http.access_files import AccessFiles, FileProblem, load_authorities, load_certificate, read_token
from neurontools.http.host_check import HostCheck

_log = logging.getLogger(__name__)


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
        try:
            self._read()
            if self.context is not None and files.tls_client_ca is not None:
                load_authorities(self.context, files.tls_client_ca)
        except FileProblem as problem:
            raise UserError(f"{place}{problem}", EXIT_USAGE) from None

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
        except FileProblem as problem:
            _log.warning("%s%s; what was there before holds on", self._place, problem)

    def _read(self) -> None:
        """Reads the files that may be renewed; FileProblem."""
        files = self._files
        if self.context is not None and files.tls_certificate is not None:
            load_certificate(self.context, files.tls_certificate, files.tls_key)
        if files.bearer_token_file is not None:
            self._token = read_token(files.bearer_token_file)

    def _changed_at(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_identity(file) for file in self._watched)


def _identity(file: str) -> tuple[int, int] | None:
    """What changes when a file does, also one behind a symbolic link, as Kubernetes mounts them."""
    try:
        status = os.stat(file)  # noqa: PTH116 - at each tick
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
