"""nccom-test: sizes and table without a core, and a measurement between the cores of two processes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from neurontools.diagnose.nccom import (
    HEADING,
    OPERATIONS,
    Benchmark,
    BenchmarkRow,
    average_text,
    bus_factor,
    element_count,
    parse_size,
    row_text,
    sizes_between,
)
from neurontools.faults.requests import FaultRequest
from neurontools.rpc import fault_calls
from tests.harness import python_process
from tests.harness.attached_process import AttachedProcess
from tests.harness.command import calls
from tests.harness.neuron_run import environment
from tests.harness.running_daemon import RunningDaemon, StartDaemon

COMMAND = (sys.executable, "-m", "neurontools.cli.nccom.command")


def test_the_table_is_that_of_the_guide() -> None:
    """The first example of AWS's guide."""
    row = BenchmarkRow(32 << 20, 32 << 20, "uint8", 768e-6, bus_factor("all_reduce", 2))
    assert [HEADING, row_text(row), average_text([row])] == [
        "     size(B)    count(elems)     type    time(us)    algbw(GB/s)    busbw(GB/s)",
        "    33554432        33554432    uint8         768          40.69          40.69",
        "Avg bus bandwidth:      40.6901GB/s",
    ]
    assert [bus_factor(name, 4) for name in dict.fromkeys(OPERATIONS.values())] == [1.5, 0.75, 0.75, 1.0, 0.75]


def test_sizes_are_read_and_stepped_as_in_the_guide() -> None:
    given = {"8": 8, "1kb": 1024, "2K": 2048, "32M": 32 << 20, "1MB": 1 << 20, "1gb": 1 << 30}
    assert {text: parse_size(text) for text in given} == given
    for wrong in ("", "0", "kb", "-1", "1.5MB", "1tb", "2048GB", "9" * 30, "1 kb x", "²"):
        with pytest.raises(ValueError):
            parse_size(wrong)
    assert sizes_between(8, 16, 4, None) == [8, 12, 16]
    assert sizes_between(8, 32, None, 2) == [8, 16, 32]
    assert sizes_between(0, 100, None, None) == [*range(0, 101, 10)]
    assert sizes_between(8, 8, None, None) == [8]
    gathered = Benchmark("all_gather", 3, "fp32", [])
    assert [element_count(gathered, size_bytes) for size_bytes in (1, 24, 1024)] == [3, 6, 255]


def nccom(
    daemon: RunningDaemon, directory: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    (directory / "tmp").mkdir(exist_ok=True)
    done = python_process.run(
        [*COMMAND, *arguments],
        loaded=python_process.TORCH,
        text=True,
        cwd=directory,
        env=environment(directory, daemon.socket, TMPDIR=str(directory / "tmp"), **variables),
    )
    assert not [*(directory / "tmp").iterdir()]
    return done


@pytest.mark.slow
@pytest.mark.parametrize("operation", dict.fromkeys(OPERATIONS.values()))
def test_each_operation_gives_right_results(start_daemon: StartDaemon, tmp_path: Path, operation: str) -> None:
    pytest.importorskip("torch")
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05")
    sizes = ("-b", "1kb", "-e", "4kb", "-f", "4", "-n", "3", "-w", "1", "-d", "fp32", "--check")
    done = nccom(daemon, tmp_path, "-r", "2", *sizes, operation)
    assert "simulated" in done.stderr
    heading, *rows, average = done.stdout.splitlines()
    assert (done.returncode, heading) == (0, HEADING)
    assert [row.split()[:3] for row in rows] == [["1024", "256", "fp32"], ["4096", "1024", "fp32"]]
    assert average.startswith("Avg bus bandwidth:")
    assert daemon.holders() == []


@pytest.mark.slow
def test_a_core_with_a_fault_fails_the_test(start_daemon: StartDaemon, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05")
    fault_calls.inject(daemon.socket, [FaultRequest("bit-flip", neuroncore_index=1)])
    done = nccom(daemon, tmp_path, "-r", "2", "-b", "4kb", "-e", "4kb", "-d", "fp32", "-c", "allr")
    assert done.returncode == 1, done
    assert done.stdout.endswith(" errors found - test failed\n")
    fault_calls.heal(daemon.socket)
    fault_calls.inject(daemon.socket, [FaultRequest("hang-collective", neuroncore_index=1)])
    done = nccom(daemon, tmp_path, "-r", "2", "-b", "4kb", "-e", "4kb", "allr", NEURON_RT_EXEC_TIMEOUT="5")
    assert done.returncode == 1, done
    assert "        4096    Failure: rank " in done.stdout  # which rank hangs, no rank can know
    assert done.stdout.endswith("\n1 errors found - test failed\n")


def test_sizes_that_use_up_the_host_memory_are_refused(
    shared_daemon: RunningDaemon, clean_environment: dict[str, str]
) -> None:
    pytest.importorskip("torch")
    done = calls("nccom-test", clean_environment)("-r", "2", "-b", "1024GB", "allr", "--socket", shared_daemon.socket)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(r"2 ranks need about 8\.0 TB .*, and only .* are free; give a smaller --maxbytes", done.stderr)


def test_held_cores_are_left_alone(start_daemon: StartDaemon, clean_environment: dict[str, str]) -> None:
    pytest.importorskip("torch")
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--interval", "0.05")
    with AttachedProcess(daemon, "1"):
        done = calls("nccom-test", clean_environment)("-r", "2", "allr", "--socket", daemon.socket)
        assert (done.returncode, done.stdout) == (2, "")
        assert "no 2 NeuronCores in a row are free, only 1; neuron-ls shows who holds them" in done.stderr
        assert len(daemon.holders()) == 1
