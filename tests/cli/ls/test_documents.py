"""neuron-ls: its documents, which daemon it asks, and a host with devices and no daemon."""

from __future__ import annotations

import itertools
import json
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import grpc
import pytest

from neurontools.cli.ls import command
from neurontools.driver.environment import Roots
from neurontools.model import Snapshot
from neurontools.rpc.ask import ask_error
from neurontools.rpc.call import Unreachable
from neurontools.rpc.socket_path import SYSTEM_SOCKET
from neurontools.testing import DriverTree, process_on
from neurontools.util.version import __version__
from neurontools.views.device_list import device_list_json, device_list_table
from tests.harness.command import RunCommand, calls
from tests.harness.monitor_server import MonitorServer
from tests.harness.paths import NEURON_LS
from tests.harness.snapshots import process_of, snapshot_of
from tests.harness.waiting import HANG_SECONDS, run_to_end


def test_every_combination_of_flags(neuron_ls: RunCommand, server: MonitorServer, busy_host: Snapshot) -> None:
    for size in range(5):
        for flags in itertools.combinations("watj", size):
            if {"t", "j"} <= {*flags}:
                continue  # refused, see the options
            done = neuron_ls(*([f"-{''.join(flags)}"] if flags else []), "--socket", f"unix:{server.socket_path}")
            all_processes = "a" in flags
            if "j" in flags:
                expected = device_list_json(busy_host, all_processes=all_processes)
            else:
                expected = device_list_table(
                    busy_host, wide="w" in flags, all_processes=all_processes, topology="t" in flags
                )
            assert (done.stdout, done.stderr, done.returncode) == (expected, "", 0), flags


def test_a_document_larger_than_any_buffer(clean_environment: dict[str, str], server: MonitorServer) -> None:
    server.snapshot = snapshot_of("trn1.32xlarge", [process_of(7, "x" * 200_000, range(16))])
    command = [sys.executable, str(NEURON_LS), "-j", "--socket", server.socket_path]
    done = run_to_end(command, env=clean_environment)
    assert (done.stdout, done.stderr, done.returncode) == (device_list_json(server.snapshot), "", 0)


@pytest.mark.parametrize(
    ("arguments", "indices"),
    [
        (["-d", "3"], [3]),
        (["-d", "0-2,5"], [0, 1, 2, 5]),
        (["-d", " 1 , 4 - 5 "], [1, 4, 5]),
        (["-d", "2", "--device", "1"], [1, 2]),
        (["-d", "0000:cc:00.0,1"], [0, 1]),
        (["-d", "F7:00.0"], [15]),
    ],
)
def test_device_selection(
    neuron_ls: RunCommand, server: MonitorServer, busy_host: Snapshot, arguments: list[str], indices: list[int]
) -> None:
    done = neuron_ls("--socket", server.socket_path, "-j", *arguments)
    assert (done.stdout, done.stderr) == (device_list_json(busy_host, device_indices=indices), "")


def test_variables(neuron_ls: RunCommand, server: MonitorServer) -> None:
    names = ("OTHER", "NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE")
    for name, asked, shown in zip(names, (0, 1, 2), (2, 1, 2), strict=True):
        done = neuron_ls("--socket", server.socket_path, **{name: str(asked)})
        assert f"logical-neuroncore-config: {shown}\n" in done.stdout
    done = neuron_ls("--socket", server.socket_path, NEURON_LOGICAL_NC_CONFIG="4")
    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr == (
        "neuron-ls: NEURON_LOGICAL_NC_CONFIG='4': not a logical NeuronCore configuration; set it to 1 or 2, "
        "or unset it\n"
    )
    done = neuron_ls(NEURONTOOLS_SOCKET="/" + "x" * 200)
    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr.startswith("neuron-ls: NEURONTOOLS_SOCKET: the socket path /xxx")


def test_help_and_version(neuron_ls: RunCommand) -> None:
    done = neuron_ls("-wh", "--no-such-flag")
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.startswith("Usage: neuron-ls [options]\n")
    assert re.search(r"\n  -w, --wide +commands up to 80 characters instead of 40\n", done.stdout)
    assert "      --socket PATH          " in done.stdout
    done = neuron_ls("--version")
    assert (done.stdout, done.stderr, done.returncode) == (f"neuron-ls {__version__}\n", "", 0)


without_own_daemon = pytest.mark.skipif(
    Path(SYSTEM_SOCKET).exists() or Path("/dev/neuron0").exists(), reason="this host has a daemon or devices"
)


def test_sockets_without_a_daemon(neuron_ls: RunCommand, socket_directory: Path) -> None:
    path = f"{socket_directory}/gone.sock"
    done = neuron_ls("--socket", path)
    assert (done.stdout, done.returncode) == ("", 12)
    assert done.stderr == (
        f"neuron-ls: no monitor daemon at unix:{path} (no such file or directory); start one with "
        f'"neurond --socket {path} --simulate trn1.32xlarge"\n'
    )
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(path)
    done = neuron_ls(NEURONTOOLS_SOCKET=path)
    assert done.returncode == 12
    assert "(connection refused)" in done.stderr


@without_own_daemon
def test_neither_daemon_nor_devices(neuron_ls: RunCommand) -> None:
    done = neuron_ls()
    assert (done.stdout, done.returncode) == ("", 1)
    time, _, rest = done.stderr.partition(" ")
    told_at = datetime.strptime(time, 'time="%Y-%m-%dT%H:%M:%SZ"').replace(tzinfo=UTC)
    assert abs(datetime.now(UTC) - told_at) < timedelta(minutes=5)
    assert rest == (
        'level=fatal msg="Failed to load MLA system information" error="failed to discover Neuron devices: no driver '
        "on this host and no monitor daemon; start one with neurond --simulate trn1.32xlarge, or pass --simulate "
        'TYPE"\n'
    )


@without_own_daemon
def test_the_daemon_of_the_user_is_found_also_when_it_cannot_answer(
    neuron_ls: RunCommand, socket_directory: Path, busy_host: Snapshot
) -> None:
    (socket_directory / "neurontools").mkdir()
    running = MonitorServer(f"{socket_directory}/neurontools/neurond.sock", busy_host)
    try:
        assert neuron_ls().stdout == device_list_table(busy_host)
        running.status = (grpc.StatusCode.UNAVAILABLE, "shutting down")
        done = neuron_ls()
    finally:
        running.close()
    assert (done.stdout, done.returncode) == ("", 12)
    assert "can't answer (shutting down)" in done.stderr


@pytest.mark.slow
def test_named_socket_beats_the_environment(neuron_ls: RunCommand, server: MonitorServer) -> None:
    done = neuron_ls("--socket", server.socket_path, NEURONTOOLS_SOCKET="/gone", NEURONTOOLS_SIMULATE="no-such-type")
    assert (done.stderr, done.returncode) == ("", 0)
    done = neuron_ls(NEURONTOOLS_SOCKET=server.socket_path, NEURONTOOLS_SIMULATE="no-such-type")
    assert (done.stderr, done.returncode) == ("", 0)
    done = neuron_ls("--simulate", "inf2.24xlarge", NEURONTOOLS_SOCKET="/gone", NEURONTOOLS_SIMULATE="trn1.2xlarge")
    assert done.stdout.startswith("instance-type: inf2.24xlarge\n")
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("status", "exit_code", "message"),
    [
        ("PERMISSION_DENIED", 4, "{at} refuses: why\\x1b"),
        ("NOT_FOUND", 6, "why\\x1b"),
        ("UNAVAILABLE", 12, "{at} can't answer (why\\x1b); retry, or see its log"),
        ("DEADLINE_EXCEEDED", 124, "{at} gave no answer in time (why\\x1b); see its log, or restart it"),
        ("INTERNAL", 1, "{at} failed (INTERNAL: why\\x1b); is it of another version?"),
    ],
)
def test_status_of_the_call(
    neuron_ls: RunCommand, server: MonitorServer, status: str, exit_code: int, message: str
) -> None:
    server.status = (grpc.StatusCode[status], "why\x1b")
    done = neuron_ls("--socket", server.socket_path)
    expected = f"neuron-ls: {message.format(at=f'the monitor daemon at unix:{server.socket_path}')}\n"
    assert (done.stdout, done.stderr, done.returncode) == ("", expected, exit_code)


def test_no_access() -> None:
    refused = Unreachable("Permission denied")
    refused.__cause__ = PermissionError()
    told = ask_error("/locked/n.sock", refused)
    at = "the monitor daemon at unix:/locked/n.sock"
    expected = f"no access to {at} (permission denied); use an account that its socket admits"
    assert (told.exit_code, str(told)) == (4, expected)


def test_no_answer_in_time(neuron_ls: RunCommand, socket_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "TIMEOUT_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{socket_directory}/silent.sock")
        silent.listen()
        assert neuron_ls("--socket", f"{socket_directory}/silent.sock").returncode == 124


def test_odd_server_is_asked_by_grpcio(neuron_ls: RunCommand, server: MonitorServer, socket_directory: Path) -> None:
    """The first connection gets the answer of a web server; the one after it is relayed to the real server."""

    def relay(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # one end is gone, which ends the relay as well
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        first, _ = listener.accept()
        with first:
            assert first.recv(65536).startswith(b"PRI")
            first.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        second, _ = listener.accept()
        with second, socket.socket(socket.AF_UNIX) as real:
            real.connect(server.socket_path)
            back = threading.Thread(target=relay, args=(real, second))
            back.start()
            relay(second, real)
            back.join()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(HANG_SECONDS)
        listener.bind(f"{socket_directory}/odd.sock")
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        done = neuron_ls("--socket", f"{socket_directory}/odd.sock")
        thread.join()
    assert (done.stdout, done.stderr, done.returncode) == (device_list_table(server.snapshot), "", 0)


@pytest.fixture
def inf2(clean_environment: dict[str, str]) -> Iterator[tuple[DriverTree, RunCommand]]:
    """The driver's tree of a host with one device, and neuron-ls on it."""
    with DriverTree("inf2.xlarge") as tree:
        yield tree, calls("neuron-ls", clean_environment | tree.environment)


def test_devices_are_listed_without_a_daemon(neuron_ls: RunCommand, tmp_path: Path) -> None:
    assert not Roots.from_environment({"NEURONTOOLS_SYSFS_ROOT": str(tmp_path)}).has_devices
    with DriverTree("trn1.32xlarge") as tree:
        assert Roots.from_environment(tree.environment).has_devices
        neuron_ls = partial(neuron_ls, **tree.environment)
        tree.set_processes(process_on(4711, "python train.py", cores=(2, 3), runtime_version="2.34.10"))
        plain = neuron_ls()
        assert (plain.returncode, plain.stderr) == (0, "")
        assert "| 1      | 2      | 2-3      | 32 GB  | 13, 0, 5, 2   | 0000:10:1d.0 | 4711 " in plain.stdout
        devices = json.loads(neuron_ls("-j").stdout)
        assert [device["neuron_device"] for device in devices] == list(range(16))
        assert devices[1]["neuron_processes"] == [
            {"pid": 4711, "command": "python train.py", "neuron_runtime_version": "2.34.10"}
        ]
        for name in ("0000:10:1d.0", "ffffffff00000001"):
            assert [device["neuron_device"] for device in json.loads(neuron_ls("-j", "-d", name).stdout)] == [1]
        assert "its serial numbers: ffffffff00000000, " in neuron_ls("-d", "f" * 16).stderr
        assert "Legend" in neuron_ls("-t").stdout


@pytest.mark.slow
def test_neuron_top_reads_devices_without_a_daemon_by_one_of_its_own(
    tree: DriverTree, clean_environment: dict[str, str]
) -> None:
    done = calls("neuron-top", clean_environment)("--json", **tree.environment)
    assert (done.returncode, done.stderr) == (0, "")
    shown = json.loads(done.stdout)
    assert (shown["source"], shown["instance_type"]) == ("sysfs", "trn1.2xlarge")


def test_cores_are_counted_under_the_lnc(neuron_ls: RunCommand) -> None:
    with DriverTree("trn2.3xlarge") as tree:
        assert json.loads(neuron_ls("-j", **tree.environment).stdout)[0]["nc_count"] == 4
        one = neuron_ls("-j", **tree.environment, NEURON_LOGICAL_NC_CONFIG="1")
        assert json.loads(one.stdout)[0]["nc_count"] == 8


def test_an_observer_is_listed_only_when_all_are_asked_for(inf2: tuple[DriverTree, RunCommand]) -> None:
    tree, neuron_ls = inf2
    tree.set_processes(process_on(99, "monitor", devices=(0,)))
    assert "monitor" not in neuron_ls().stdout
    assert "monitor" in neuron_ls("-a").stdout


@pytest.mark.parametrize("flag", ["-d7", "-d0000:00:00.0"])
def test_a_device_that_is_not_there(inf2: tuple[DriverTree, RunCommand], flag: str) -> None:
    refused = inf2[1](flag)
    assert (refused.returncode, refused.stdout) == (6, "")
    assert refused.stderr.startswith("neuron-ls: no device ")
    assert refused.stderr.count("\n") == 1


def test_a_tree_of_unknown_chips_is_an_error_in_one_line(inf2: tuple[DriverTree, RunCommand]) -> None:
    tree, neuron_ls = inf2
    for name in ("arch_type", "instance_type", "device_name"):
        tree.write(f"sys/devices/virtual/neuron_device/neuron0/info/architecture/{name}", "\x1b[31mXYZ9\n")
    tree.write("sys/devices/virtual/dmi/id/product_name", "m5.large\n")
    refused = neuron_ls()
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "have an architecture that this version does not know (" in refused.stderr
    assert "\x1b" not in refused.stderr
