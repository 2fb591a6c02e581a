"""How a Prometheus lets us in: a TOML file that names the files with secrets, so that no command line has any."""

from __future__ import annotations

import ssl
from base64 import b64encode
from dataclasses import dataclass, fields
from pathlib import Path

from neurontools.util.errors import EXIT_USAGE, UserError
from neurontools.util.formats import option_file_label, read_options
from neurontools.util.terminal import excerpt


@dataclass(frozen=True, slots=True)
class Access:
    """What is shown to a Prometheus; paths are files that are read anew for each connection or query."""

    tenant: str | None = None  # for Mimir and Cortex: the header X-Scope-OrgID
    bearer_token_file: str | None = None
    basic_user: str | None = None
    basic_password_file: str | None = None
    tls_ca: str | None = None  # who signs its certificate; None: who the system trusts
    tls_certificate: str | None = None  # our own, PEM
    tls_key: str | None = None  # None: in the file of the certificate

    @property
    def has_secrets(self) -> bool:
        """Whether something is sent that nobody else may see."""
        return self.bearer_token_file is not None or self.basic_user is not None

    def headers(self) -> dict[str, str]:
        """The headers of a query; UserError when a file can't be read."""
        found = {} if self.tenant is None else {"X-Scope-OrgID": self.tenant}
        if self.bearer_token_file is not None:
            found["Authorization"] = f"Bearer {_secret('bearer_token_file', self.bearer_token_file)}"
        elif self.basic_user is not None and self.basic_password_file is not None:
            pair = f"{self.basic_user}:{_secret('basic_password_file', self.basic_password_file)}"
            found["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        return found

    def context(self) -> ssl.SSLContext:
        """The TLS of a connection; UserError when a file can't be read."""
        try:
            made = ssl.create_default_context(cafile=self.tls_ca)
            made.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.tls_certificate is not None:
                # Without the function OpenSSL would ask the terminal for the password of a key.
                made.load_cert_chain(self.tls_certificate, self.tls_key, password=lambda: "")
        except (OSError, ValueError) as error:
            said = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            raise UserError(f"tls_ca, tls_certificate, tls_key: {said}; give PEM files that fit", EXIT_USAGE) from None
        return made

    def check(self) -> None:
        """UserError when something in it can't be meant or a file can't be read, before anything is asked."""
        if self.bearer_token_file is not None and self.basic_user is not None:
            raise UserError("bearer_token_file and basic_user exclude each other; leave one out", EXIT_USAGE)
        if (self.basic_user is None) != (self.basic_password_file is None):
            raise UserError("basic_user and basic_password_file go together; give both", EXIT_USAGE)
        if self.tls_key is not None and self.tls_certificate is None:
            raise UserError("tls_key needs tls_certificate; give both", EXIT_USAGE)
        for name, text in (("tenant", self.tenant), ("basic_user", self.basic_user)):
            if text is not None and not (text.isprintable() and text.isascii() and text):
                raise UserError(f"{name}: {excerpt(text, 40)!r} is no line of ASCII", EXIT_USAGE)
        self.headers()
        self.context()


def read_access(path: str) -> Access:
    """What a file says; UserError with its name for whatever is wrong."""
    usual = {field.name: field.default for field in fields(Access)}
    access = Access(**read_options("--prometheus-config", path, usual))
    try:
        access.check()
    except UserError as error:
        raise UserError(f"{option_file_label('--prometheus-config', path)}: {error}", EXIT_USAGE) from None
    return access


def _secret(key: str, file: str) -> str:
    """The line in a file; UserError."""
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(4097)
    except OSError as error:
        raise UserError(f"{key}: {excerpt(file, 200)}: {error.strerror}; give a readable file", EXIT_USAGE) from None
    line = content.strip()
    if not line or len(content) > 4096 or not line.isascii() or not line.decode().isprintable():
        raise UserError(f"{key}: {excerpt(file, 200)}: write one line of ASCII into it", EXIT_USAGE)
    return line.decode()
