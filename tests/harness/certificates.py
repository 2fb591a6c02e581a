"""Certificates for a day, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.waiting import HANG_SECONDS

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


class Authority:
    """Signs certificates for 127.0.0.1; `file` is its own. All of them are PEM files in a directory."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self.file = directory / f"{name}.crt"
        self._key = directory / f"{name}.key"
        _openssl(
            "req", "-x509", *_NEW_KEY, "-keyout", self._key, "-out", self.file, "-days", "1", "-subj", f"/CN={name}"
        )

    def sign(self, name: str) -> tuple[Path, Path]:
        """A new certificate and its key."""
        certificate, key, request = (self._directory / f"{name}.{kind}" for kind in ("crt", "key", "csr"))
        names = self._directory / "names"
        names.write_text("subjectAltName=IP:127.0.0.1", "utf-8")
        _openssl("req", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        signer = ("-CA", self.file, "-CAkey", self._key, "-CAcreateserial", "-extfile", names, "-days", "1")
        _openssl("x509", "-req", "-in", request, "-out", certificate, *signer)
        return certificate, key


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=HANG_SECONDS)
