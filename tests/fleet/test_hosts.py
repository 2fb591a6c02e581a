"""Hosts as they are named: on the command line, in files, by Prometheus, and as the nodes of a job of Slurm."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.fleet.hosts import (
    HostAddress,
    Reach,
    expand_brackets,
    format_hostfile,
    parse_hosts_option,
    read_file_sd,
    read_hostfile,
)
from neurontools.fleet.slurm import MOST_BYTES, ScontrolMissing, run_scontrol, slurm_job_hosts
from neurontools.util.errors import UserError
from tests.harness.running_daemon import StartDaemon
from tests.harness.slurm_cluster import NODE, SlurmCluster, needs_slurm
from tests.harness.waiting import HANG_SECONDS, wait_until


def test_names_stand_for_ssh_and_places_for_themselves() -> None:
    found = parse_hosts_option(
        "a, unix:/run/b.sock,ssh:root@c, grpcs://trn[1-2]:8001, grpcs://[::1]:8002,d grpcs://10.0.0.1:1"
    )
    assert found.places == (
        HostAddress("a", Reach.SSH, "a"),
        HostAddress("b", Reach.SOCKET, "/run/b.sock"),
        HostAddress("root@c", Reach.SSH, "root@c"),
        HostAddress("trn1", Reach.TLS, "//trn1:8001"),
        HostAddress("trn2", Reach.TLS, "//trn2:8001"),
        HostAddress("::1", Reach.TLS, "//[::1]:8002"),
        HostAddress("d", Reach.TLS, "//10.0.0.1:1"),
    )
    assert format_hostfile(found.places).splitlines()[-2:] == ["::1 grpcs://[::1]:8002", "d grpcs://10.0.0.1:1"]


def test_lists_as_slurm_writes_them() -> None:
    assert expand_brackets("trn[01-03,7]-x[1-2]") == [
        "trn01-x1", "trn01-x2", "trn02-x1", "trn02-x2", "trn03-x1", "trn03-x2", "trn7-x1", "trn7-x2",
    ]  # fmt: skip
    assert [place.name for place in parse_hosts_option("trn[1-2,4],login2").places] == [
        "trn1",
        "trn2",
        "trn4",
        "login2",
    ]


def test_a_hostfile_reads_back_what_was_written(tmp_path: Path) -> None:
    places = (HostAddress("a", Reach.SOCKET, "/tmp/a.sock"), HostAddress("b", Reach.SSH, "root@b"))
    file = tmp_path / "hosts"
    file.write_text("# fleet\n\n" + format_hostfile(places) + "c # the third\n")
    hosts = read_hostfile(str(file))
    assert hosts.places == (*places, HostAddress("c", Reach.SSH, "c"))
    assert hosts.problems == ()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("-oProxyCommand=evil", "is not a host name"),
        ("a ssh:-oProxyCommand=evil", "is not a valid ssh destination"),
        ("a ssh:b;rm", "is not a valid ssh destination"),
        ("a tcp:b:1", "is not an address"),
        ("a grpcs://b", "is not an address; write grpcs://HOST:PORT"),
        ("a[1-2] grpcs://b:1", "several names cannot share one address"),
        ("a unix:relative", "must begin with a slash"),
        ("a[1-2] unix:/x", "several names cannot share one address"),
        ("a[1-", "brackets that don't match"),
        ("a[2-1]", "is not a range of numbers"),
        ("a[1-999999999]", "is not a range of numbers"),
        ("a[1-200][1-200]", "more than 10000 hosts"),
        ("\x1b[2J", "brackets that don't match"),
        ("x" * 300, "is not a host name"),
        ("good", "good is named twice"),
    ],
)
def test_a_wrong_line_is_told_and_the_others_count(tmp_path: Path, line: str, why: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(f"good\n{line}\nbetter\n")
    hosts = read_hostfile(str(file))
    assert [place.name for place in hosts.places] == ["good", "better"]
    (trouble,) = hosts.problems
    assert trouble.startswith(f"{file}:2: ")
    assert why in trouble
    assert trouble.isprintable()


def test_of_many_wrong_lines_some_are_told(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("".join(f"host-{n} {'?' if n % 100 == 0 else ''}\n" for n in range(10_000)))
    hosts = read_hostfile(str(file))
    assert (len(hosts.places), len(hosts.problems)) == (9_900, 21)
    assert hosts.problems[-1] == "and 80 more lines are invalid"


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda file: None, "there is no such file"),
        (lambda file: file.mkdir(), "is a directory"),
        (lambda file: file.write_bytes(b"a\n" * 2**21 + b"b"), "is larger than 4 MiB"),
    ],
)
def test_a_hostfile_that_is_none_is_told_in_a_line(tmp_path: Path, make: object, cause: str) -> None:
    file = tmp_path / "hosts"
    make(file)  # type: ignore[operator]
    with pytest.raises(UserError, match=cause):
        read_hostfile(str(file))


@given(st.text(max_size=60))
def test_whatever_is_named_is_a_host_or_a_trouble(text: str) -> None:
    for none, cause in ((" , ", "names no host"), ("-x", "is not a host name")):
        with pytest.raises(UserError, match=cause):
            parse_hosts_option(none)
    try:
        hosts = parse_hosts_option(text)
    except UserError as error:
        assert "\n" not in str(error)
        return
    assert all(not place.address.startswith("-") for place in hosts.places)
    assert all(trouble.isprintable() for trouble in hosts.problems)


def test_targets_are_hosts_with_their_labels(tmp_path: Path) -> None:
    file = tmp_path / "hosts.json"
    groups = [
        {"targets": ["10.0.0.1:8000"], "labels": {"node": "trn-1", "rack": "a 1", "__meta_x": "y"}},
        {"targets": ["trn-2:8000", "[::1]:8000", "-oProxyCommand=x:8000"], "labels": {"node": "both"}},
        {"targets": ["trn-3"], "labels": {"node": "trn-3", "__neuron_place__": "unix:/run/a b.sock"}},
        {"targets": [], "labels": None},
        *([], {"targets": [1]}),
    ]
    file.write_text(json.dumps(groups))
    found = read_file_sd(str(file))
    assert [trouble.removeprefix(f"{file}: group ") for trouble in found.problems] == [
        "2: '-oProxyCommand=x' is not a host name",
        "5: has no list of targets",
        "6: has a target or a label that is not text",
    ]
    assert found.places == (
        HostAddress("trn-1", Reach.SSH, "10.0.0.1", (("rack", "a_1"),)),
        HostAddress("trn-2", Reach.SSH, "trn-2"),
        HostAddress("::1", Reach.SSH, "::1"),
        HostAddress("trn-3", Reach.SOCKET, "/run/a b.sock"),
    )


@pytest.mark.parametrize(
    ("name", "text", "cause"),
    [
        (
            "hosts.yml",
            "- targets: [a]",
            "is YAML, which is not supported; write it as JSON, which Prometheus reads too",
        ),
        ("hosts.json", "- targets: [a]", "is not JSON"),
        ("hosts.json", "[" * 200_000, "is not JSON"),
        ("hosts.json", "{}", "is not a list"),
    ],
)
def test_a_file_that_is_none_is_told_in_a_line(tmp_path: Path, name: str, text: str, cause: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UserError) as raised:
        read_file_sd(str(file))
    assert cause in str(raised.value)
    assert "\n" not in str(raised.value)


def test_labels_of_a_hostfile(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("trn[1-2] rack=a1 row=3\nc unix:/run/c=1 d.sock rack=\ne ssh:root@e rack=b\n")
    assert read_hostfile(str(file)).places == (
        HostAddress("trn1", Reach.SSH, "trn1", (("rack", "a1"), ("row", "3"))),
        HostAddress("trn2", Reach.SSH, "trn2", (("rack", "a1"), ("row", "3"))),
        HostAddress("c", Reach.SOCKET, "/run/c=1 d.sock", (("rack", ""),)),
        HostAddress("e", Reach.SSH, "root@e", (("rack", "b"),)),
    )


@needs_slurm
def test_the_nodes_of_a_job_that_runs(
    start_daemon: StartDaemon, socket_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge")
    with SlurmCluster(socket_directory, daemon.socket) as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])

        def submitted(*arguments: str) -> str:
            script = "#!/bin/sh\nsleep 600\n"
            command = ["sbatch", "--parsable", "--output=/dev/null", *arguments]
            done = subprocess.run(
                command, input=script, capture_output=True, text=True, timeout=HANG_SECONDS, check=True
            )
            return done.stdout.strip()

        job = submitted()
        waits = submitted(f"--dependency=after:{job}+60")
        wait_until(lambda: "RUNNING" in shown(job) or None)
        assert slurm_job_hosts(job).places == (HostAddress(NODE, Reach.SSH, NODE, (("slurm_job", job),)),)
        with pytest.raises(UserError, match=f"--slurm {waits}: the job is pending and has no nodes; wait until it r"):
            slurm_job_hosts(waits)
        with pytest.raises(UserError, match=r"--slurm 4999: scontrol show: .*Invalid job id"):
            slurm_job_hosts("4999")
        subprocess.run(["scancel", job, waits], check=True, timeout=HANG_SECONDS)
        wait_until(lambda: cluster.state() == "IDLE")


def shown(job: str) -> str:
    return subprocess.run(
        ["scontrol", "show", "job", job], capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    ).stdout


Install = Callable[[str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes a shell script the scontrol of this host; its directory, which alone is in PATH before the system's."""

    def written(script: str) -> Path:
        path = tmp_path / "scontrol"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return tmp_path

    return written


def asked(timeout_seconds: float = HANG_SECONDS) -> str:
    return run_scontrol("show", "node", "n0", timeout_seconds=timeout_seconds, next_step="see squeue")


def test_what_it_prints_is_read_whole_beside_what_it_complains_of(install: Install) -> None:
    install('i=0; while [ $i -lt 3000 ]; do echo "$@ $LC_ALL"; echo complaint $i >&2; i=$((i+1)); done')
    assert asked() == "show node n0 C\n" * 3000


def test_one_that_does_not_answer_is_ended_with_what_it_has_started(install: Install) -> None:
    directory = install(f'sleep {HANG_SECONDS} & echo $! > "${{0%/*}}/pid"; echo half; wait')
    with pytest.raises(UserError, match=r"scontrol show gave no answer within 0.5 s; is slurmctld running\?$"):
        asked(0.5)
    with suppress(FileNotFoundError):  # it had not come so far
        told = (directory / "pid").read_text()
        wait_until(lambda: not told.strip() or not sleeps(int(told)))


def sleeps(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep")
    except OSError:
        return False


def test_one_that_never_stops_printing_is_ended(install: Install) -> None:
    install("while :; do head -c 100000 /dev/zero; done")
    with pytest.raises(UserError, match=f"printed more than {MOST_BYTES >> 20} MiB"):
        asked()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo 'slurm_update error: \x1b[31mInvalid\nmore' >&2; exit 1",
            "slurm_update error: \\x1b[31mInvalid; see squeue",
        ),
        ("echo on standard output; exit 1", "on standard output; see squeue"),
        ("exit 7", "exit code 7; see squeue"),
        ("kill -TERM $$", "killed by SIGTERM; see squeue"),
        (
            "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure); is slurmctld running?",
        ),
        (
            "echo 'scontrol: error: failed to fetch config\nscontrol: fatal: Could not establish' >&2; exit 1",
            "fatal: Could not establish; see slurm.conf, or set SLURM_CONF",
        ),
    ],
)
def test_one_that_fails_is_told_in_a_line_with_the_next_step(install: Install, script: str, said: str) -> None:
    install(script)
    with pytest.raises(UserError) as raised:
        asked()
    assert str(raised.value) == f"scontrol show: {said}"


@pytest.mark.parametrize(
    ("script", "cause"),
    [("exit 3", "scontrol show: exit code 3; see squeue"), ("echo nothing", "the job is not running and has no")],
)
def test_the_flag_and_the_job_are_told_with_the_cause(install: Install, script: str, cause: str) -> None:
    install(script)
    with pytest.raises(UserError) as raised:
        slurm_job_hosts("7_1")
    assert str(raised.value).startswith(f"--slurm 7_1: {cause}")
    assert "\n" not in str(raised.value)


def test_where_there_is_none_or_no_job_that_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for job in ("", "x", "-1", "1;rm", "1 2"):
        with pytest.raises(UserError, match="is not a job"):
            slurm_job_hosts(job)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ScontrolMissing, match="scontrol is not installed here"):
        asked()
    with pytest.raises(UserError, match="--slurm 7_1: scontrol is not installed here"):
        slurm_job_hosts("7_1")
    (tmp_path / "scontrol").write_text("")
    with pytest.raises(UserError, match="scontrol show: Permission denied"):
        asked()
