"""Who may read the metrics, as the settings say."""

from __future__ import annotations

from neurond.settings import Settings
from neurontools.http.access import Access
from neurontools.http.access_files import AccessFiles
from neurontools.http.host_check import HostCheck


def access_files(settings: Settings) -> AccessFiles:
    """The files that the settings name."""
    return AccessFiles(
        tls_certificate=settings.metrics_tls_certificate,
        tls_key=settings.metrics_tls_key,
        tls_client_ca=settings.metrics_tls_client_ca,
        bearer_token_file=settings.metrics_bearer_token_file,
    )


def metrics_access(settings: Settings) -> Access:
    """The access to the metrics; UserError when a file of it is wrong."""
    hosts = None if settings.metrics_hosts is None else HostCheck(settings.metrics_hosts)
    return Access(access_files(settings), "metrics.", hosts)
