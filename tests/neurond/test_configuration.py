from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from neurond.load import SCENARIOS
from neurond.settings import Settings
from neurond.startup.command_line import settings_from
from neurond.startup.configuration import FLAGS, read, resolve
from neurond.startup.tables import Configuration

from neurontools import catalog
from neurontools.errors import EXIT_USAGE, UserError
from tests.harness.running_daemon import StartDaemon
from tests.harness.waiting import HANG_SECONDS


def neurond(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    clean = {"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": "/run/user/7"}
    return subprocess.run(
        [sys.executable, "-m", "neurond", *flags],
        capture_output=True,
        encoding="utf-8",
        env=clean | environment,
        timeout=HANG_SECONDS,
        check=False,
    )


def said(tmp_path: Path, text: str) -> str:
    """The error of a configuration file, its name left out."""
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(UserError) as refused:
        resolve({}, str(file), {})
    assert refused.value.exit_code == EXIT_USAGE
    assert "\n" not in str(refused.value)
    return str(refused.value).replace(str(file), "FILE")


def test_the_defaults() -> None:
    assert resolve({}, None, {"XDG_RUNTIME_DIR": "/r"}) == Settings(socket="/r/neurontools/neurond.sock")


def test_a_file_with_every_key(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        """
        [daemon]
        socket = "/s.sock"
        interval_seconds = 2      # whole numbers are numbers too
        history_seconds = 60.5
        history_bytes = 1000
        log_level = "debug"
        group = "users"
        [simulate]
        instance_type = "trn2.48xlarge"
        logical_neuroncore_config = 1
        [load]
        scenario = "steady"
        seed = 7
        neuroncores = 3
        """
    )
    assert resolve({}, str(file), {}) == Settings(
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


WRONG_LINES = [
    ('daemon.socket = ""', "daemon.socket: string should have at least 1 character, not ''"),
    ("daemon.socket = 3", "daemon.socket: input should be a valid string, not 3"),
    ("daemon.interval_seconds = 0", "daemon.interval_seconds: input should be greater than or equal to 0.01, not 0"),
    ('daemon.interval_seconds = "1"', "daemon.interval_seconds: input should be a valid number, not '1'"),
    ("daemon.interval_seconds = true", "daemon.interval_seconds: input should be a valid number, not True"),
    ("daemon.interval_seconds = nan", "daemon.interval_seconds: input should be a finite number, not nan"),
    ("daemon.interval_seconds = inf", "daemon.interval_seconds: input should be a finite number, not inf"),
    ("daemon.history_seconds = -1", "daemon.history_seconds: input should be greater than or equal to 0, not -1"),
    ("daemon.history_bytes = 1.5", "daemon.history_bytes: input should be a valid integer, not 1.5"),
    (
        'daemon.log_level = "loud"',
        "daemon.log_level: input should be 'error', 'warning', 'info' or 'debug', not 'loud'",
    ),
    ("actions.command = []", "actions.command: list should have at least 1 item after validation, not 0, not []"),
    ('actions.webhook = "x"', "actions.webhook: 'x' is no URL; write one such as http://127.0.0.1:4318"),
    ('actions.on = ["x"]', "actions.on: input should be 'begins' or 'ends', not 'x'"),
    ('actions.level = "x"', "actions.level: input should be 'notice', 'warning' or 'critical', not 'x'"),
    ('actions.problems = "x"', "actions.problems: input should be 'node', 'user' or 'all', not 'x'"),
    ('actions.only = ["x"]', "actions.only: 'x' is no name of a problem; neuron-healthcheck(8) has the names"),
    ("actions.timeout_seconds = 0", "actions.timeout_seconds: input should be greater than or equal to 1, not 0"),
    ("actions.retries = -1", "actions.retries: input should be greater than or equal to 0, not -1"),
    ("actions.most_per_hour = 0", "actions.most_per_hour: input should be greater than or equal to 1, not 0"),
    ("daemon.kmsg = 5", "daemon.kmsg: input should be a valid string, not 5"),
    ('daemon.state_directory = ""', "daemon.state_directory: string should have at least 1 character, not ''"),
    ('daemon.group = ""', "daemon.group: string should have at least 1 character, not ''"),
    (
        'daemon.listen = "x"',
        "daemon.listen: 'x' has no port from 0 to 65535; write HOST:PORT, such as 127.0.0.1:8000, or :8000",
    ),
    (
        'metrics.listen = "x"',
        "metrics.listen: 'x' has no port from 0 to 65535; write HOST:PORT, such as 127.0.0.1:8000, or :8000",
    ),
    *(
        (f'metrics.{name} = ""', f"metrics.{name}: string should have at least 1 character, not ''")
        for name in ("tls_certificate", "tls_key", "tls_client_ca", "bearer_token_file")
    ),
    *(
        (f'tls.{name} = ""', f"tls.{name}: string should have at least 1 character, not ''")
        for name in ("certificate", "key", "client_ca")
    ),
    ("tls.summary = []", "tls.summary: list should have at least 1 item after validation, not 0, not []"),
    (
        'tls.full = ["*.example.org"]',
        "tls.full: '*.example.org' is no DNS name; write one such as viewer.example.org, or a URI such as spiffe://",
    ),
    *(
        (f"web.{name} = 3", f"web.{name}: input should be a valid boolean, not 3")
        for name in ("enabled", "show_commands", "show_users")
    ),
    *(
        (f"metrics.{name} = 3", f"metrics.{name}: input should be a valid boolean, not 3")
        for name in ("tls", "untagged_together")
    ),
    (
        'metrics.hosts = ["a", "b:80"]',
        "metrics.hosts: 'b:80' is no name; write one without a port, such as metrics.example.org",
    ),
    (
        'metrics.otlp_endpoint = "collector:4318"',
        "metrics.otlp_endpoint: 'collector:4318' is no URL; write one such as http://127.0.0.1:4318",
    ),
    ("metrics.otlp_interval_seconds = 0", "metrics.otlp_interval_seconds: input should be greater than or equal to 1"),
    ("health.window_seconds = 0", "health.window_seconds: input should be greater than 0, not 0"),
    *(
        (f"health.{name} = -1", f"health.{name}: input should be greater than or equal to 0, not -1")
        for name in (
            "idle_seconds",
            "stuck_seconds",
            "memory_used_ratio",
            "ecc_corrected_events",
            "numerical_errors",
            "hardware_errors",
            "latency_growth_ratio",
            "silent_seconds",
        )
    ),
    ("daemon.intervals = 1", "daemon.intervals: there is no such key; see neurond(8) for those there are"),
    ("simulate.instance_type = 1", "simulate.instance_type: input should be a valid string, not 1"),
    ("simulate.logical_neuroncore_config = 3", "simulate.logical_neuroncore_config: input should be 1 or 2, not 3"),
    (
        'simulate.ultraserver = "us-1"',
        "simulate.ultraserver: 'us-1' is no place in an UltraServer; write NAME:INDEX, such as us-1:0, with a name of",
    ),
    ('load.scenario = "storm"', "load.scenario: input should be 'idle', 'steady', 'training-ramp', 'memory-leak'"),
    ("load.seed = -1", "load.seed: input should be greater than or equal to 0, not -1"),
    ("load.neuroncores = 0", "load.neuroncores: input should be greater than or equal to 1, not 0"),
    ("load.neuroncores = 1025", "load.neuroncores: input should be less than or equal to 1024, not 1025"),
    ('sysfs.root = ""', "sysfs.root: string should have at least 1 character, not ''"),
    ("sysfs.proc_root = 1", "sysfs.proc_root: input should be a valid string, not 1"),
    ("sysfs.dev_root = []", "sysfs.dev_root: input should be a valid string, not []"),
    ("sysfs.imds = 1", "sysfs.imds: input should be a valid boolean, not 1"),
    ("kubernetes.pod_resources_socket = 1", "kubernetes.pod_resources_socket: input should be a valid string, not 1"),
    ('sysfs.time_in_use_unit = "ms"', "sysfs.time_in_use_unit: input should be 'auto', 'us', 'ns' or 'ps', not 'ms'"),
    ('export.sysfs = ""', "export.sysfs: string should have at least 1 character, not ''"),
    ('export.driver_version = "new"', "export.driver_version: string should match pattern"),
    ('export.kernel_log = ""', "export.kernel_log: string should have at least 1 character, not ''"),
]


@pytest.mark.parametrize(("line", "cause"), WRONG_LINES)
def test_every_key_that_is_wrong_is_named_with_its_line(tmp_path: Path, line: str, cause: str) -> None:
    table, key = line.split(".", 1)
    assert said(tmp_path, f"# comment\n\n[{table}]\n{key}\n").startswith(f"FILE:4: {cause}")
    # The same written inline has no line of its own.
    assert said(tmp_path, f"{line}\n").startswith(f"FILE: {cause}")


def test_every_key_of_the_tables_was_tried() -> None:
    """So that a key added later gets its row above."""
    keys = {f"{table}.{key}" for table, of in Configuration.model_fields.items() for key in of.annotation.model_fields}  # type: ignore[union-attr]
    tried = {line.split(" ")[0] for line, _ in WRONG_LINES}
    assert keys <= tried
    assert set(FLAGS) <= keys


@pytest.mark.parametrize(
    ("text", "error"),
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
    ],
)
def test_a_file_that_is_wrong_as_a_whole(tmp_path: Path, text: str, error: str) -> None:
    message = said(tmp_path, text)
    assert message.startswith(error)
    assert len(message) < 300


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path, cause in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(UserError, match=f"^{path}: {cause}; give a readable file with --config$"):
            read(str(path))
    (tmp_path / "latin").write_bytes(b"# \xe4\n")
    with pytest.raises(UserError, match="not TOML: 'utf-8' codec can't decode"):
        read(str(tmp_path / "latin"))


def test_flags_beat_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[daemon]\nsocket = "/file"\ninterval_seconds = 5\n[simulate]\ninstance_type = "trn2.48xlarge"\n')
    environment = {"NEURONTOOLS_SOCKET": "/environment", "NEURON_LOGICAL_NC_CONFIG": "1"}
    flags: dict[str, dict[str, Any]] = {"daemon": {"socket": "/flag"}, "simulate": {"logical_neuroncore_config": 2}}
    assert resolve({}, str(file), {}).socket == "/file"
    assert resolve({}, str(file), environment).socket == "/environment"
    assert resolve(flags, str(file), environment).socket == "/flag"
    assert resolve({}, str(file), {}).lnc is None
    assert resolve({}, str(file), environment).lnc == 1
    assert resolve(flags, str(file), environment).lnc == 2
    assert resolve({"daemon": {"interval_seconds": 0.5}}, str(file), {}).interval_seconds == 0.5
    assert resolve(flags, str(file), environment).interval_seconds == 5


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--interval", "0"], "--interval: input should be greater than or equal to 0.01, not 0.0"),
        (["--interval", "nan"], "--interval: input should be a finite number, not nan"),
        (["--interval", "soon"], "argument --interval: invalid float value: 'soon'; see neurond --help"),
        (["--history", "-1"], "--history: input should be greater than or equal to 0, not -1.0"),
        (["--log-level", "loud"], "argument --log-level: invalid choice: 'loud' (choose from"),
        (["--seed", "-1"], "--seed: input should be greater than or equal to 0, not -1"),
        (["--seed", "1.5"], "argument --seed: invalid int value: '1.5'; see neurond --help"),
        (["--load-neuroncores", "0"], "--load-neuroncores: input should be greater than or equal to 1, not 0"),
        (["--group", ""], "--group: string should have at least 1 character, not ''"),
        (["--lnc", "3"], "argument --lnc: invalid choice: 3 (choose from"),
        (["--load", "storm"], "argument --load: invalid choice: 'storm' (choose from"),
        (["--load", "steady"], "--load needs simulated devices; add --simulate TYPE"),
        (["--ultraserver", "us-1:0"], "--ultraserver needs simulated devices; add --simulate TYPE"),
        (
            ["--ultraserver", "\x1b[2J:0"],
            "--ultraserver: '\\\\x1b[2J:0' is no place in an UltraServer; write NAME:INDEX",
        ),
        (["--simulate"], "argument --simulate: expected one argument; see neurond --help"),
        (["--simulat", "trn1.2xlarge"], "unrecognized arguments: --simulat trn1.2xlarge; see neurond --help"),
        (["extra"], "unrecognized arguments: extra; see neurond --help"),
        (["--config", "/none"], "/none: No such file or directory; give a readable file with --config"),
        (["--ready-fd", "77"], "--ready-fd 77: not an open file descriptor"),
        (["--ready-fd", "-1"], "--ready-fd -1: not an open file descriptor"),
        (["--simulate", "trn1.2xlarge", "--lnc", "2"], "trn1.2xlarge: logical NeuronCore configuration 2 is"),
    ],
)
def test_every_flag_that_is_wrong_is_named(flags: list[str], error: str) -> None:
    with pytest.raises(UserError) as refused:
        settings_from(flags)
    assert str(refused.value).startswith(error)
    assert refused.value.exit_code == EXIT_USAGE
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "near"), [("trn1.32xlage", "trn1.32xlarge"), ("TRN2.48XLARGE", "trn2.48xlarge"), ("inf2.48large", "inf2")]
)
def test_an_unknown_instance_type_and_those_that_are_near(name: str, near: str) -> None:
    with pytest.raises(UserError) as refused:
        settings_from(["--simulate", name])
    assert name in str(refused.value)
    assert near in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        ({"NEURON_LOGICAL_NC_CONFIG": "3"}, "neurond: NEURON_LOGICAL_NC_CONFIG='3': not a logical NeuronCore"),
        ({"NEURONTOOLS_SOCKET": "/" + "x" * 200}, "neurond: NEURONTOOLS_SOCKET: the socket path /xxx"),
    ],
)
def test_an_environment_that_is_wrong_is_named(environment: dict[str, str], error: str) -> None:
    done = neurond("--simulate", "trn2.48xlarge", **environment)
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert done.stderr.startswith(error)
    assert len(done.stderr.splitlines()) == 1


def test_the_command_ends_with_the_error() -> None:
    done = neurond("--interval", "0")
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert done.stderr == "neurond: --interval: input should be greater than or equal to 0.01, not 0.0\n"


def test_a_host_without_devices() -> None:
    done = neurond()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "neurond: no Neuron devices found on this host; simulate some with --simulate trn1.32xlarge "
        "(all types: --list-instance-types)\n"
    )


def test_checking_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[simulate]\ninstance_type = "trn1.2xlarge"\n')
    done = neurond("--check-config", "--config", str(file), "--socket", "/s")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("configuration is valid: ")
    told = json.loads(done.stdout.removeprefix("configuration is valid: "))
    assert Settings(**told) == Settings(socket="/s", simulate="trn1.2xlarge")
    file.write_text("[simulate]\ninstance_type = 7\n")
    done = neurond("--check-config", "--config", str(file))
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert done.stderr == f"neurond: {file}:2: simulate.instance_type: input should be a valid string, not 7\n"


REFUSED = [
    (
        '[metrics]\nbearer_token_file = "{directory}/token"',
        [],
        "metrics.bearer_token_file is for the listener of metrics",
    ),
    (
        '[metrics]\nhosts = ["a"]',
        [],
        "metrics.hosts is for the listener of metrics, and there is none; set metrics.listen",
    ),
    ("[metrics]\ntls = false", [], "metrics.tls is for the listener of metrics, and there is none; set metrics.listen"),
    *(
        (
            f'[metrics]\ntls = false\nlisten = "{address}"',
            [],
            f"metrics.tls = false is for a loopback address, and others reach {address}; listen on 127.0.0.1, or leave",
        )
        for address in (":0", "0.0.0.0:0", "[::]:0")
    ),
    (
        '[metrics]\ntls = false\nlisten = "127.0.0.1:0"\ntls_certificate = "{directory}/token"',
        [],
        "metrics.tls = false excludes metrics.tls_certificate; leave one out",
    ),
    ("[web]\nenabled = true", [], "--web is served where the metrics are; give --metrics-listen, or leave it out"),
    ('[metrics]\notlp_endpoint = "http://127.0.0.1:4318"', [], "--otlp-endpoint needs the OpenTelemetry SDK; install"),
    (
        "[load]\nneuroncores = 3",
        [],
        "--load-neuroncores: 3 are more than the 2 NeuronCores of trn1.2xlarge; give 1 to 2",
    ),
    ('[sysfs]\nroot = "{directory}"', [], "{directory}/c.toml: simulate.instance_type excludes [sysfs]; leave one out"),
    ("", ["--socket", "{directory}"], "{directory} exists and is not a socket; remove it, or choose another"),
    ("", ["--socket", "{directory}/c.toml/s"], "can't use the socket {directory}/c.toml/s (Not a directory)"),
    ("", ["--export-sysfs", "{directory}"], "--export-sysfs: {directory} is not empty and no tree of ours; give an"),
    ("", ["--export-sysfs", "/proc/here"], "--export-sysfs: /proc/here is the operating system's own; give a"),
    (
        "",
        ["--export-kernel-log", "{directory}/no/log"],
        "can't write a kernel log to {directory}/no/log: No such file or directory; give a file that can be written",
    ),
]


@pytest.mark.parametrize("is_start", [False, True], ids=["checked", "started"])
@pytest.mark.parametrize(("table", "flags", "error"), REFUSED)
def test_what_a_start_refuses_is_refused_when_it_is_checked(
    socket_directory: Path, table: str, flags: list[str], error: str, is_start: bool
) -> None:
    """In a directory without OpenTelemetry, which this environment may have."""

    def filled(text: str) -> str:
        return text.replace("{directory}", str(socket_directory))

    (socket_directory / "token").write_text("secret")
    (socket_directory / "token").chmod(0o600)
    hidden = socket_directory / "hidden" / "opentelemetry"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError\n")
    file = socket_directory / "c.toml"
    file.write_text(f'[simulate]\ninstance_type = "trn1.2xlarge"\n{filled(table)}\n')
    arguments = ["--config", str(file), "--socket", str(socket_directory / "s"), *map(filled, flags)]
    done = neurond(*([] if is_start else ["--check-config"]), *arguments, PYTHONPATH=str(hidden.parent))
    assert (done.returncode, done.stdout) in [(EXIT_USAGE, ""), (1, "")]
    assert done.stderr.startswith(f"neurond: {filled(error)}")
    assert len(done.stderr.splitlines()) == 1


def test_checking_neither_makes_a_directory_nor_minds_who_serves(
    start_daemon: StartDaemon, socket_directory: Path
) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge")
    for path in (daemon.socket, str(socket_directory / "not" / "yet" / "s")):
        assert neurond("--check-config", "--simulate", "trn1.2xlarge", "--socket", path).returncode == 0
    assert not (socket_directory / "not").exists()


def test_lists_and_versions() -> None:
    done = neurond("--list-instance-types")
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, list(catalog.names()), "")
    assert len(catalog.names()) == 18
    assert neurond("--version").stdout.startswith("neurond ")
    shown = neurond("--help").stdout
    assert all(scenario in shown for scenario in SCENARIOS)


def test_settings_survive_the_way_to_the_second_stage() -> None:
    settings = Settings(socket="/ä\udcff", interval_seconds=0.1, load_seed=2**64 - 1, ready_fd=3)
    assert Settings.from_json(settings.to_json()) == settings


def test_nothing_is_imported_from_the_current_directory(tmp_path: Path) -> None:
    """A daemon that root starts in /tmp must not run what others put there."""
    for name in ("grpc", "asyncio", "logging", "neurond", "neurontools", "psutil"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('imported {name} from the current directory')")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "neurond", "--simulate", "trn1.2xlarge", "--group", "no such group"],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.stderr.startswith("neurond: there is no group"), "which the second stage says"
