"""PEM files: how certificates, keys and authorities are read, and what is wrong with one."""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

FileIdentity = tuple[int, int, int, int, int] | None


class FileProblem(Exception):
    """A file can't be used; the text begins with the name of its setting and tells the cause and the next step."""


def load_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    """Has a TLS context show this certificate; FileProblem leaves it with the one it had.

    The private key is in a file of its own or in that of the certificate, and is for the daemon's user and group alone.
    """
    kept_in = ("certificate", certificate) if key is None else ("key", key)
    with told(*kept_in):
        mode = Path(kept_in[1]).stat().st_mode
        with Path(kept_in[1]).open("rb"):
            pass
    # Without the function OpenSSL would ask the terminal for the password of a key.
    loaded = certificate, key, lambda: ""
    with told("certificate", certificate):
        # First into another: a certificate and a key that don't fit would leave this one without either.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*loaded)
    if stat.S_ISREG(mode) and mode & 0o007:
        raise FileProblem(
            f"{kept_in[0]}: {kept_in[1]}: holds a private key and has the mode {stat.S_IMODE(mode):04o}; "
            "take it away from others (chmod o=, or defaultMode: 0440 of a Kubernetes secret)"
        )
    with told("certificate", certificate):
        context.load_cert_chain(*loaded)


def load_authorities(context: ssl.SSLContext, setting: str, file: str) -> None:
    """Has a TLS context demand certificates that these authorities signed; FileProblem."""
    with told(setting, file):
        context.load_verify_locations(file)
    context.verify_mode = ssl.CERT_REQUIRED


def identities(files: Iterable[str | None]) -> tuple[FileIdentity, ...]:
    """What differs once any of these files has changed, by whatever way: None for one that can't be found."""
    return tuple(_identity(file) for file in files if file is not None)


@contextmanager
def told(setting: str, file: str) -> Iterator[None]:
    """Tells whatever is wrong with a file as a problem of its setting."""
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
