"""Checks settings against each other and against this host, before every start and for `--check-config`.

Does not check facts that may change before the start: who uses the socket or port, and which devices exist.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from neurond.access import check_certificates, metrics_access
from neurond.exports.otlp import otlp_is_installed, otlp_not_installed_error
from neurond.service.socket_files import SocketFiles
from neurond.settings import Settings
from neurond.sources.simulated import simulated_shape
from neurond.system.kernel_log import check_writable
from neurond.webhook import read_webhook_url
from neurontools import catalog
from neurontools.catalog.facts import check_ultraserver_place
from neurontools.driver.tree_writer import check_directory
from neurontools.net.acceptor import listen_address
from neurontools.net.http_site import is_loopback, require_auth_off_loopback
from neurontools.net.secret_files import FileProblem
from neurontools.util.errors import EXIT_USAGE, UserError

# Keys of [metrics] that have no effect without a listener.
_LISTENER_KEYS = ("tls", "tls_certificate", "tls_key", "tls_client_ca", "tls_client_crl", "bearer_token_file", "hosts")


def check_settings(settings: Settings) -> None:
    """Raises UserError for the first setting that is invalid or contradicts another setting."""
    _check_ultraserver(settings)
    check_certificates(settings)
    _check_metrics(settings)
    _check_web(settings)
    if settings.otlp_endpoint is not None and not otlp_is_installed():
        raise otlp_not_installed_error()
    _check_load(settings)
    _check_actions(settings)
    _check_exports(settings)
    SocketFiles(settings.socket, settings.group).check()


def _check_ultraserver(settings: Settings) -> None:
    if settings.simulate is None or settings.ultraserver is None:
        return
    try:
        check_ultraserver_place(settings.ultraserver, catalog.load(settings.simulate))
    except ValueError as error:
        raise UserError(f"--ultraserver: {error}", EXIT_USAGE) from None


def _check_metrics(settings: Settings) -> None:
    if settings.metrics_tls_certificate is None and (settings.metrics_tls_key or settings.metrics_tls_client_ca):
        raise UserError("metrics.tls_key and tls_client_ca need a certificate; set metrics.tls_certificate", EXIT_USAGE)
    if settings.metrics_tls_client_crl is not None and settings.metrics_tls_client_ca is None:
        raise UserError("metrics.tls_client_crl needs the CAs of the clients; set metrics.tls_client_ca", EXIT_USAGE)
    metrics_access(settings)
    if settings.metrics_listen is None:
        for key in _LISTENER_KEYS:
            if getattr(settings, f"metrics_{key}") not in (None, True):
                text = f"metrics.{key} needs a listener for metrics; set metrics.listen, or leave it out"
                raise UserError(text, EXIT_USAGE)
    if settings.metrics_tls:
        return
    if settings.metrics_tls_certificate is not None:
        raise UserError("metrics.tls = false excludes metrics.tls_certificate; leave one out", EXIT_USAGE)
    if settings.metrics_listen is not None and not is_loopback(listen_address(settings.metrics_listen)[0]):
        raise UserError(
            f"metrics.tls = false needs a loopback address, but other hosts can reach {settings.metrics_listen}; "
            "listen on 127.0.0.1, or leave it out",
            EXIT_USAGE,
        )


def _check_web(settings: Settings) -> None:
    if not settings.web:
        return
    if settings.metrics_listen is None:
        raise UserError("--web needs the address of --metrics-listen; give one, or leave --web out", EXIT_USAGE)
    host, _ = listen_address(settings.metrics_listen)
    access = metrics_access(settings)
    require_auth_off_loopback(host, access, "--web", "tls.certificate", "metrics.bearer_token_file or tls.client_ca")


def _check_actions(settings: Settings) -> None:
    """Checks [actions]. The program runs as the daemon's user: no other user may replace it."""
    if settings.actions and settings.actions["webhook_url_file"]:
        try:
            read_webhook_url(settings.actions["webhook_url_file"])
        except FileProblem as problem:
            raise UserError(str(problem), EXIT_USAGE) from None
    command = settings.actions["command"] if settings.actions else None
    if not command:
        return
    program = Path(command[0])
    at = f"actions.command: {command[0][:200]}"
    if not program.is_absolute():
        raise UserError(f"{at}: not an absolute path; a command is run without a shell and without PATH", EXIT_USAGE)
    try:
        place = program.resolve(strict=True)
        for path in (place, *place.parents):
            status = path.stat()
            is_sticky = stat.S_ISDIR(status.st_mode) and bool(status.st_mode & stat.S_ISVTX)
            if status.st_uid not in (0, os.geteuid()) or (status.st_mode & 0o022 and not is_sticky):
                raise UserError(
                    f"{at}: other users may change {path}; let only root or this user write to it", EXIT_USAGE
                )
    except (OSError, RuntimeError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f"{at}: {cause}; give the path of a program", EXIT_USAGE) from None
    if not place.is_file() or not os.access(place, os.X_OK):
        raise UserError(f"{at}: not an executable program; give the path of one", EXIT_USAGE)


def _check_exports(settings: Settings) -> None:
    if settings.export_sysfs is not None:
        try:
            check_directory(settings.export_sysfs)
        except UserError as error:
            raise UserError(f"--export-sysfs: {error}", error.exit_code) from None
    if settings.export_kernel_log is not None:
        check_writable(settings.export_kernel_log)


def _check_load(settings: Settings) -> None:
    if settings.simulate is None or settings.load_neuroncores is None:
        return
    shape = simulated_shape(catalog.load(settings.simulate), settings.lnc)
    core_count = shape.logical_core_count(shape.default_lnc)
    if settings.load_neuroncores > core_count:
        raise UserError(
            f"--load-neuroncores: {settings.load_neuroncores} is more than the {core_count} NeuronCores of "
            f"{settings.simulate}; give 1 to {core_count}",
            EXIT_USAGE,
        )
