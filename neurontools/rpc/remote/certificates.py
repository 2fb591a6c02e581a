"""Which certificate is shown to daemons of other hosts, and whose certificates are trusted."""

from __future__ import annotations

import os
from collections.abc import Mapping

from neurontools.net.tls.client import ClientFiles, ClientTls
from neurontools.util.errors import EXIT_USAGE, UserError

OPTIONS = ("tls-cert", "tls-key", "tls-ca")
VARIABLES = ("NEURONTOOLS_TLS_CERT", "NEURONTOOLS_TLS_KEY", "NEURONTOOLS_TLS_CA")
_NAMES = ("tls.crt", "tls.key", "ca.crt")  # as in a secret of Kubernetes


def client_tls(given: Mapping[str, str], environment: Mapping[str, str]) -> ClientTls:
    """The certificate of the options, else of the environment, else of the person's directory; UserError for none.

    Certificate and key come from one of these, the authorities from the first that has them.
    """
    directory = configuration_directory(environment)
    found = tuple(
        path if os.path.exists(path := f"{directory}/{name}") else None  # noqa: PTH110
        for name in _NAMES
    )
    sources = (
        tuple(given.get(option) for option in OPTIONS),
        tuple(environment.get(variable) or None for variable in VARIABLES),
        found,
    )
    if given.get("tls-key") and not given.get("tls-cert"):
        raise UserError("--tls-key needs a certificate; give --tls-cert", EXIT_USAGE)
    certificate, key, _ = next((source for source in sources if source[0]), (None, None, None))
    authorities = next((source[2] for source in sources if source[2]), None)
    if certificate is None:
        raise UserError(
            "a certificate is needed to read over TLS; give --tls-cert, --tls-key and --tls-ca, set "
            f"{VARIABLES[0]} and the like, or put {', '.join(_NAMES)} into {directory}",
            EXIT_USAGE,
        )
    return ClientTls(ClientFiles(certificate, key, authorities), ("h2",))


def configuration_directory(environment: Mapping[str, str]) -> str:
    """Where a person's certificates are looked for."""
    home = environment.get("XDG_CONFIG_HOME", "")
    if not home.startswith("/"):
        home = f"{environment.get('HOME') or '/'}/.config"
    return f"{home}/neurontools/tls"
