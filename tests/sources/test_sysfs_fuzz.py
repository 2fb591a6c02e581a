"""Any tree whatever gives a reading with warnings or a clear error, and never a traceback or a hang."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from neurond.sources.sysfs import SysfsSource

from neurontools.errors import UserError
from neurontools.model import Device, NeuronCore, Process
from neurontools.rpc.convert import to_message
from neurontools.sysfs.host_snapshot import read_host
from neurontools.sysfs.roots import Roots
from neurontools.testing import DriverTree, process_on
from neurontools.testing.driver_tree import temporary_directory
from neurontools.views.device_list import device_list_json, device_list_table
from tests.harness.examples import examples

_SETTINGS = settings(max_examples=examples(60))


def _file(content: bytes) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.write_bytes(content)

    return put


def _nothing(path: Path) -> None:
    del path


def _link(target: str) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.symlink_to(target)

    return put


def _full_directory(path: Path) -> None:
    path.mkdir()
    (path / "neuron0").mkdir()
    (path / "total").write_text("1\n")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, suppress(OSError):  # a path may be too long
        listener.bind(str(path))


_TEXTS = st.sampled_from(
    [
        b"",
        b"\n",
        b"0",
        b"-1\n",
        b"99999999999999999999999\n",
        b"18446744073709551615\n",
        b"NDv3\n",
        b"Trn1\n",
        b"\xff\n",
    ]
)
_THINGS: st.SearchStrategy[Callable[[Path], None]] = st.one_of(
    st.binary(max_size=80).map(_file),
    _TEXTS.map(_file),
    st.just(_file(b"7" * 100_000)),
    st.sampled_from([_nothing, Path.mkdir, _full_directory, os.mkfifo, _socket]),
    st.sampled_from(["/dev/zero", "/proc/self/mem", ".", "..", "loop", "/nowhere", "/"]).map(_link),
)


def _read(roots: Roots) -> None:
    """Reads in both ways, thrice, and shows what was read."""
    with suppress(UserError):
        snapshot = read_host(roots)
        if snapshot is not None:
            to_message(snapshot)
            device_list_table(snapshot, topology=True, all_processes=True)
            device_list_json(snapshot)
    try:
        source = SysfsSource(roots)
    except UserError as error:
        refusal = str(error)
    else:
        refusal = ""
    assert "\n" not in refusal
    if refusal:
        return
    for _ in range(3):
        source.refresh()
        reading = source.read()
        for part in (*reading.devices, *reading.cores, *reading.processes, source.instance):
            assert isinstance(part, Device | NeuronCore | Process) or part is source.instance
            to_message(part)
        assert all("\n" not in line and len(line) < 1000 for line in reading.warnings)
        assert len(reading.warnings) < 32
    source.close()


@_SETTINGS
@given(st.data())
def test_a_tree_with_anything_in_place_of_anything(data: st.DataObject) -> None:
    with DriverTree(data.draw(st.sampled_from(["inf1.xlarge", "inf2.xlarge", "trn2.3xlarge"]))) as tree:
        tree.set_processes(process_on(7, "python", cores=(0,), runtime_version="2.34.10", tag="tag"))
        entries = sorted(
            Path(directory) / name
            for directory, directories, names in os.walk(tree.directory)
            for name in (*directories, *names)
        )
        # The directories near the top are as likely as the many files below.
        near = [path for path in entries if len(path.relative_to(tree.directory).parts) < 8]
        for _ in range(data.draw(st.integers(1, 6))):
            path = data.draw(st.sampled_from(near) | st.sampled_from(entries))
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                with suppress(OSError):
                    path.unlink()
            with suppress(OSError):  # what it was in may be gone
                data.draw(_THINGS)(path)
        _read(tree.roots)


_NAMES = st.sampled_from(
    [
        "neuron0",
        "neuron1",
        "neuron63",
        "neuron64",
        "neuron00",
        "neuron²",
        "neuron",
        "neuron_core0",
        "neuron_core1",
        "info",
        "stats",
        "architecture",
        "arch_type",
        "dev",
        "status",
        "1",
        "7",
        "fd",
        "stat",
        "maps",
        "x" * 255,
        "\udcff",
        "a\nb",
    ]
)


@_SETTINGS
@given(st.lists(st.tuples(st.lists(_NAMES, min_size=1, max_size=5), _THINGS), max_size=12))
def test_a_tree_of_random_things(entries: list[tuple[list[str], Callable[[Path], None]]]) -> None:
    with temporary_directory() as directory:
        roots = Roots(f"{directory}/sys", f"{directory}/proc", f"{directory}/dev")
        bases = (roots.devices, roots.device_class, roots.pci_devices, roots.proc, roots.dev, roots.dmi)
        for position, (parts, put) in enumerate(entries):
            path = Path(bases[position % len(bases)], *parts)
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                put(path)
        _read(roots)


@settings(_SETTINGS, max_examples=examples(30))
@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300))
def test_processes_with_anything_in_their_files(stat: bytes, environ: bytes, maps: bytes, cmdline: bytes) -> None:
    with DriverTree("inf2.xlarge") as tree:
        tree.set_processes(process_on(7, "python", cores=(0,), runtime_version="2.34.10"))
        process = Path(tree.roots.proc) / "7"
        for name, content in (
            ("stat", stat),
            ("environ", environ),
            ("maps", b"libnrt.so." + maps),
            ("cmdline", cmdline),
        ):
            (process / name).unlink()
            (process / name).write_bytes(content)
        _read(tree.roots)
