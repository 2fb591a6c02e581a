"""Training where nothing more can be written, and where the cache is somebody else's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness import python_process
from tests.harness.paths import PYTHONPATH
from tests.harness.waiting import HANG_SECONDS

SCRIPT = """
import torch, torch_xla, torch_xla.core.xla_model as xm
torch.manual_seed(0)
device = xm.xla_device()
model = torch.nn.Linear(8, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for width in (2, 3, 4):
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(width, 8).to(device)).sum().backward(); optimizer.step(); xm.mark_step()
open("result", "w").write(repr(model.weight.sum().item()))
"""


# What `unshare -Urm` and `mount` would do, in a process that needn't begin anew.
ON_A_DISK = """
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
user, group = os.geteuid(), os.getegid()
if libc.unshare(0x10000000 | 0x20000): sys.exit(os.strerror(ctypes.get_errno()))
open("/proc/self/setgroups", "w").write("deny")
open("/proc/self/uid_map", "w").write(f"0 {user} 1")
open("/proc/self/gid_map", "w").write(f"0 {group} 1")
if libc.mount(b"none", sys.argv[1].encode(), b"tmpfs", 0, f"size={sys.argv[2]},nr_inodes=64".encode()):
    sys.exit(os.strerror(ctypes.get_errno()))
if sys.argv[3]: open(sys.argv[1] + "/ballast", "wb").write(bytes(int(sys.argv[3])))
"""
# What `setpriv --bounding-set -all --inh-caps -all` would: a superuser of nothing, whom the permissions of files hold.
WITHOUT_POWERS = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
if os.geteuid() == 0 and libc.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24)):
    sys.exit(os.strerror(ctypes.get_errno()))
"""
WITH_A_FULL_LOG = 'import os; os.dup2(os.open("/dev/full", os.O_WRONLY), 2)'
START = ("-m", "neurontools.runtime", "script.py")
RUN = """
import runpy, sys
sys.argv[:] = ["-m", "script.py"]
runpy.run_module("neurontools.runtime", run_name="__main__", alter_sys=True)
"""


def namespaces_work() -> bool:
    return (
        shutil.which("unshare") is not None
        and subprocess.run(["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"], check=False).returncode == 0
    )


needs_namespaces = pytest.mark.skipif(not namespaces_work(), reason="no user namespaces here")


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Where a process that begins with ON_A_DISK has a small file system."""
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


@pytest.fixture
def train(
    tmp_path: Path, device_environment: dict[str, str]
) -> Callable[..., tuple[subprocess.CompletedProcess[str], float | None]]:
    """Runs the script and gives the sum of the weights that it ended with."""
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(first: str = "", *arguments: object, redirected: str = "", **environment: str) -> Any:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NEURON", "XLA_"))}
        command = [sys.executable, "-c", first + RUN, *map(str, arguments)]
        if redirected:
            command = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, *START]
        done = python_process.run(
            command,
            loaded=python_process.TORCH,
            cwd=tmp_path,
            env={**kept, **device_environment, "PYTHONPATH": PYTHONPATH, **environment},
            text=True,
            timeout=HANG_SECONDS,
        )
        result = tmp_path / "result"
        value = float(result.read_text()) if result.exists() else None
        result.unlink(missing_ok=True)
        return done, value

    return run


@needs_namespaces
@pytest.mark.parametrize("size", ["4k", "12k"])
def test_a_full_disk_costs_the_cache_and_not_the_training(train: Any, disk: Path, tmp_path: Path, size: str) -> None:
    fine, expected = train(NEURON_COMPILE_CACHE_URL=str(tmp_path / "roomy"))
    assert fine.returncode == 0, fine.stderr
    done, result = train(ON_A_DISK, disk, size, "", NEURON_COMPILE_CACHE_URL=str(disk / "cache"))
    assert (done.returncode, result) == (0, expected), done.stderr
    assert done.stderr.count("can't be written (No space left on device); training goes on") == 1


@needs_namespaces
def test_a_disk_that_gets_room_again_is_used_again(train: Any, disk: Path, tmp_path: Path) -> None:
    script = SCRIPT.replace("for width in", "import os\nfor width in").replace(
        "    for _ in range(3)", "    if width == 4: os.remove('disk/ballast')\n    for _ in range(3)"
    )
    counted = "import pathlib; print(sum(1 for _ in pathlib.Path('disk').rglob('*.done')))\n"
    (tmp_path / "script.py").write_text(script + counted)
    done, result = train(ON_A_DISK, disk, "64k", 60 * 1024, NEURON_COMPILE_CACHE_URL=str(disk / "cache"))
    assert done.returncode == 0, done.stderr
    assert result is not None
    assert int(done.stdout) >= 1
    assert done.stderr.count("can't be written") == 1


@pytest.mark.parametrize("beginning", [{"first": WITH_A_FULL_LOG}, {"redirected": "2>&-"}], ids=["full", "closed"])
def test_log_lines_that_cannot_be_written_are_lost_and_nothing_else(
    train: Any, tmp_path: Path, beginning: dict[str, str]
) -> None:
    # also the line that says that nothing is monitored, and the one of the cache that can't be written
    done, result = train(
        **beginning,
        NEURON_RT_LOG_LEVEL="INFO",
        NEURON_COMPILE_CACHE_URL=f"/dev/null/{tmp_path.name}",
    )
    assert done.returncode == 0
    assert result is not None


def test_a_cache_that_may_not_be_written(train: Any, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o555)
    done, result = train(WITHOUT_POWERS, NEURON_COMPILE_CACHE_URL=str(cache))
    assert done.returncode == 0, done.stderr
    assert result is not None
    assert done.stderr.count("can't be written (Permission denied); training goes on") == 1
    assert list(cache.iterdir()) == []
