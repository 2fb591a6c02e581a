"""Who may read the metrics, as the settings say."""

from __future__ import annotations

from neurond.access.certificates import server_tls, subjects
from neurond.settings import Settings
from neurontools.net.http.access import Access
from neurontools.net.http.host_check import HostCheck
from neurontools.net.tls.server import ServerFiles, ServerTls
from neurontools.net.tls.subjects import Subjects


def metrics_access(settings: Settings) -> Access:
    """The access to the metrics; UserError when a file of it is wrong.

    Their own certificate goes before that of [tls], and lets in whoever its own authorities have signed.
    """
    tls: ServerTls | None = None
    named: Subjects | None = None
    if settings.metrics_tls and settings.metrics_tls_certificate is not None:
        files = ServerFiles(settings.metrics_tls_certificate, settings.metrics_tls_key, settings.metrics_tls_client_ca)
        tls = ServerTls(files, "metrics.tls_")
    elif settings.metrics_tls:
        tls, named = server_tls(settings), subjects(settings)
    return Access(
        tls,
        bearer_token_file=settings.metrics_bearer_token_file,
        place="metrics.",
        subjects=named,
        hosts=None if settings.metrics_hosts is None else HostCheck(settings.metrics_hosts),
    )
