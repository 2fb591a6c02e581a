"""Who may read the metrics, by the settings of the daemon."""

from __future__ import annotations

from neurond.settings import Settings
from neurontools.http.access import Access, AccessFiles
from neurontools.http.host_check import HostCheck


def metrics_access(settings: Settings) -> Access:
    """The access to the metrics; UserError when a file of it is wrong."""
    files = AccessFiles(
        tls_certificate=settings.metrics_tls_certificate,
        tls_key=settings.metrics_tls_key,
        tls_client_ca=settings.metrics_tls_client_ca,
        bearer_token_file=settings.metrics_bearer_token_file,
    )
    hosts = None if settings.metrics_hosts is None else HostCheck(settings.metrics_hosts)
    return Access(files, "metrics.", hosts)
