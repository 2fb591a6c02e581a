"""The files that say who may see the pages: how they are read, and what is wrong with them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_LONGEST_TOKEN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class AccessFiles:
    """PEM files and the file of the token; without any of them everybody is let in, over plain HTTP."""

    tls_certificate: str | None = None
    tls_key: str | None = None  # None: in the file of the certificate
    tls_client_ca: str | None = None  # who signs the certificates that clients must show; None: they need none
    bearer_token_file: str | None = None


class FileProblem(Exception):
    """A file can't be used; the text begins with its key and tells the cause and the next step."""


def problems(files: AccessFiles) -> list[str]:
    """What is wrong with the files, one line each; nothing, where a server could use them now."""
    found = []
    for read in (_try_certificate, _try_authorities, _try_token):
        try:
            read(files)
        except FileProblem as problem:
            found.append(str(problem))
    return found


def load_certificate(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    """Has a TLS context show this certificate; FileProblem leaves it with the one it had."""
    if key is not None:
        with _told("tls_key", key), Path(key).open("rb"):
            pass
    with _told("tls_certificate", certificate):
        # First into another: a certificate and a key that don't fit would leave this one without either.
        for taking in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
            # Without the function OpenSSL would ask the terminal for the password of a key.
            taking.load_cert_chain(certificate, key, password=lambda: "")


def load_authorities(context: ssl.SSLContext, file: str) -> None:
    """Has a TLS context demand certificates that these authorities signed; FileProblem."""
    with _told("tls_client_ca", file):
        context.load_verify_locations(file)
    context.verify_mode = ssl.CERT_REQUIRED


def read_token(file: str) -> bytes:
    """The token in a file; FileProblem."""
    with _told("bearer_token_file", file), Path(file).open("rb") as opened:
        content = opened.read(_LONGEST_TOKEN_BYTES + 1)
    token = content.strip()
    if not token or len(content) > _LONGEST_TOKEN_BYTES or not token.isascii():
        raise FileProblem(f"bearer_token_file: {file}: no token; write one line of ASCII")
    return token


def _try_certificate(files: AccessFiles) -> None:
    if files.tls_certificate is not None:
        load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files.tls_certificate, files.tls_key)


def _try_authorities(files: AccessFiles) -> None:
    if files.tls_certificate is not None and files.tls_client_ca is not None:
        load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files.tls_client_ca)


def _try_token(files: AccessFiles) -> None:
    if files.bearer_token_file is not None:
        read_token(files.bearer_token_file)


@contextmanager
def _told(key: str, file: str) -> Iterator[None]:
    """Tells whatever is wrong with a file as a problem of its key."""
    try:
        yield
    except ssl.SSLError as error:
        cause = (error.reason or str(error)).replace("_", " ").lower()
        raise FileProblem(f"{key}: {file}: {cause}; give PEM files that fit") from None
    except OSError as error:
        raise FileProblem(f"{key}: {file}: {error.strerror}; give a readable file") from None
