"""neuron-ls as a user runs it: documents, flags, devices."""

from __future__ import annotations

import itertools
import json
import re
import socket
import struct
import subprocess
import sys
import threading

import pytest

from neurontools.model import Snapshot
from neurontools.rpc.socket_path import attach_socket
from neurontools.version import __version__
from neurontools.views.device_list import device_list_json, device_list_table
from tests.harness.monitor_server import MonitorServer
from tests.harness.neuron_ls import RunNeuronLs
from tests.harness.paths import NEURON_LS
from tests.harness.snapshots import process_of, snapshot_of
from tests.harness.waiting import HANG_SECONDS


@pytest.mark.parametrize(
    "flags", ["".join(flags) for size in range(5) for flags in itertools.combinations("watj", size)]
)
def test_every_combination_of_flags(
    neuron_ls: RunNeuronLs, server: MonitorServer, busy_host: Snapshot, flags: str
) -> None:
    done = neuron_ls(*([f"-{flags}"] if flags else []), "--socket", server.socket_path)
    if "j" in flags:
        expected = device_list_json(busy_host, all_processes="a" in flags)
    else:
        expected = device_list_table(busy_host, wide="w" in flags, all_processes="a" in flags, topology="t" in flags)
    assert (done.stdout, done.stderr, done.returncode) == (expected, "", 0)


def test_long_flags_are_the_short_ones(neuron_ls: RunNeuronLs, server: MonitorServer) -> None:
    server.requests.clear()
    neuron_ls("--wide", "--show-all-procs", "--topology", "--device=1", f"--socket={server.socket_path}")
    neuron_ls("-wat", "-d1", "--socket", f"unix:{server.socket_path}")
    neuron_ls("--json", "--socket", server.socket_path)
    neuron_ls("--json-output", "--socket", server.socket_path)
    first, second, third, fourth = server.requests
    assert first == second
    assert third == fourth


def test_bytes_of_the_table(neuron_ls: RunNeuronLs, server: MonitorServer) -> None:
    server.snapshot = snapshot_of("trn1.2xlarge", [process_of(7, "python3 train.py", [0])])
    assert neuron_ls("--socket", server.socket_path).stdout == (
        "instance-type: trn1.2xlarge\n"
        "instance-id: i-0123456789abcdef0\n"
        "+--------+--------+----------+--------+--------------+-----+----------+------+------------------+---------+\n"
        "| NEURON | NEURON |  NEURON  | NEURON |     PCI      | PID |   CPU    | NUMA |     COMMAND      | RUNTIME |\n"
        "| DEVICE | CORES  | CORE IDS | MEMORY |     BDF      |     | AFFINITY | NODE |                  | VERSION |\n"
        "+--------+--------+----------+--------+--------------+-----+----------+------+------------------+---------+\n"
        "| 0      | 2      | 0-1      | 32 GB  | 0000:00:1e.0 | 7   | 0-7      | -1   | python3 train.py | 2.34.10 |\n"
        "+--------+--------+----------+--------+--------------+-----+----------+------+------------------+---------+\n"
    )


def test_a_document_larger_than_any_buffer(neuron_ls: RunNeuronLs, server: MonitorServer) -> None:
    server.snapshot = snapshot_of("trn1.32xlarge", [process_of(7, "x" * 200_000, range(16))])
    assert neuron_ls("-j", "--socket", server.socket_path).stdout == device_list_json(server.snapshot)


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
    neuron_ls: RunNeuronLs, server: MonitorServer, busy_host: Snapshot, arguments: list[str], indices: list[int]
) -> None:
    done = neuron_ls("--socket", server.socket_path, "-j", *arguments)
    assert (done.stdout, done.stderr) == (device_list_json(busy_host, device_indices=indices), "")


@pytest.mark.parametrize(
    ("device", "exit_code", "message"),
    [
        ("99", 6, "neuron-ls: no device 99 on this host; its devices: 0, 1,"),
        ("0000:ff:1f.7", 6, "neuron-ls: no device at 0000:ff:1f.7 on this host; its PCI addresses: 0000:58:00.0, "),
        ("3-1", 2, "neuron-ls: --device: the range 3-1 runs backwards; write 1-3\n"),
        ("a", 2, "neuron-ls: --device: a is no device; give indices, ranges or PCI addresses such as"),
        ("1,,2", 2, 'neuron-ls: --device: "" is no device;'),
        ("1024", 2, "neuron-ls: --device: 1024 is no device;"),
        ("\x1b[31m", 2, "neuron-ls: --device: \\x1b[31m is no device;"),
        ("cc:00:0", 2, "neuron-ls: --device: cc:00:0 is no device;"),
        ("\u0663", 2, "neuron-ls: --device: \u0663 is no device;"),
    ],
)
def test_devices_that_cannot_be(
    neuron_ls: RunNeuronLs, server: MonitorServer, device: str, exit_code: int, message: str
) -> None:
    done = neuron_ls("--socket", server.socket_path, "-d", device)
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
    assert (done.stdout, done.returncode) == ("", exit_code)


@pytest.mark.parametrize(
    ("environment", "lnc"),
    [
        ({"NEURON_LOGICAL_NC_CONFIG": "1"}, 1),
        ({"NEURON_LOGICAL_NC_CONFIG": " 2 "}, 2),
        ({"NEURON_LOGICAL_NC_CONFIG": "", "NEURON_RT_VIRTUAL_CORE_SIZE": "1"}, 1),
        ({"NEURON_LOGICAL_NC_CONFIG": "2", "NEURON_RT_VIRTUAL_CORE_SIZE": "1"}, 2),
        ({}, 0),
    ],
)
def test_lnc_of_the_environment(
    neuron_ls: RunNeuronLs, server: MonitorServer, environment: dict[str, str], lnc: int
) -> None:
    done = neuron_ls("--socket", server.socket_path, **environment)
    assert f"logical-neuroncore-config: {lnc or 2}\n" in done.stdout
    assert server.requests[-1].logical_neuroncore_config == lnc


def test_lnc_that_cannot_be(neuron_ls: RunNeuronLs, server: MonitorServer) -> None:
    done = neuron_ls("--socket", server.socket_path, NEURON_LOGICAL_NC_CONFIG="4")
    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr == (
        "neuron-ls: NEURON_LOGICAL_NC_CONFIG='4': not a logical NeuronCore configuration; set it to 1 or 2, "
        "or unset it\n"
    )


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["--wdie"], 1, "unknown flag --wdie (did you mean --wide?); see --help"),
        (["-x"], 1, "unknown flag -x; see --help"),
        (["-wx"], 1, "unknown flag -x; see --help"),
        (["--\x1b"], 1, "unknown flag --\\x1b; see --help"),
        (["--wide=yes"], 2, "--wide takes no value; leave yes out"),
        (["-w=yes"], 2, "-w takes no value; leave yes out"),
        (["--socket"], 2, "--socket needs a value: --socket PATH"),
        (["--socket", "--wide"], 2, "--socket needs a value: --socket PATH"),
        (["--socket="], 2, "--socket needs a value: --socket PATH"),
        (["-d"], 2, "-d needs a value: -d LIST"),
        (["all"], 2, "unexpected argument all; all choices are flags, see --help"),
        (["--", "all"], 2, "unexpected argument --; all choices are flags, see --help"),
        (
            ["--socket", "/x", "--simulate", "trn1.2xlarge"],
            2,
            "--simulate and --socket exclude each other; give one of them",
        ),
        (["--completion", "tcsh"], 2, "--completion: tcsh is none of the shells bash, zsh, fish; give one"),
    ],
)
def test_misuse(neuron_ls: RunNeuronLs, arguments: list[str], exit_code: int, message: str) -> None:
    done = neuron_ls(*arguments)
    assert (done.stdout, done.stderr, done.returncode) == ("", f"neuron-ls: {message}\n", exit_code)


def test_socket_path_too_long(neuron_ls: RunNeuronLs) -> None:
    done = neuron_ls(NEURONTOOLS_SOCKET="/" + "x" * 200)
    assert done.returncode == 2
    assert done.stderr.startswith("neuron-ls: NEURONTOOLS_SOCKET: the socket path /xxx")


def test_help_goes_to_stdout_and_ends_there(neuron_ls: RunNeuronLs) -> None:
    done = neuron_ls("-wh", "--no-such-flag")
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.startswith("Usage: neuron-ls [options]\n")
    assert re.search(r"\n  -w, --wide +commands up to 80 characters instead of 40\n", done.stdout)
    assert "      --socket PATH          " in done.stdout


def test_version(neuron_ls: RunNeuronLs) -> None:
    done = neuron_ls("--version")
    assert (done.stdout, done.stderr, done.returncode) == (f"neuron-ls {__version__}\n", "", 0)


def test_shows_itself_among_all_processes(
    neuron_ls: RunNeuronLs, server: MonitorServer, clean_environment: dict[str, str]
) -> None:
    """As the daemon does it: the connection to the attach socket says who is there, and for how long."""
    with socket.socket(socket.AF_UNIX) as attach:
        attach.bind(attach_socket(server.socket_path))
        attach.listen()
        left = threading.Event()
        seen = threading.Event()

        def watch() -> None:
            connection, _ = attach.accept()
            with connection:
                pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                observer = process_of(pid, "neuron-ls -a", range(16), None)
                server.snapshot = snapshot_of("trn1.32xlarge", [observer])
                connection.sendall(b"token\n")
                seen.set()
                connection.recv(1)
                left.set()

        thread = threading.Thread(target=watch)
        thread.start()
        was_there: list[bool] = []
        server.prepare = lambda: was_there.append(seen.wait(HANG_SECONDS) and not left.is_set())
        done = neuron_ls("-ja", "--socket", server.socket_path)
        thread.join()
    assert was_there == [True]
    (shown,) = {process["pid"] for device in json.loads(done.stdout) for process in device["neuron_processes"]}
    assert shown == server.snapshot.processes[0].pid
    assert (done.stderr, done.returncode) == ("", 0)


def test_nothing_heavy_is_imported(server: MonitorServer, clean_environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", NEURON_LS, "-wtj", "--socket", server.socket_path],
        capture_output=True,
        text=True,
        env=clean_environment,
        check=True,
    )
    imported = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines()}
    baseline = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "pass"],
        capture_output=True,
        text=True,
        env=clean_environment,
        check=True,
    )
    own = imported - {line.rsplit("|", 1)[1].strip() for line in baseline.stderr.splitlines()}
    heavy = {"argparse", "re", "json", "typing", "dataclasses", "enum", "pathlib", "socket", "subprocess", "grpc"}
    assert not own & heavy
    assert "neurontools.rpc.call" in own
