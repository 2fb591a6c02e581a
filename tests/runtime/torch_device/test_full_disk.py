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


def namespaces_work() -> bool:
    return (
        shutil.which("unshare") is not None
        and subprocess.run(["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"], check=False).returncode == 0
    )


needs_namespaces = pytest.mark.skipif(not namespaces_work(), reason="no user namespaces here")


@pytest.fixture
def full_disk(tmp_path: Path) -> Callable[..., list[str]]:
    """The beginning of a command that runs with a file system of so much room at `disk`; `first` fills it."""
    (tmp_path / "disk").mkdir()

    def begin(size: str, first: str = "true") -> list[str]:
        mount = f'mount -t tmpfs -o size={size},nr_inodes=64 none {tmp_path}/disk && {first} && exec "$@"'
        return ["unshare", "-Urm", "sh", "-c", mount, "sh"]

    return begin


@pytest.fixture
def train(
    tmp_path: Path, device_environment: dict[str, str]
) -> Callable[..., tuple[subprocess.CompletedProcess[str], float]]:
    """Runs the script and gives the sum of the weights that it ended with."""
    (tmp_path / "script.py").write_text(SCRIPT)
    root = Path(__file__).parents[3]

    def run(*beginning: str, arguments: str = "script.py", **environment: str) -> Any:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NEURON", "XLA_"))}
        done = subprocess.run(
            [*beginning, "sh", "-c", f'exec "{sys.executable}" -m neurontools.runtime {arguments}'],
            cwd=tmp_path,
            env={**kept, **device_environment, "PYTHONPATH": f"{root}:{root / 'daemon'}", **environment},
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
        result = tmp_path / "result"
        value = float(result.read_text()) if result.exists() else None
        result.unlink(missing_ok=True)
        return done, value

    return run


@needs_namespaces
@pytest.mark.parametrize("size", ["4k", "12k"])
def test_a_full_disk_costs_the_cache_and_not_the_training(
    train: Any, full_disk: Any, tmp_path: Path, size: str
) -> None:
    fine, expected = train(NEURON_COMPILE_CACHE_URL=str(tmp_path / "roomy"))
    assert fine.returncode == 0, fine.stderr
    done, result = train(*full_disk(size), NEURON_COMPILE_CACHE_URL=str(tmp_path / "disk" / "cache"))
    assert (done.returncode, result) == (0, expected), done.stderr
    assert done.stderr.count("can't be written (No space left on device); training goes on") == 1


@needs_namespaces
def test_a_disk_that_gets_room_again_is_used_again(train: Any, full_disk: Any, tmp_path: Path) -> None:
    cache = tmp_path / "disk" / "cache"
    script = SCRIPT.replace("for width in", "import os\nfor width in").replace(
        "    for _ in range(3)", "    if width == 4: os.remove('disk/ballast')\n    for _ in range(3)"
    )
    counted = "import pathlib; print(sum(1 for _ in pathlib.Path('disk').rglob('*.done')))\n"
    (tmp_path / "script.py").write_text(script + counted)
    ballast = f"head -c 60k /dev/zero >{tmp_path}/disk/ballast"
    done, result = train(*full_disk("64k", ballast), NEURON_COMPILE_CACHE_URL=str(cache))
    assert done.returncode == 0, done.stderr
    assert result is not None
    assert int(done.stdout) >= 1
    assert done.stderr.count("can't be written") == 1


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_log_lines_that_cannot_be_written_are_lost_and_nothing_else(
    train: Any, tmp_path: Path, redirection: str
) -> None:
    # also the line that says that nothing is monitored, and the one of the cache that can't be written
    done, result = train(
        arguments=f"script.py {redirection}",
        NEURON_RT_LOG_LEVEL="INFO",
        NEURON_COMPILE_CACHE_URL=f"/dev/null/{tmp_path.name}",
    )
    assert done.returncode == 0
    assert result is not None


def test_a_cache_that_may_not_be_written(train: Any, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o555)
    beginning = () if os.geteuid() else ("setpriv", "--bounding-set", "-all", "--inh-caps", "-all")
    if beginning and shutil.which("setpriv") is None:
        pytest.skip("root may write everywhere, and there is no setpriv")
    done, result = train(*beginning, NEURON_COMPILE_CACHE_URL=str(cache))
    assert done.returncode == 0, done.stderr
    assert result is not None
    assert done.stderr.count("can't be written (Permission denied); training goes on") == 1
    assert list(cache.iterdir()) == []
