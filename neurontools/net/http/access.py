"""Who may see the pages: TLS, certificates of clients and a bearer token, from files that may be renewed; and Host."""

from __future__ import annotations

import hmac
import logging
import ssl
from collections.abc import Mapping
from typing import Any

from neurontools.net.http.host_check import HostCheck
from neurontools.net.http.token_file import read_token
from neurontools.net.tls.files import FileProblem, identities
from neurontools.net.tls.server import ServerTls
from neurontools.net.tls.subjects import Role, Subjects, subject_names
from neurontools.util.errors import EXIT_USAGE, UserError

_log = logging.getLogger(__name__)


class Access:
    """Lets in who shows what is asked for. UserError when the token's file is wrong; `place` says whose setting it is.

    `tls` is None for plain HTTP. Where `subjects` has names, a client's certificate must have one of them. `hosts`
    checks the names that requests are for; without it, any will do.
    """

    def __init__(
        self,
        tls: ServerTls | None = None,
        *,
        bearer_token_file: str | None = None,
        place: str = "",
        subjects: Subjects | None = None,
        hosts: HostCheck | None = None,
    ) -> None:
        self._tls = tls
        self._token_file = bearer_token_file
        self._place = place
        self._is_named = subjects is not None
        self._subjects = subjects or Subjects()
        self._hosts = hosts
        self._token: bytes | None = None
        self._read_at = identities([bearer_token_file])
        try:
            if bearer_token_file is not None:
                self._token = read_token(bearer_token_file)
        except FileProblem as problem:
            raise UserError(f"{place}{problem}", EXIT_USAGE) from None

    @property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context of the next handshake; None for plain HTTP."""
        return None if self._tls is None else self._tls.context

    def role(self, certificate: Mapping[str, Any] | None) -> Role | None:
        """How much who shows this certificate may see, or none at all (None); without names, everybody sees all."""
        if not self._subjects:
            return Role.FULL
        known = self._subjects.known(subject_names(certificate or {}))
        return None if known is None else known[1]

    def allow(self, subjects: Subjects) -> None:
        """Goes by these names from the next connection on, if it goes by names at all."""
        if self._is_named:
            self._subjects = subjects

    def admits_host(self, authority: str) -> bool:
        """Whether a request for this host and port may be answered."""
        return self._hosts is None or self._hosts.admits(authority)

    def admits(self, authorization: str) -> bool:
        """Whether a request with this Authorization header may see the pages."""
        if self._token is None:
            return True
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), self._token)

    @property
    def knows_clients(self) -> bool:
        """Whether nobody is let in without a token or a certificate."""
        context = self.context
        return self._token is not None or (context is not None and context.verify_mode is ssl.CERT_REQUIRED)

    @property
    def asks_for_token(self) -> bool:
        """Whether those who come must know a token."""
        return self._token is not None

    def signature(self, text: str) -> str:
        """What only who knows the token of now can make of a text; "" where there is no token."""
        return "" if self._token is None else hmac.new(self._token, text.encode(), "sha256").hexdigest()

    def renew(self) -> None:
        """Reads files that have changed; where that fails, what was known holds on."""
        if self._tls is not None:
            self._tls.renew()
        changed_at = identities([self._token_file])
        if self._token_file is None or changed_at == self._read_at:
            return
        self._read_at = changed_at
        try:
            self._token = read_token(self._token_file)
            _log.info("the token was read again")
        except FileProblem as problem:
            _log.warning("%s%s; what was there before holds on", self._place, problem)
