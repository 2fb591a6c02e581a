"""TLS contexts of servers and clients, renewed when their PEM files change, and the roles of clients.

A client's role follows from the subject names in its certificate. A subject name is a URI (such as a SPIFFE ID) or a
DNS name among the subject alternative names (RFC 5280, section 4.2.1.6). The common name is ignored.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neurontools.net.secret_files import FileProblem, require_private
from neurontools.util.errors import EXIT_USAGE, UserError

if TYPE_CHECKING:
    import ssl  # functions import ssl when they need it: OpenSSL takes 4 MiB of memory


def client_context(authorities: str | None) -> ssl.SSLContext:
    """Returns the TLS context of a client that trusts the CAs in a file, or the system's CAs for None.

    Raises FileProblem, with "ca" as the setting, for an unusable file.
    """
    import ssl

    context = _new_context(ssl.PROTOCOL_TLS_CLIENT)
    if authorities is None:
        context.load_default_certs()
    else:
        load_authorities(context, "ca", authorities)
    return context


def load_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    """Loads a certificate and its key into a TLS context. On FileProblem, the context is unchanged.

    `key` is None if the certificate file contains the key. Other users must not have access to the key's file.
    """
    import ssl

    kept_in = ("certificate", certificate) if key is None else ("key", key)
    with file_problems(*kept_in):
        with Path(kept_in[1]).open("rb") as opened:
            status = os.fstat(opened.fileno())
    # Without a password function, OpenSSL would prompt for a key's password on the terminal.
    loaded = certificate, key, lambda: ""
    with file_problems("certificate", certificate):
        # Try a temporary context first: a key that does not fit would leave `context` without a certificate.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*loaded)
    require_private(status, *kept_in, "a private key")
    with file_problems("certificate", certificate):
        context.load_cert_chain(*loaded)


def load_authorities(context: ssl.SSLContext, setting: str, file: str) -> None:
    """Makes a TLS context require certificates of the CAs in a file. Raises FileProblem for an unusable file."""
    import ssl

    with file_problems(setting, file):
        context.load_verify_locations(file)
    context.verify_mode = ssl.CERT_REQUIRED


def identities(*files: str | None) -> tuple[object, ...]:
    """Returns a value that is different after one of the PEM files has changed; a missing file stands as None in it."""
    return tuple(_identity(file) for file in files if file is not None)


@contextmanager
def file_problems(setting: str, file: str) -> Iterator[None]:
    """Converts OSError and SSLError about a file to FileProblem, with the name of the file's setting."""
    import ssl

    try:
        yield
    except ssl.SSLError as error:
        cause = (error.reason or str(error)).replace("_", " ").lower()
        raise FileProblem(f"{setting}: {file}: {cause}; give PEM files that fit") from None
    except OSError as error:
        raise FileProblem(f"{setting}: {file}: {error.strerror}; give a readable file") from None


def _new_context(protocol: int) -> ssl.SSLContext:
    """`ssl.create_default_context` of Python 3.13 refuses CAs without keyUsage, and older versions accept them.

    Here the same certificates are valid with every version of Python.
    """
    import ssl

    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _identity(file: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(file)  # noqa: PTH116 - runs at each tick; follows symbolic links, which Kubernetes mounts use
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


_log = logging.getLogger(__name__)


_CRL_MARK = b"-----BEGIN X509 CRL-----"


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """Paths of the PEM files of a TLS server."""

    certificate: str
    key: str | None = None  # path of the key's file; None if the certificate file contains the key
    client_ca: str | None = None  # CAs that sign client certificates; None: clients need no certificate
    client_crl: str | None = None  # certificate revocation lists of these CAs; None: no certificate is revoked


class ServerTls:
    """Creates TLS contexts of a server and renews them when the PEM files change. For one thread only.

    `context` is for the next handshake. `authorities` has the contents of the client CA and CRL files, for comparison.
    The constructor raises UserError for an invalid file. In messages, `message_prefix` precedes the names of settings.
    `protocols` are for ALPN.
    """

    def __init__(self, files: ServerFiles, message_prefix: str, protocols: Sequence[str] = ()) -> None:
        self._files = files
        self._message_prefix = message_prefix
        self._protocols = list(protocols)
        self._read_at = self._file_identities()
        try:
            self.context, self.authorities = self._read_files()
        except FileProblem as problem:
            raise UserError(f"{message_prefix}{problem}", EXIT_USAGE) from None

    def reload(self) -> bool:
        """Reads the PEM files again if one has changed. Returns whether new contents came into use."""
        changed_at = self._file_identities()
        if changed_at == self._read_at:
            return False
        self._read_at = changed_at
        try:
            self.context, self.authorities = self._read_files()
        except FileProblem as problem:
            _log.warning("%s%s; the old contents stay in use", self._message_prefix, problem)
            return False
        _log.info("%scertificate, key, client CA and revocation list were read again", self._message_prefix)
        return True

    def _read_files(self) -> tuple[ssl.SSLContext, bytes]:
        """Returns a new TLS context and the contents of the client CA and CRL files.

        Raises FileProblem for an unusable file. If the CRL of a CA is missing or too old, OpenSSL refuses all its
        certificates.

        Disables session resumption: a resumed session skips the check of the client's certificate.
        """
        import ssl

        context = _new_context(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
        context.num_tickets = 0
        if self._protocols:
            context.set_alpn_protocols(self._protocols)
        load_certificate(context, self._files.certificate, self._files.key)
        if self._files.client_ca is None:
            return context, b""
        load_authorities(context, "client_ca", self._files.client_ca)
        with file_problems("client_ca", self._files.client_ca):
            authorities = Path(self._files.client_ca).read_bytes()
        if self._files.client_crl is None:
            return context, authorities
        crl = self._files.client_crl
        with file_problems("client_crl", crl):
            revoked = Path(crl).read_bytes()
            if _CRL_MARK not in revoked:
                raise FileProblem(f"client_crl: {crl}: holds no CRL; give the PEM file of openssl ca -gencrl")
            context.load_verify_locations(crl)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
        return context, authorities + revoked

    def _file_identities(self) -> object:
        files = self._files
        return identities(files.certificate, files.key, files.client_ca, files.client_crl)


class ClientTls:
    """Creates TLS contexts of a gRPC client and renews them when the PEM files change. Thread-safe.

    If `key` is None, the certificate file contains the key. `authorities` has the CAs that sign server certificates;
    None means the system's CAs. The constructor raises UserError for an invalid file.
    """

    def __init__(self, certificate: str, key: str | None, authorities: str | None) -> None:
        self._certificate = certificate
        self._key = key
        self._authorities = authorities
        self._read_at = identities(certificate, key, authorities)
        try:
            self._context = self._make_context()
        except FileProblem as problem:
            raise UserError(f"TLS {problem}", EXIT_USAGE) from None

    def context(self) -> ssl.SSLContext:
        """Returns the TLS context for the next handshake. Keeps the old context if the changed files are invalid."""
        changed_at = identities(self._certificate, self._key, self._authorities)
        if changed_at != self._read_at:
            self._read_at = changed_at
            try:
                self._context = self._make_context()
            except FileProblem as problem:
                _log.debug("%s", problem)
        return self._context

    def _make_context(self) -> ssl.SSLContext:
        context = client_context(self._authorities)
        context.set_alpn_protocols(["h2"])
        load_certificate(context, self._certificate, self._key)
        return context


_DNS_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[!-~]+")
_LONGEST_NAME = 2048  # bytes, the length limit of a SPIFFE ID
_LONGEST_DNS_NAME = 253


class Role(StrEnum):
    """The role of a client, which decides how much the client may see."""

    SUMMARY = "summary"  # the client may see counts, findings and jobs, but no commands and no users
    FULL = "full"


def checked_name(text: str) -> str:
    """Returns a URI unchanged and a DNS name in lower case. Raises ValueError for any other name."""
    if "://" in text:
        if not _URI.fullmatch(text) or len(text) > _LONGEST_NAME:
            raise ValueError(f"{text[:60]!r} is not a URI; write one such as spiffe://example.org/viewer")
        return text
    if not _DNS_NAME.fullmatch(text) or len(text) > _LONGEST_DNS_NAME:
        raise ValueError(
            f"{text[:60]!r} is not a DNS name; write one such as viewer.example.org, or a URI such as "
            "spiffe://example.org/viewer"
        )
    return text.lower()


def subject_names(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the URI and DNS names of a verified certificate from `SSLSocket.getpeercert`."""
    found = certificate.get("subjectAltName", ())
    return tuple(value if kind == "URI" else value.lower() for kind, value in found if kind in ("URI", "DNS"))


class Subjects:
    """Maps subject names to roles. An empty mapping is false; then all clients have the same role."""

    def __init__(self, summary: Iterable[str] = (), full: Iterable[str] = ()) -> None:
        self._roles = dict.fromkeys(summary, Role.SUMMARY) | dict.fromkeys(full, Role.FULL)

    def __bool__(self) -> bool:
        return bool(self._roles)

    def widest_role(self, names: Iterable[str]) -> tuple[str, Role] | None:
        """Returns the name that has the widest role, and this role. Returns None if no name has a role."""
        found = [(name, self._roles[name]) for name in names if name in self._roles]
        return next((each for each in found if each[1] is Role.FULL), found[0] if found else None)
