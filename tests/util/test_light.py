"""Stand-ins for dataclasses and enum, and what programs don't carry before they need it."""

from __future__ import annotations

import dataclasses
import enum
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from neurontools.driver.inventory import read_host_snapshot
from neurontools.model import device
from neurontools.testing import DriverTree, process_on
from neurontools.util import light_imports
from neurontools.views.device_list import device_list_json, device_list_table
from tests.harness.waiting import run_to_end


@pytest.mark.parametrize("instance_type", ["inf1.24xlarge", pytest.param("trn2u.48xlarge", marks=pytest.mark.slow)])
def test_the_command_prints_what_the_real_dataclasses_make(instance_type: str) -> None:
    with DriverTree(instance_type) as tree:
        tree.set_processes(process_on(7, "python train.py", cores=(0,), runtime_version="2.34.10", tag="x"))
        snapshot = read_host_snapshot(tree.roots)
        assert snapshot is not None
        expected = {
            (): device_list_table(snapshot),
            ("-t", "-w"): device_list_table(snapshot, topology=True, wide=True),
            ("-j", "-a"): device_list_json(snapshot, all_processes=True),
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NEURON")}
        for flags, text in expected.items():
            done = run_to_end(
                [sys.executable, "-c", "from neurontools.cli.ls.command import main; main()", *flags],
                env=kept | tree.environment | {"XDG_RUNTIME_DIR": tree.directory},
                check=True,
            )
            assert (done.stdout, done.stderr) == (text, "")


@pytest.mark.slow
def test_the_command_imports_neither_dataclasses_nor_what_it_needs() -> None:
    script = (
        "import sys, os; os._exit = lambda code: None; from neurontools.cli.ls.command import main; main();"
        "print(sorted({'inspect', 're', 'typing', 'tomllib', 'pathlib', 'grpc'} & set(sys.modules)), file=sys.stderr)"
    )
    with DriverTree("trn1.32xlarge") as tree:
        done = run_to_end(
            [sys.executable, "-S", "-c", script],
            env={"PYTHONPATH": os.pathsep.join(sys.path), "XDG_RUNTIME_DIR": tree.directory, **tree.environment},
        )
    assert done.stderr == "[]\n"


def test_the_real_ones_stay_where_they_are_loaded() -> None:
    light_imports.install_dataclasses()
    assert sys.modules["dataclasses"] is dataclasses
    assert dataclasses.is_dataclass(device.DeviceMemory)
    with light_imports.LightEnum():
        assert sys.modules["enum"] is enum
    assert sys.modules["enum"] is enum


def test_objects_are_made_like_the_real_ones() -> None:
    @light_imports.dataclass(frozen=True, slots=True)
    class Base:
        first: int
        second: str = "b"

    @light_imports.dataclass
    class Derived(Base):
        third: float = 1.0

        def __post_init__(self) -> None:
            self.checked = True

    made = Derived(1, third=2.0)  # type: ignore[call-arg]
    assert (made.first, made.second, made.third, made.checked) == (1, "b", 2.0, True)
    assert [field.name for field in light_imports.fields(Derived)] == ["first", "second", "third"]
    changed = light_imports.replace(made, second="c")
    assert (changed.second, made.second) == ("c", "b")


BODIES: dict[str, dict[str, Any]] = {"IntEnum": {"LOW": 0, "HIGH": 3}, "StrEnum": {"A": "a", "B_C": "b c"}}


def made(module: ModuleType, base_name: str) -> type:
    """An enum with this base, made by one of the two modules."""
    base = getattr(module, base_name)
    body = type(base).__prepare__("Kind", (base,))
    for key, value in BODIES[base_name].items():
        body[key] = value
    kind: type = type(base)("Kind", (base,), body)
    return kind


def told(kind: type) -> list[object]:
    """What a program can ask of it."""
    found: list[object] = []
    for member in kind:  # type: ignore[attr-defined]
        found += [member, member.name, member.value, f"{member}", str(member), hash(member), member == member.value]
        found += [kind(member.value) is member, kind[member.name] is member, kind(member) is member]  # type: ignore[index]
        found += [isinstance(member, kind), getattr(kind, member.name) is member, {member: 1}[member.value]]
    for value in (99, "z", None):
        try:
            kind(value)
        except ValueError as error:
            found.append(str(error))
    with pytest.raises(KeyError):
        kind["NONE"]  # type: ignore[index]
    return [*found, max(kind), tuple(kind)]  # type: ignore[call-overload, arg-type]


@pytest.mark.parametrize("base", BODIES)
def test_members_are_what_the_real_ones_are(base: str) -> None:
    assert told(made(light_imports, base)) == told(made(enum, base))


def test_it_is_there_for_one_import_and_the_real_one_for_all_that_come_later() -> None:
    script = (
        "import sys; from neurontools.util import light_imports as light\n"
        "with light.LightEnum():\n    import enum; assert enum is not light and enum.IntEnum is light.IntEnum\n"
        "assert 'enum' not in sys.modules; import re, enum; assert enum.IntFlag"
    )
    assert printed(script, "-S") == ""


ASYNCIO = """
import sys
from neurontools.util.light_imports import import_without

import_without("asyncio", "ssl")
loaded = "ssl" in sys.modules
import asyncio, ssl

async def run():
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b""
    server.close()

asyncio.run(run())
ssl.create_default_context()
print(loaded)
"""
ASYNCIO_AFTER_SSL = """
import ssl; from neurontools.util.light_imports import import_without; import_without("asyncio", "ssl")
import asyncio.base_events; assert asyncio.base_events.ssl is ssl; assert __import__('ssl') is ssl
"""
SHUTIL = """
import sys
before = set(sys.modules)
from neurontools.util.light_imports import import_without

import_without("shutil", "bz2", "lzma")
print({"bz2", "lzma"} & set(sys.modules) - before)
import bz2, lzma, shutil
assert bz2.decompress(bz2.compress(b"a")) == lzma.decompress(lzma.compress(b"a")) == b"a"
assert shutil.which("sh")
"""
SHUTIL_AFTER_BZ2 = """
import bz2; from neurontools.util.light_imports import import_without; import_without("shutil", "bz2", "lzma")
import sys; assert sys.modules['bz2'] is bz2
"""
LAZY_PACKAGE = """
import sys
import neurontools.model
from neurontools.model.representation import utc_time_text
print("neurontools.model.snapshot" in sys.modules)
from neurontools.model import Snapshot, execution
import neurontools.model.snapshot
print(Snapshot is neurontools.model.snapshot.Snapshot, execution.__name__, type(neurontools.model).__name__)
try:
    neurontools.model.nothing
except AttributeError as error:
    print(error)
"""


def printed(script: str, *flags: str) -> str:
    """What a new interpreter prints on its standard output; nothing may be on its standard error."""
    done = run_to_end(
        [sys.executable, *flags, "-c", script], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert done.stderr == ""
    return done.stdout


def test_asyncio_works_without_ssl_which_can_be_imported_before_and_later() -> None:
    assert printed(ASYNCIO) == "False\n"
    printed(ASYNCIO_AFTER_SSL)


def test_shutil_works_without_archives_which_can_be_imported_before_and_later() -> None:
    assert printed(SHUTIL) == "set()\n"
    printed(SHUTIL_AFTER_BZ2)


def test_a_lazy_package_loads_a_module_when_one_of_its_names_is_read() -> None:
    assert printed(LAZY_PACKAGE, "-S").splitlines() == [
        "False",
        "True neurontools.model.execution module",
        "module 'neurontools.model' has no attribute 'nothing'",
    ]


@pytest.mark.slow
def test_a_daemon_without_a_listener_has_no_openssl(socket_directory: Path) -> None:
    ready, is_ready = os.pipe()
    flags = ("--simulate", "trn1.2xlarge", "--socket", str(socket_directory / "s"), "--ready-fd", str(is_ready))
    with subprocess.Popen([sys.executable, "-m", "neurond", *flags], pass_fds=(is_ready,)) as daemon:
        os.close(is_ready)
        try:
            with os.fdopen(ready, "rb") as told:
                assert told.readline() == b"ready\n"
            assert "libssl" not in Path(f"/proc/{daemon.pid}/maps").read_text()
        finally:
            daemon.terminate()
