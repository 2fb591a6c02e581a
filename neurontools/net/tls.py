"""TLS contexts that follow their PEM files, and roles for the names in client certificates."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neurontools.util.errors import EXIT_USAGE, UserError

if TYPE_CHECKING:
    import ssl  # functions import it: OpenSSL takes 4 MiB, which a daemon without TLS does not need

FileIdentity = tuple[int, int, int, int, int] | None


class FileProblem(Exception):
    """A file can't be used; the text begins with the name of its setting and tells the cause and the next step."""


def load_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    """Has a TLS context show this certificate; FileProblem leaves it with the one it had.

    The private key is in a file of its own or in that of the certificate, and is for the daemon's user and group alone.
    """
    import ssl

    kept_in = ("certificate", certificate) if key is None else ("key", key)
    with file_problems(*kept_in):
        mode = Path(kept_in[1]).stat().st_mode
        with Path(kept_in[1]).open("rb"):
            pass
    # Without the function OpenSSL would ask the terminal for the password of a key.
    loaded = certificate, key, lambda: ""
    with file_problems("certificate", certificate):
        # First into another: a certificate and a key that don't fit would leave this one without either.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*loaded)
    if stat.S_ISREG(mode) and mode & 0o007:
        raise FileProblem(
            f"{kept_in[0]}: {kept_in[1]}: holds a private key and has the mode {stat.S_IMODE(mode):04o}; "
            "take it away from others (chmod o=, or defaultMode: 0440 of a Kubernetes secret)"
        )
    with file_problems("certificate", certificate):
        context.load_cert_chain(*loaded)


def load_authorities(context: ssl.SSLContext, setting: str, file: str) -> None:
    """Has a TLS context demand certificates that these authorities signed; FileProblem."""
    import ssl

    with file_problems(setting, file):
        context.load_verify_locations(file)
    context.verify_mode = ssl.CERT_REQUIRED


def identities(files: Iterable[str | None]) -> tuple[FileIdentity, ...]:
    """What differs once any of these files has changed, by whatever way: None for one that can't be found."""
    return tuple(_identity(file) for file in files if file is not None)


@contextmanager
def file_problems(setting: str, file: str) -> Iterator[None]:
    """Tells whatever is wrong with a file as a problem of its setting."""
    import ssl

    try:
        yield
    except ssl.SSLError as error:
        cause = (error.reason or str(error)).replace("_", " ").lower()
        raise FileProblem(f"{setting}: {file}: {cause}; give PEM files that fit") from None
    except OSError as error:
        raise FileProblem(f"{setting}: {file}: {error.strerror}; give a readable file") from None


def _identity(file: str) -> FileIdentity:
    try:
        status = os.stat(file)  # noqa: PTH116 - at each tick; behind a symbolic link too, as Kubernetes mounts them
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


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
        with file_problems("client_ca", self._files.client_ca):
            return context, Path(self._files.client_ca).read_bytes()

    def _changed_at(self) -> object:
        return identities((self._files.certificate, self._files.key, self._files.client_ca))


def server_context(files: ServerFiles, protocols: Sequence[str] = ()) -> ssl.SSLContext:
    """A context of what the files hold now; FileProblem.

    Nothing is resumed: a session would outlive what its certificate was checked against.
    """
    import ssl

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
        import ssl

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
