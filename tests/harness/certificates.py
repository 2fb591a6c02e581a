"""Certificates for a day, or as long as asked for, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.harness.waiting import HANG_SECONDS

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


class Authority:
    """Signs certificates for 127.0.0.1; `file` is its own. All of them are PEM files in a directory."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._name = name
        self.file = directory / f"{name}.crt"
        self._key = directory / f"{name}.key"
        _openssl(
            "req", "-x509", *_NEW_KEY, "-keyout", self._key, "-out", self.file, "-days", "1", "-subj", f"/CN={name}",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip

    def sign(
        self, name: str, *names: str, begins_unix_seconds: float | None = None, ends_unix_seconds: float | None = None
    ) -> tuple[Path, Path]:
        """A new certificate and its key; `names` are further ones as openssl writes them, such as `DNS:localhost`."""
        certificate, key, request = (self._directory / f"{name}.{kind}" for kind in ("crt", "key", "csr"))
        extensions = self._directory / f"{self._name}.extensions"
        extensions.write_text(
            f"subjectAltName={','.join(('IP:127.0.0.1', *names))}\nauthorityKeyIdentifier=keyid", "utf-8"
        )
        _openssl("req", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        times: tuple[str, ...] = ()
        for flag, unix_seconds in (("-startdate", begins_unix_seconds), ("-enddate", ends_unix_seconds)):
            if unix_seconds is not None:
                times = (*times, flag, datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y%m%d%H%M%SZ"))
        signer = (*self._signer(), "-extfile", extensions)
        _openssl("ca", "-batch", "-notext", *signer, "-in", request, "-out", certificate, *times)
        return certificate, key

    def revoke(self, certificate: Path) -> None:
        """Revokes a certificate in the next list that `write_crl` writes."""
        _openssl("ca", *self._signer(), "-revoke", certificate)

    def write_crl(self, *, seconds: int = 86_400) -> Path:
        """Writes the list of revoked certificates, which is valid for some seconds, to a file and returns the path."""
        written = self._directory / f"{self._name}.new-crl"
        _openssl("ca", *self._signer(), "-gencrl", "-crlsec", str(seconds), "-out", written)
        return written.replace(self._directory / f"{self._name}.crl")

    def _signer(self) -> tuple[str | Path, ...]:
        return "-config", self._configuration(), "-cert", self.file, "-keyfile", self._key

    def _configuration(self) -> Path:
        database = self._directory / f"{self._name}.database"
        database.touch()
        file = self._directory / f"{self._name}.cnf"
        file.write_text(
            f"[ca]\ndefault_ca = it\n[it]\ndatabase = {database}\nnew_certs_dir = {self._directory}\n"
            "rand_serial = yes\ndefault_md = sha256\ndefault_days = 1\nunique_subject = no\npolicy = any\n"
            "[any]\ncommonName = supplied\n",
            "utf-8",
        )
        return file


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
