"""The simulated device in the process of the tests, without a daemon: `xla` with two cores."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.harness import python_process
from tests.harness.reporting_process import end

torch = pytest.importorskip("torch")

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def leave_alone_what_is_there() -> None:
    """Tests here run the garbage collector again and again: it is to look at what is theirs."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def device_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("device")
    return {
        "NEURON_COMPILE_CACHE_URL": str(directory / "cache"),
        "NEURONTOOLS_SOCKET": str(directory / "no.sock"),
        "NEURON_RT_NUM_CORES": "2",
        "NEURONTOOLS_DEVICE": "xla",
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="session")
def set_up_device(device_environment: dict[str, str]) -> None:
    from neurontools.runtime.launch.install import install_runtime

    with pytest.MonkeyPatch.context() as patch:
        for name, value in device_environment.items():
            patch.setenv(name, value)
        install_runtime()
    leave_alone_what_is_there()


@pytest.fixture(autouse=True, scope="module")
def leave_alone_what_is_there_before() -> None:
    leave_alone_what_is_there()


@pytest.fixture
def xla(set_up_device: None, device_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The runtime's device object, in its environment; what a test leaves pending is executed after it."""
    for name, value in device_environment.items():
        monkeypatch.setenv(name, value)
    from neurontools.runtime.tensors.device import device
    from tests.harness.seeding import seed

    seed(0)
    device.flush_all("Test")
    yield device
    device.flush_all("Test")


@pytest.fixture
def run_python(device_environment: dict[str, str], tmp_path: Path) -> Run:
    """Runs Python in a process of its own, as a user would; `is_started`: from its very start, without a fork."""

    def run(*arguments: str, is_started: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
        return python_process.run(
            [sys.executable, *arguments],
            loaded=() if is_started else python_process.TORCH,
            text=True,
            cwd=tmp_path,
            env=python_process.user_environment(**{**device_environment, **environment}),
        )

    return run


@pytest.fixture
def start_script(device_environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Starts a script under the launcher, its input, output and errors in pipes; kills it at the end of the test."""
    with ExitStack() as processes:

        def start(text: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
            (tmp_path / "script.py").write_text(text)
            process = python_process.popen(
                [sys.executable, "-m", "neurontools.runtime", "script.py", *arguments],
                loaded=python_process.TORCH,
                cwd=tmp_path,
                env=python_process.user_environment(**{**device_environment, **environment}),
                **python_process.PIPES,
            )
            processes.callback(end, process)
            return process

        yield start


@pytest.fixture
def run_script(run_python: Run, tmp_path: Path) -> Run:
    """Runs a script under the launcher, by torchrun where it has several ranks; it must end with `exit_code`."""

    def run(
        text: str, *arguments: str, exit_code: int = 0, ranks: int = 1, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "script.py").write_text(text)
        command = ["-m", "neurontools.runtime", "script.py", *arguments]
        if ranks > 1:
            command = [*TORCHRUN, str(ranks), *command]
            environment = {"NEURON_RT_NUM_CORES": "", **environment}
        done = run_python(*command, **environment)
        assert done.returncode == exit_code, done.stderr[-3000:]
        return done

    return run
