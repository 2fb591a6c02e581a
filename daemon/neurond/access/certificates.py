"""The certificates of what listens on the network: [tls] of the configuration."""

from __future__ import annotations

from collections.abc import Sequence

from neurond.settings import Settings
from neurontools.errors import EXIT_USAGE, UserError
from neurontools.tls.server import ServerFiles, ServerTls
from neurontools.tls.subjects import Subjects


def server_tls(settings: Settings, protocols: Sequence[str] = ()) -> ServerTls | None:
    """TLS with the files of [tls]; None where there is no certificate. UserError when a file is wrong."""
    if settings.tls_certificate is None:
        return None
    files = ServerFiles(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
    return ServerTls(files, "tls.", protocols)


def subjects(settings: Settings) -> Subjects:
    """Whose certificates may see what."""
    return Subjects(settings.tls_summary or (), settings.tls_full or ())


def check_certificates(settings: Settings) -> None:
    """UserError for parts of [tls] that don't fit each other, and for a file that is wrong."""
    for name in ("key", "client_ca", "summary", "full"):
        if settings.tls_certificate is None and getattr(settings, f"tls_{name}") is not None:
            raise UserError(f"tls.{name} needs a certificate; set tls.certificate", EXIT_USAGE)
    names = [*(settings.tls_summary or ()), *(settings.tls_full or ())]
    if names and settings.tls_client_ca is None:
        raise UserError(
            "tls.summary and tls.full name certificates of clients, which nobody asks for; set tls.client_ca",
            EXIT_USAGE,
        )
    twice = sorted(set(settings.tls_summary or ()) & set(settings.tls_full or ()))
    if twice:
        raise UserError(f"tls.summary and tls.full both have {twice[0]}; leave it in one of them", EXIT_USAGE)
    server_tls(settings)
