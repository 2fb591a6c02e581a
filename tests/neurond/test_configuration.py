"""What a daemon is told: flags, file and environment, and what is refused of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from neurond.settings import Settings
from neurond.sources.simulated import SCENARIOS
from neurond.startup.configuration import FLAGS, DaemonConfiguration, resolve_settings, settings_from
from neurond.verdicts.evidence import HealthThresholds

from neurontools import catalog
from neurontools.util.errors import EXIT_USAGE, UserError
from tests.harness.certificates import Authority, needs_openssl
from tests.harness.running_daemon import RunningDaemon
from tests.harness.secret_file import write_secret
from tests.harness.waiting import run_to_end


def neurond(*flags: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    return run_to_end(
        [sys.executable, "-P", "-m", "neurond", *flags],
        cwd=directory,
        env=os.environ | {"XDG_RUNTIME_DIR": "/run/user/7"},
    )


def refusal(flags: list[str]) -> str:
    with pytest.raises(UserError) as refused:
        settings_from(flags)
    assert refused.value.exit_code == EXIT_USAGE
    assert "\n" not in str(refused.value)
    return str(refused.value)


def refusal_of_file(tmp_path: Path, content: str | bytes) -> str:
    """The one line that a configuration file is refused with, its name left out."""
    file = tmp_path / "c.toml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return refusal(["--config", str(file)]).replace(str(file), "FILE")


def test_the_defaults() -> None:
    assert resolve_settings({}, None, {"XDG_RUNTIME_DIR": "/r"}) == Settings(socket="/r/neurontools/neurond.sock")
    with pytest.raises(UserError, match=r"^XDG_RUNTIME_DIR: the socket path /r{39}… is longer than the 100 bytes"):
        resolve_settings({}, None, {"XDG_RUNTIME_DIR": "/" + "r" * 80})
    thresholds = DaemonConfiguration().health.model_dump()
    assert thresholds == {name: getattr(HealthThresholds(), name) for name in thresholds}


def test_a_file_with_every_key(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        """
        simulate = {instance_type = "trn2.48xlarge", logical_neuroncore_config = 1}
        load = {scenario = "steady", seed = 7, neuroncores = 3}
        [daemon]
        socket = "/s.sock"
        interval_seconds = 2      # whole numbers are numbers too
        history_seconds = 60.5
        history_bytes = 1000
        log_level = "debug"
        group = "users"
        """
    )
    assert resolve_settings({}, str(file), {}) == Settings(
        socket="/s.sock",
        interval_seconds=2.0,
        history_seconds=60.5,
        history_bytes=1000,
        log_level="debug",
        group="users",
        simulate="trn2.48xlarge",
        lnc=1,
        load="steady",
        load_seed=7,
        load_neuroncores=3,
    )


ADDRESS = "'x' has no port from 0 to 65535; write HOST:PORT, such as 127.0.0.1:8000, or :8000"
EMPTY = "string should have at least 1 character, not ''"
EMPTY_LIST = "list should have at least 1 item after validation, not 0, not []"
LEAST = "input should be greater than or equal to"
MOST = "input should be less than or equal to"

WRONG_LINES = [
    *(
        (f'{key} = ""', EMPTY)
        for key in (
            *("daemon.socket", "daemon.group", "daemon.state_directory", "tls.client_crl", "metrics.tls_client_crl"),
            *("metrics.tls_certificate", "metrics.tls_key", "metrics.tls_client_ca", "metrics.bearer_token_file"),
            *("tls.certificate", "tls.key", "tls.client_ca", "sysfs.root", "export.sysfs", "export.kernel_log"),
        )
    ),
    *(
        (f"{key} = 3", "input should be a valid string, not 3")
        for key in (
            *("daemon.socket", "daemon.kmsg", "simulate.instance_type", "sysfs.proc_root", "sysfs.dev_root"),
            "kubernetes.pod_resources_socket",
        )
    ),
    *(
        (f"{key} = 3", "input should be a valid boolean, not 3")
        for key in (
            *("web.enabled", "web.show_commands", "web.show_users", "metrics.tls", "metrics.untagged_together"),
            "sysfs.imds",
        )
    ),
    *(
        (f"health.{name} = -1", f"{LEAST} 0, not -1")
        for name in (
            *("idle_seconds", "stuck_seconds", "memory_used_ratio", "ecc_corrected_events", "numerical_errors"),
            *("hardware_errors", "failed_executions", "latency_growth_ratio", "silent_seconds"),
        )
    ),
    ("health.window_seconds = 0", "input should be greater than 0, not 0"),
    ("daemon.interval_seconds = 0", f"{LEAST} 0.01, not 0"),
    ('daemon.interval_seconds = "1"', "input should be a valid number, not '1'"),
    ("daemon.interval_seconds = true", "input should be a valid number, not True"),
    ("daemon.interval_seconds = nan", "input should be a finite number, not nan"),
    ("daemon.interval_seconds = inf", "input should be a finite number, not inf"),
    ("daemon.history_seconds = -1", f"{LEAST} 0, not -1"),
    ("daemon.device_max_watts = 0", "input should be greater than 0, not 0"),
    ("daemon.history_bytes = 1.5", "input should be a valid integer, not 1.5"),
    ('daemon.log_level = "loud"', "input should be 'error', 'warning', 'info' or 'debug', not 'loud'"),
    ('daemon.listen = "x"', ADDRESS),
    ("daemon.intervals = 1", "there is no such key; see neurond(8) for the keys"),
    ('metrics.listen = "x"', ADDRESS),
    (
        'metrics.hosts = ["a", "b:80"]',
        "'b:80' is not a host name; write one without a port, such as metrics.example.org",
    ),
    (
        'metrics.otlp_endpoint = "collector:4318"',
        "'collector:4318' is not a URL; write one such as http://127.0.0.1:4318",
    ),
    ("metrics.otlp_interval_seconds = 0", f"{LEAST} 1"),
    ("tls.summary = []", EMPTY_LIST),
    (
        'tls.full = ["*.example.org"]',
        "'*.example.org' is not a DNS name; write one such as viewer.example.org, or a URI",
    ),
    ("simulate.logical_neuroncore_config = 3", "input should be 1 or 2, not 3"),
    ('simulate.ultraserver = "us-1"', "'us-1' is no place in an UltraServer; write NAME:INDEX, such as us-1:0, with"),
    ('load.scenario = "storm"', "'storm' is not a scenario; give one of idle, steady, training-ramp, "),
    ("load.seed = -1", f"{LEAST} 0, not -1"),
    ("load.neuroncores = 0", f"{LEAST} 1, not 0"),
    ("load.neuroncores = 1025", f"{MOST} 1024, not 1025"),
    ('sysfs.time_in_use_unit = "ms"', "input should be 'auto', 'us', 'ns' or 'ps', not 'ms'"),
    ('export.driver_version = "new"', "string should match pattern"),
    ("actions.command = []", EMPTY_LIST),
    ('actions.command = "/bin/true"', "input should be a valid list, not '/bin/true'"),
    ('actions.command = ["/bin/true\\u0000"]', "a program and its arguments have 1 to 4096 characters each, and none"),
    (
        'actions.webhook = "https://h/x?s3cr3t"',
        "a URL may contain a secret; write it into a file that others cannot read, and",
    ),
    ("daemon.kmsg_user_records = 1", "input should be a valid boolean, not 1"),
    ("actions.webhook_url_file = 1", "input should be a valid string, not 1"),
    (
        'metrics.otlp_endpoint = "https://me:s3cr3t@h"',
        "a URL with a login or a query may contain a secret; put",
    ),
    ("actions.on = []", EMPTY_LIST),
    ('actions.on = ["x"]', "input should be 'begins' or 'ends', not 'x'"),
    ('actions.level = "ok"', "input should be 'notice', 'warning' or 'critical', not 'ok'"),
    ('actions.problems = "x"', "input should be 'node', 'user' or 'all', not 'x'"),
    ('actions.only = ["x"]', "'x' is not the name of a finding; neuron-healthcheck(8) has the names"),
    ("actions.timeout_seconds = 0", f"{LEAST} 1, not 0"),
    ("actions.retries = -1", f"{LEAST} 0, not -1"),
    ("actions.most_per_hour = 0", f"{LEAST} 1, not 0"),
]


@pytest.mark.parametrize(("line", "cause"), WRONG_LINES)
def test_every_key_that_is_wrong_is_named_with_its_line(tmp_path: Path, line: str, cause: str) -> None:
    name, value = line.split(" = ", 1)
    table, key = name.split(".")
    error = refusal_of_file(tmp_path, f"# comment\n\n[{table}]\n{key} = {value}\n")
    assert error.startswith(f"FILE:4: {name}: {cause}")
    # The same written inline has no line of its own.
    assert refusal_of_file(tmp_path, f"{line}\n").startswith(f"FILE: {name}: {cause}")


def test_every_key_of_the_tables_was_tried() -> None:
    tables = DaemonConfiguration.model_fields.items()
    keys = {f"{table}.{key}" for table, of in tables for key in of.annotation.model_fields}  # type: ignore[union-attr]
    tried = {line.split(" ")[0] for line, _ in WRONG_LINES}
    assert keys <= tried
    assert set(FLAGS) <= keys


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("[demon]\nx = 1\n", "FILE:1: demon: there is no such key"),
        ("\n[daemon]   # the daemon\ngroup = 1\n", "FILE:3: daemon.group: input should be a valid string"),
        ("socket = 1\n", "FILE:1: socket: there is no such key"),
        ("daemon = 3\n", "FILE:1: daemon: input should be a table, not 3"),
        ("[[load]]\nseed = 1\n", "FILE:1: load: input should be a table"),
        ("[daemon\n", "FILE: not TOML: "),
        ("x = \n", "FILE: not TOML: Invalid value (at line 1, column 5)"),
        ("[daemon]\n[daemon]\n", "FILE: not TOML: Cannot declare ('daemon',) twice"),
        (f"x = {'[' * 5000}", "FILE: not TOML: "),
        ("#" * (2**20 + 1), "FILE: larger than 1 MiB; give a file of settings"),
        (f'[daemon]\ngroup = ["{"x" * 5000}"]\n', "FILE:2: daemon.group: input should be a valid string, not ['xxx"),
        (b"# \xe4\n", "FILE: not TOML: 'utf-8' codec can't decode"),
    ],
)
def test_a_file_that_is_wrong_as_a_whole(tmp_path: Path, content: str | bytes, error: str) -> None:
    message = refusal_of_file(tmp_path, content)
    assert message.startswith(error)
    assert len(message) < 300


def test_flags_beat_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[daemon]\nsocket = "/file"\ninterval_seconds = 5\n[simulate]\ninstance_type = "trn2.48xlarge"\n')
    environment = {"NEURONTOOLS_SOCKET": "/environment", "NEURON_LOGICAL_NC_CONFIG": "1"}
    flags: dict[str, dict[str, Any]] = {"daemon": {"socket": "/flag"}, "simulate": {"logical_neuroncore_config": 2}}
    assert resolve_settings({}, str(file), {}).socket == "/file"
    assert resolve_settings({}, str(file), environment).socket == "/environment"
    assert resolve_settings(flags, str(file), environment).socket == "/flag"
    assert resolve_settings({}, str(file), {}).lnc is None
    assert resolve_settings({}, str(file), environment).lnc == 1
    assert resolve_settings(flags, str(file), environment).lnc == 2
    assert resolve_settings({"daemon": {"interval_seconds": 0.5}}, str(file), {}).interval_seconds == 0.5
    assert resolve_settings(flags, str(file), environment).interval_seconds == 5


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--interval", "0"], "--interval: input should be greater than or equal to 0.01, not 0.0"),
        (["--interval", "soon"], "argument --interval: invalid float value: 'soon'; see neurond --help"),
        (["--history", "-1"], "--history: input should be greater than or equal to 0, not -1.0"),
        (["--seed", "-1"], "--seed: input should be greater than or equal to 0, not -1"),
        (["--load-neuroncores", "0"], "--load-neuroncores: input should be greater than or equal to 1, not 0"),
        (["--group", ""], "--group: string should have at least 1 character, not ''"),
        (["--socket", "/" + "x" * 200], "--socket: the socket path /xxx"),
        (["--lnc", "3"], "argument --lnc: invalid choice: "),
        (["--load", "steady"], "--load needs simulated devices; add --simulate TYPE"),
        (["--simulate", "inf2.xlarge", "--seed", "3"], "--seed has no effect without a load; add --load SCENARIO"),
        (["--completion", "tcsh"], "--completion: tcsh is none of the shells bash, zsh, fish; give one"),
        (["--ultraserver", "us-1:0"], "--ultraserver needs simulated devices; add --simulate TYPE"),
        (["--ultraserver", "\x1b[2J:0"], "--ultraserver: '\\\\x1b[2J:0' is no place in an UltraServer; write"),
        (["--simulate"], "argument --simulate: expected one argument; see neurond --help"),
        (["--simulat", "trn1.2xlarge"], "unrecognized arguments: --simulat trn1.2xlarge; see neurond --help"),
        (["extra"], "unrecognized arguments: extra; see neurond --help"),
        (["--config", "/none"], "/none: No such file or directory; give a readable file with --config"),
        (["--config", "/"], "/: Is a directory; give a readable file with --config"),
        (["--ready-fd", "1000000"], "--ready-fd 1000000: not an open file descriptor"),
        (["--ready-fd", "-1"], "--ready-fd -1: not an open file descriptor"),
        (["--simulate", "trn1.2xlarge", "--lnc", "2"], "trn1.2xlarge: logical NeuronCore configuration 2 is"),
    ],
)
def test_every_flag_that_is_wrong_is_named(flags: list[str], error: str) -> None:
    assert refusal(flags).startswith(error)


@pytest.mark.parametrize(
    ("name", "near"), [("trn1.32xlage", "trn1.32xlarge"), ("TRN2.48XLARGE", "trn2.48xlarge"), ("inf2.48large", "inf2")]
)
def test_an_unknown_instance_type_and_those_that_are_near(name: str, near: str) -> None:
    error = refusal(["--simulate", name])
    assert name in error
    assert near in error


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("NEURON_LOGICAL_NC_CONFIG", "3", "NEURON_LOGICAL_NC_CONFIG='3': not a logical NeuronCore"),
        ("NEURONTOOLS_SOCKET", "/" + "x" * 200, "NEURONTOOLS_SOCKET: the socket path /xxx"),
    ],
)
def test_an_environment_that_is_wrong(monkeypatch: pytest.MonkeyPatch, name: str, value: str, error: str) -> None:
    monkeypatch.setenv(name, value)
    assert refusal(["--simulate", "trn2.48xlarge"]).startswith(error)


def test_the_command_ends_with_the_error() -> None:
    done = neurond("--interval", "0")
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert done.stderr == "neurond: --interval: input should be greater than or equal to 0.01, not 0.0\n"


@pytest.mark.slow
def test_a_host_without_devices() -> None:
    done = neurond()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "neurond: no Neuron devices found on this host; simulate some with --simulate trn1.32xlarge "
        "(all types: --list-instance-types)\n"
    )


def test_checking_the_configuration(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[simulate]\ninstance_type = "trn1.2xlarge"\n')
    assert settings_from(["--check-config", "--config", str(file), "--socket", "/s"]) is None
    start, told = capfd.readouterr().out.split(": ", 1)
    assert start == "configuration is valid"
    assert Settings(**json.loads(told)) == Settings(socket="/s", simulate="trn1.2xlarge")


SERVER = '[tls]\ncertificate = "{signed}/server.crt"\nkey = "{signed}/server.key"\n'
CLIENTS = f'{SERVER}client_ca = "{{signed}}/authority.crt"\n'
METRICS = '[metrics]\ntls_certificate = "{signed}/server.crt"\n'
METRICS_SERVER = f'{METRICS}tls_key = "{{signed}}/server.key"\n'
PAGES = '[web]\nenabled = true\n[metrics]\nlisten = ":8000"\n'
LISTEN = "--listen :8001: the API is served over TLS alone, to certificates that are named; set {} in the conf"
REFUSED = [
    ('[metrics]\ntls_key = "{signed}/server.key"', "metrics.tls_key and tls_client_ca need a certificate; set metrics"),
    (
        '[metrics]\ntls_certificate = "{signed}/absent"',
        "metrics.tls_certificate: {signed}/absent: No such file or directory; give",
    ),
    (METRICS, "metrics.tls_certificate: {signed}/server.crt: …; give PEM files"),
    (f'{METRICS}tls_key = "{{signed}}/authority.key"', "metrics.…key values mismatch; give PEM files that fit"),
    (
        f'{METRICS_SERVER}tls_client_ca = "{{signed}}/token"',
        "metrics.tls_client_ca: {signed}/token: …; give PEM files that",
    ),
    (
        '[metrics]\nbearer_token_file = "{directory}/empty"',
        "metrics.bearer_token_file: {directory}/empty: does not hold a token; write one line",
    ),
    (
        '[metrics]\nbearer_token_file = "{signed}/short"',
        "metrics.bearer_token_file: {signed}/short: the token has 6 characters; write at least 32, such as the output",
    ),
    (
        '[metrics]\nbearer_token_file = "{directory}/open"',
        "metrics.bearer_token_file: {directory}/open: holds a token and has the mode 0777; take it away from others",
    ),
    (
        '[actions]\nwebhook_url_file = "{directory}/open"',
        "actions.webhook_url_file: {directory}/open: holds the URL of a webhook and has the mode 0777; take it away",
    ),
    (
        '[actions]\nwebhook_url_file = "{signed}/token"',
        "actions.webhook_url_file: {signed}/token: holds no URL; write one such as https://",
    ),
    (f'{SERVER}client_crl = "{{signed}}/token"', "tls.client_crl needs the CAs of the clients; set tls.client_ca"),
    (f'{CLIENTS}client_crl = "{{signed}}/token"', "tls.client_crl: {signed}/token: holds no CRL; give the PEM file of"),
    ('[metrics]\ntls_client_crl = "/x"', "metrics.tls_client_crl needs the CAs of the clients; set metrics.tls_client"),
    ('[tls]\nkey = "{signed}/server.key"', "tls.key needs a certificate; set tls.certificate"),
    ('[tls]\nfull = ["a"]', "tls.full needs a certificate; set tls.certificate"),
    (SERVER.replace("server.key", "absent"), "tls.key: {signed}/absent: No such file or directory; give a"),
    (
        f'{SERVER}summary = ["a"]',
        "tls.summary and tls.full name certificates of clients, which nobody asks for; set tls.client_ca",
    ),
    (f'{CLIENTS}summary = ["a"]\nfull = ["A", "b"]', "tls.summary and tls.full both have a; leave it in one of them"),
    ("--listen :8001", LISTEN.format("tls.certificate and tls.key")),
    (f'{SERVER}[daemon]\nlisten = ":8001"', LISTEN.format("tls.client_ca")),
    (f'{CLIENTS}[daemon]\nlisten = ":8001"', LISTEN.format("tls.summary or tls.full")),
    (PAGES, "…other hosts can reach this address, and there is no TLS; listen on 127.0.0.1"),
    (PAGES.replace(":8000", "10.0.0.1:8000"), "…other hosts can reach this address, and there is no TLS"),
    (PAGES + METRICS_SERVER.removeprefix("[metrics]\n"), "…everybody would have access"),
    ('[metrics]\nbearer_token_file = "{signed}/token"', "metrics.bearer_token_file needs a listener for metrics"),
    ('[metrics]\nhosts = ["a"]', "metrics.hosts needs a listener for metrics; set metrics.listen"),
    ("[metrics]\ntls = false", "metrics.tls needs a listener for metrics; set metrics.listen"),
    *(
        (
            f'[metrics]\ntls = false\nlisten = "{address}"',
            f"metrics.tls = false needs a loopback address, but other hosts can reach {address}; listen on ",
        )
        for address in (":0", "0.0.0.0:0", "[::]:0")
    ),
    (
        '[metrics]\ntls = false\nlisten = "127.0.0.1:0"\ntls_certificate = "{signed}/token"',
        "metrics.tls = false excludes metrics.tls_certificate; leave one out",
    ),
    ("[web]\nenabled = true", "--web needs the address of --metrics-listen; give one, or leave --web out"),
    ('[metrics]\notlp_endpoint = "http://127.0.0.1:4318"', "--otlp-endpoint needs the OpenTelemetry SDK; install"),
    ("[load]\nneuroncores = 3", "--load-neuroncores: 3 is more than the 2 NeuronCores of trn1.2xlarge; give 1 to 2"),
    ('[sysfs]\nroot = "{directory}"', "{directory}/c.toml: simulate.instance_type excludes [sysfs]; leave one out"),
    (
        '[actions]\ncommand = ["true"]',
        "actions.command: true: not an absolute path; a command is run without a shell and",
    ),
    ('[actions]\ncommand = ["/nonexistent"]', "actions.command: /nonexistent: No such file or directory; give the"),
    ('[actions]\ncommand = ["/usr"]', "actions.command: /usr: not an executable program; give the path of one"),
    (
        '[actions]\ncommand = ["{directory}/open"]',
        "actions.command: {directory}/open: other users may change {directory}/open; let only root or this user",
    ),
    ("--socket {directory}", "{directory} exists and is not a socket; remove it, or choose another"),
    ("--socket {directory}/c.toml/s", "can't use the socket {directory}/c.toml/s (Not a directory)"),
    ("--export-sysfs {directory}", "--export-sysfs: {directory} is not empty and holds no exported tree; give an"),
    ("--export-sysfs /proc/here", "--export-sysfs: /proc/here belongs to the operating system; give a"),
    (
        "--export-kernel-log {directory}/no/log",
        "can't write a kernel log to {directory}/no/log: No such file or directory; give a file that can be written",
    ),
]


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the certificate of a server lies, that of its authority, and a token."""
    directory = tmp_path_factory.mktemp("signed")
    Authority(directory).sign("server")
    write_secret(directory / "token")
    write_secret(directory / "short", "s3cret")
    return directory


@needs_openssl
@pytest.mark.parametrize(("asked", "error"), REFUSED)
def test_what_a_start_refuses_is_refused_when_it_is_checked(
    socket_directory: Path, signed: Path, monkeypatch: pytest.MonkeyPatch, asked: str, error: str
) -> None:
    """Each is a table of the file or a flag; … stands for any text."""
    asked, error = (
        text.replace("{directory}", str(socket_directory)).replace("{signed}", str(signed)) for text in (asked, error)
    )
    for name, text, mode in (("open", "secret", 0o777), ("empty", " \n", 0o600)):
        (socket_directory / name).write_text(text)
        (socket_directory / name).chmod(mode)
    # As where it is not installed; another test may have loaded parts of it.
    for name in {"opentelemetry", *(name for name in sys.modules if name.startswith("opentelemetry."))}:
        monkeypatch.setitem(sys.modules, name, None)
    file = socket_directory / "c.toml"
    is_flag = asked.startswith("--")
    file.write_text(f'[simulate]\ninstance_type = "trn1.2xlarge"\n{"" if is_flag else asked}\n')
    flags = ["--config", str(file), "--socket", str(socket_directory / "s"), *(asked.split() if is_flag else ())]
    for arguments in (flags, ["--check-config", *flags]):
        with pytest.raises(UserError) as refused:
            settings_from(arguments)
        assert refused.value.exit_code in (1, EXIT_USAGE)
        assert re.match(re.escape(error).replace("…", ".*"), str(refused.value))
        assert "\n" not in str(refused.value)


@needs_openssl
@pytest.mark.parametrize("line", ['bearer_token_file = "{signed}/token"', 'tls_client_ca = "{signed}/authority.crt"'])
def test_pages_for_others_need_a_token_or_certificates_of_readers(tmp_path: Path, signed: Path, line: str) -> None:
    tables = PAGES + METRICS_SERVER.removeprefix("[metrics]\n") + line
    (tmp_path / "c.toml").write_text(tables.replace("{signed}", str(signed)))
    flags = ["--simulate", "trn1.2xlarge", "--socket", f"{tmp_path}/s", "--config", f"{tmp_path}/c.toml"]
    assert settings_from(["--check-config", *flags]) is None


def test_checking_neither_makes_a_directory_nor_minds_who_serves(
    shared_daemon: RunningDaemon, socket_directory: Path
) -> None:
    for path in (shared_daemon.socket, str(socket_directory / "not" / "yet" / "s")):
        assert settings_from(["--check-config", "--simulate", "trn1.2xlarge", "--socket", path]) is None
    assert not (socket_directory / "not").exists()


def test_lists_and_versions(capfd: pytest.CaptureFixture[str]) -> None:
    assert settings_from(["--list-instance-types"]) is None
    assert capfd.readouterr().out.split() == list(catalog.names())
    assert len(catalog.names()) == 18
    assert settings_from(["--version"]) is None
    assert capfd.readouterr().out.startswith("neurond ")
    shown = neurond("--help").stdout
    assert all(scenario in shown for scenario in SCENARIOS)


def test_settings_survive_the_way_to_the_second_stage() -> None:
    settings = Settings(socket="/ä\udcff", interval_seconds=0.1, load_seed=2**64 - 1, ready_fd=3)
    assert Settings.from_json(settings.to_json()) == settings


def test_nothing_is_imported_from_the_current_directory(tmp_path: Path) -> None:
    """A daemon that root starts in /tmp must not run what others put there."""
    for name in ("grpc", "asyncio", "logging", "neurond", "neurontools", "psutil"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('imported {name} from the current directory')")
    socket = tmp_path / "n.sock"
    flags = ("--simulate", "trn1.2xlarge", "--socket", str(socket), "--group", "no such group")
    done = neurond(*flags, directory=tmp_path)
    assert (done.returncode, done.stderr) == (
        EXIT_USAGE,
        "neurond: there is no group 'no such group'; name one of `getent group`\n",  # which the second stage says
    )
    assert not socket.exists()
