"""Reads what a daemon is told: flags, a TOML file and the environment, checked with pydantic.

Importing this module takes more memory than a daemon should carry about, so it runs in a first stage that then becomes
the daemon (`__main__`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from neurond.load import SCENARIOS
from neurond.service.socket_files import group_id
from neurond.settings import Settings
from neurond.startup.checks import check
from neurond.startup.tables import Configuration, DaemonTable, shown
from neurontools import catalog
from neurontools.driver.environment import (
    DEV_ROOT,
    PROC_ROOT,
    SYSFS_ROOT,
    InvalidCoreRequest,
    logical_neuroncore_config,
)
from neurontools.rpc import socket_path
from neurontools.util.errors import EXIT_USAGE, UserError

STATE_DIRECTORY = "STATE_DIRECTORY"  # as systemd.exec(5) sets it for StateDirectory=
_MOST_BYTES = 2**20
LOG_LEVELS = ("error", "warning", "info", "debug")


def resolve(flags: Mapping[str, Mapping[str, Any]], file: str | None, environment: Mapping[str, str]) -> Settings:
    """The settings: a flag beats the environment, which beats the file, which beats the default.

    `flags` has the tables of the file with the keys that were given. UserError names the flag or the key that is wrong.
    """
    written = {} if file is None else read(file)
    _validated(written, lambda path: _place(file or "", path))
    given = {table: {**written.get(table, {}), **flags.get(table, {})} for table in _TABLES}
    configuration = _validated(given, lambda path: FLAGS[".".join(path)])  # the file is right by now
    daemon, simulate, load = configuration.daemon, configuration.simulate, configuration.load
    if load.scenario and not simulate.instance_type:
        raise UserError("--load needs simulated devices; add --simulate TYPE", EXIT_USAGE)
    if simulate.ultraserver is not None and not simulate.instance_type:
        raise UserError("--ultraserver needs simulated devices; add --simulate TYPE", EXIT_USAGE)
    for flag, wanted in (
        ("--export-sysfs", configuration.export.sysfs),
        ("--export-kernel-log", configuration.export.kernel_log),
    ):
        if wanted and not simulate.instance_type:
            raise UserError(f"{flag} needs simulated devices; add --simulate TYPE", EXIT_USAGE)
    if written.get("simulate", {}).get("instance_type") and written.get("sysfs"):
        raise UserError(f"{file}: simulate.instance_type excludes [sysfs]; leave one out", EXIT_USAGE)
    if simulate.instance_type and flags.get("sysfs"):
        raise UserError(
            "--simulate excludes --sysfs-root, --proc-root, --dev-root and --imds; leave one out", EXIT_USAGE
        )
    try:
        lnc = simulate.logical_neuroncore_config or logical_neuroncore_config(environment)
    except InvalidCoreRequest as error:
        raise UserError(str(error), EXIT_USAGE) from None
    if daemon.group is not None:
        group_id(daemon.group)

    metrics, tls = configuration.metrics, configuration.tls

    def root_of(key: str, variable: str) -> str:
        given = flags.get("sysfs", {}).get(key) or environment.get(variable) or getattr(configuration.sysfs, key)
        return str(Path(given).absolute())

    settings = Settings(
        socket=_socket(flags, daemon, environment, file),
        interval_seconds=daemon.interval_seconds,
        history_seconds=daemon.history_seconds,
        history_bytes=daemon.history_bytes,
        log_level=daemon.log_level,
        group=daemon.group,
        state_directory=_absolute(
            daemon.state_directory or environment.get(STATE_DIRECTORY, "").partition(":")[0] or None
        ),
        actions=configuration.actions.told(),
        kmsg=_absolute(daemon.kmsg) if daemon.kmsg else daemon.kmsg,
        listen=daemon.listen,
        tls_certificate=_absolute(tls.certificate),
        tls_key=_absolute(tls.key),
        tls_client_ca=_absolute(tls.client_ca),
        tls_summary=tls.summary,
        tls_full=tls.full,
        metrics_listen=metrics.listen,
        metrics_tls=metrics.tls,
        metrics_tls_certificate=_absolute(metrics.tls_certificate),
        metrics_tls_key=_absolute(metrics.tls_key),
        metrics_tls_client_ca=_absolute(metrics.tls_client_ca),
        metrics_bearer_token_file=_absolute(metrics.bearer_token_file),
        metrics_hosts=metrics.hosts,
        web=configuration.web.enabled,
        web_shows_commands=configuration.web.show_commands,
        web_shows_users=configuration.web.show_users,
        metrics_untagged_together=metrics.untagged_together,
        otlp_endpoint=metrics.otlp_endpoint,
        otlp_interval_seconds=metrics.otlp_interval_seconds,
        health_thresholds=configuration.health.changed(),
        simulate=_known_instance_type(simulate.instance_type, lnc),
        ultraserver=simulate.ultraserver,
        lnc=lnc,
        load=load.scenario,
        load_seed=load.seed,
        load_neuroncores=load.neuroncores,
        sysfs_root=root_of("root", SYSFS_ROOT),
        proc_root=root_of("proc_root", PROC_ROOT),
        dev_root=root_of("dev_root", DEV_ROOT),
        imds=configuration.sysfs.imds,
        time_in_use_unit=None
        if configuration.sysfs.time_in_use_unit == "auto"
        else configuration.sysfs.time_in_use_unit,
        export_sysfs=_absolute(configuration.export.sysfs),
        export_driver_version=configuration.export.driver_version,
        export_kernel_log=_absolute(configuration.export.kernel_log),
        pod_resources_socket=str(Path(configuration.kubernetes.pod_resources_socket).absolute()),
    )
    check(settings)
    return settings


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def read(file: str) -> dict[str, Any]:
    """The tables of a TOML file; UserError when it can't be read or isn't TOML."""
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise UserError(f"{file}: larger than {_MOST_BYTES >> 20} MiB; give a file of settings", EXIT_USAGE)
        return tomllib.loads(content.decode())
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}; give a readable file with --config", EXIT_USAGE) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{file}: not TOML: {error}", EXIT_USAGE) from None


_TABLES = tuple(Configuration.model_fields)

# The flag for each key that has one.
FLAGS = {
    "daemon.socket": "--socket",
    "daemon.group": "--group",
    "daemon.state_directory": "--state-directory",
    "daemon.kmsg": "--kmsg",
    "daemon.listen": "--listen",
    "daemon.interval_seconds": "--interval",
    "daemon.history_seconds": "--history",
    "daemon.log_level": "--log-level",
    "metrics.listen": "--metrics-listen",
    "metrics.otlp_endpoint": "--otlp-endpoint",
    "web.enabled": "--web",
    "simulate.instance_type": "--simulate",
    "simulate.logical_neuroncore_config": "--lnc",
    "simulate.ultraserver": "--ultraserver",
    "load.scenario": "--load",
    "load.seed": "--seed",
    "load.neuroncores": "--load-neuroncores",
    "sysfs.root": "--sysfs-root",
    "sysfs.proc_root": "--proc-root",
    "sysfs.dev_root": "--dev-root",
    "sysfs.imds": "--imds",
    "export.sysfs": "--export-sysfs",
    "export.driver_version": "--export-driver-version",
    "export.kernel_log": "--export-kernel-log",
}


def _validated(tables: Mapping[str, Any], place: Callable[[list[str]], str]) -> Configuration:
    try:
        return Configuration.model_validate(tables)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        path = [part for part in problem["loc"] if isinstance(part, str)]  # not the place within a list
        raise UserError(f"{place(path)}: {_cause(problem)}", EXIT_USAGE) from None


def _cause(problem: Mapping[str, Any]) -> str:
    if problem["type"] == "extra_forbidden":
        return "there is no such key; see neurond(8) for those there are"
    if problem["type"] == "value_error":  # by a function of ours, which says it all
        return str(problem["ctx"]["error"])
    message = problem["msg"][:1].lower() + problem["msg"][1:]
    if problem["type"] in ("model_type", "dataclass_type", "dict_type"):
        message = "input should be a table"
    given = problem.get("input")
    return message if given is None or isinstance(given, dict) else f"{message}, not {shown(given)}"


def _place(file: str, path: list[str]) -> str:
    """file:line: table.key; the line is left out where the key is not written as such (dotted or inline)."""
    table = ""
    for number, line in enumerate(Path(file).read_text("utf-8").splitlines(), 1):
        text = line.strip()
        if text.startswith("["):
            table = text.strip("[ ").partition("]")[0].strip()
            if path == [table]:
                return f"{file}:{number}: {table}"
        elif text.split("=")[0].strip() == path[-1] and path[:-1] == ([table] if table else []):
            return f"{file}:{number}: {'.'.join(path)}"
    return f"{file}: {'.'.join(path)}"


def _socket(
    flags: Mapping[str, Mapping[str, Any]], daemon: DaemonTable, environment: Mapping[str, str], file: str | None
) -> str:
    named = socket_path.named(flags.get("daemon", {}).get("socket"), environment)
    if named is not None:
        return named
    if daemon.socket is not None:
        return socket_path.checked(daemon.socket, f"{file}: daemon.socket")
    return socket_path.default(environment)


def _known_instance_type(name: str | None, lnc: int | None) -> str | None:
    if name is None:
        return None
    try:
        catalog.load(name).family.checked_lnc(lnc)
    except catalog.UnknownInstanceType as error:
        raise UserError(str(error), EXIT_USAGE) from None
    except ValueError as error:
        raise UserError(f"{name}: {error}", EXIT_USAGE) from None
    return name


SCENARIO_NAMES = tuple(SCENARIOS)
