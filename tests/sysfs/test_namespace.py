"""Unmodified programs see the tree where the driver has it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neurontools.testing import DriverTree


@pytest.fixture
def tree() -> Iterator[DriverTree]:
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("no mount namespaces to be had")
    with DriverTree("trn1.2xlarge") as made:
        yield made


def _run(tree: DriverTree, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "neurontools.testing.namespace", tree.directory, *command],
        capture_output=True,
        text=True,
        check=False,
    )


def test_programs_see_the_tree_and_everything_else(tree: DriverTree) -> None:
    before = (sorted(Path("/sys/class").iterdir()), sorted(Path("/opt").iterdir()), Path("/dev/neuron0").exists())
    done = _run(
        tree,
        "sh",
        "-c",
        "cat /sys/class/neuron_device/neuron0/core_count; cat /sys/devices/virtual/neuron_device/neuron0/dev;"
        "cat /sys/module/neuron/version /sys/class/dmi/id/product_name; ls /dev/neuron0; echo x > /dev/null;"
        "test -e /sys/class/net && test -e /sys/module && ls /opt/aws/neuron >/dev/null && echo complete",
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["2505:0", "2.30.2.0", "trn1.2xlarge", "/dev/neuron0", "complete"]
    assert (
        sorted(Path("/sys/class").iterdir()),
        sorted(Path("/opt").iterdir()),
        Path("/dev/neuron0").exists(),
    ) == before


def test_counters_move_inside(tree: DriverTree) -> None:
    counter = f"{tree.core_path(0)}/stats/other_info/flop_count/total".replace(tree.directory, "")
    script = f"cat {counter}; echo ready; read go; cat {counter}"
    with subprocess.Popen(
        [sys.executable, "-m", "neurontools.testing.namespace", tree.directory, "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["0\n", "ready\n"]
        tree.set_core(0, flop_total=42)
        assert process.communicate("go\n")[0] == "42\n"


def test_errors_are_one_line(tree: DriverTree, tmp_path: Path) -> None:
    assert _run(tree, "/no/such/command").returncode == 127
    done = subprocess.run(
        [sys.executable, "-m", "neurontools.testing.namespace", str(tmp_path), "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "holds no tree of the driver" in done.stderr
