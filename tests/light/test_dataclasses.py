"""What the stand-in for dataclasses must do for the one command that uses it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from neurontools import catalog
from neurontools.light import dataclasses as light_dataclasses
from neurontools.model import memory
from neurontools.sysfs.host_snapshot import read_host
from neurontools.testing import DriverTree, process_on
from neurontools.views.device_list import device_list_json, device_list_table


@pytest.mark.parametrize("instance_type", catalog.names())
def test_the_command_prints_what_the_real_dataclasses_make(instance_type: str) -> None:
    with DriverTree(instance_type) as tree:
        tree.set_processes(process_on(7, "python train.py", cores=(0,), runtime_version="2.34.10", tag="x"))
        snapshot = read_host(tree.roots)
        assert snapshot is not None
        expected = {
            (): device_list_table(snapshot),
            ("-t", "-w"): device_list_table(snapshot, topology=True, wide=True),
            ("-j", "-a"): device_list_json(snapshot, all_processes=True),
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NEURON")}
        for flags, text in expected.items():
            done = subprocess.run(
                [sys.executable, "-c", "from neurontools.cli.ls.command import main; main()", *flags],
                env=kept | tree.environment | {"XDG_RUNTIME_DIR": tree.directory},
                capture_output=True,
                check=True,
                text=True,
            )
            assert (done.stdout, done.stderr) == (text, "")


def test_the_command_imports_neither_dataclasses_nor_what_it_needs() -> None:
    script = (
        "import sys, os; os._exit = lambda code: None; from neurontools.cli.ls.command import main; main();"
        "print(sorted({'inspect', 're', 'typing', 'tomllib', 'pathlib', 'grpc'} & set(sys.modules)), file=sys.stderr)"
    )
    with DriverTree("trn1.32xlarge") as tree:
        done = subprocess.run(
            [sys.executable, "-S", "-c", script],
            env={"PYTHONPATH": os.pathsep.join(sys.path), "XDG_RUNTIME_DIR": tree.directory, **tree.environment},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.stderr == "[]\n"


def test_the_real_one_stays_where_it_is_loaded() -> None:
    light_dataclasses.install()
    assert sys.modules["dataclasses"] is dataclasses
    assert dataclasses.is_dataclass(memory.DeviceMemory)


def test_objects_are_made_like_the_real_ones() -> None:
    @light_dataclasses.dataclass(frozen=True, slots=True)
    class Base:
        first: int
        second: str = "b"

    @light_dataclasses.dataclass
    class Derived(Base):
        third: float = 1.0

        def __post_init__(self) -> None:
            self.checked = True

    made = Derived(1, third=2.0)  # type: ignore[call-arg]
    assert (made.first, made.second, made.third, made.checked) == (1, "b", 2.0, True)
    assert [field.name for field in light_dataclasses.fields(Derived)] == ["first", "second", "third"]
    changed = light_dataclasses.replace(made, second="c")
    assert (changed.second, made.second) == ("c", "b")
