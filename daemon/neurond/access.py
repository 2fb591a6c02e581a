"""TLS and authentication of the network listeners, from [tls] and [metrics] of the configuration."""

from __future__ import annotations

from collections.abc import Sequence

from neurond.settings import Settings
from neurontools.net.http_site import HostCheck, HttpAccess, RequestGuard
from neurontools.net.tls import ServerFiles, ServerTls, Subjects
from neurontools.util.errors import EXIT_USAGE, UserError


def server_tls(settings: Settings, protocols: Sequence[str] = ()) -> ServerTls | None:
    """Returns the TLS setup of [tls]; None without a certificate. Raises UserError for an invalid file."""
    if settings.tls_certificate is None:
        return None
    files = ServerFiles(settings.tls_certificate, settings.tls_key, settings.tls_client_ca, settings.tls_client_crl)
    return ServerTls(files, "tls.", protocols)


def allowed_subjects(settings: Settings) -> Subjects:
    return Subjects(settings.tls_summary or (), settings.tls_full or ())


def check_certificates(settings: Settings) -> None:
    """Raises UserError for contradictions in [tls], invalid certificate files, or an API without authentication."""
    for name in ("key", "client_ca", "client_crl", "summary", "full"):
        if settings.tls_certificate is None and getattr(settings, f"tls_{name}") is not None:
            raise UserError(f"tls.{name} needs a certificate; set tls.certificate", EXIT_USAGE)
    names = [*(settings.tls_summary or ()), *(settings.tls_full or ())]
    if names and settings.tls_client_ca is None:
        raise UserError(
            "tls.summary and tls.full name certificates of clients, which nobody asks for; set tls.client_ca",
            EXIT_USAGE,
        )
    if settings.tls_client_crl is not None and settings.tls_client_ca is None:
        raise UserError("tls.client_crl needs the CAs of the clients; set tls.client_ca", EXIT_USAGE)
    twice = sorted(set(settings.tls_summary or ()) & set(settings.tls_full or ()))
    if twice:
        raise UserError(f"tls.summary and tls.full both have {twice[0]}; leave it in one of them", EXIT_USAGE)
    server_tls(settings)
    for missing, given in (
        ("tls.certificate and tls.key", settings.tls_certificate),
        ("tls.client_ca", settings.tls_client_ca),
        ("tls.summary or tls.full", names),
    ):
        if settings.listen is not None and not given:
            raise UserError(
                f"--listen {settings.listen}: the API is served over TLS alone, to certificates that are named; "
                f"set {missing} in the configuration file",
                EXIT_USAGE,
            )


def metrics_access(settings: Settings) -> HttpAccess:
    """Returns the access rules for /metrics. Raises UserError for an invalid file.

    If [metrics] names a certificate, the files and the client names of [tls] do not apply. Every client with a
    certificate from the client CA of [metrics] may read.
    """
    tls: ServerTls | None = None
    named: Subjects | None = None
    if settings.metrics_tls and settings.metrics_tls_certificate is not None:
        files = ServerFiles(
            settings.metrics_tls_certificate,
            settings.metrics_tls_key,
            settings.metrics_tls_client_ca,
            settings.metrics_tls_client_crl,
        )
        tls = ServerTls(files, "metrics.tls_")
    elif settings.metrics_tls:
        tls, named = server_tls(settings), allowed_subjects(settings)
    return HttpAccess(
        tls,
        bearer_token_file=settings.metrics_bearer_token_file,
        message_prefix="metrics.",
        subjects=named,
    )


def request_guard(settings: Settings) -> RequestGuard:
    """Returns the guard of the metrics listener. With pages, it checks the Host header of scrapers too."""
    checks_hosts = settings.web or settings.metrics_hosts is not None
    return RequestGuard(HostCheck(settings.metrics_hosts or ()) if checks_hosts else None)
