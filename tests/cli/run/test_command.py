"""neuron-run as a user calls it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from neurontools.cli.run import options, summary
from neurontools.errors import UserError
from tests.harness import neuron_run_script
from tests.harness.paths import ROOT

pytest.importorskip("torch")

SCRIPT = """
import os, sys, torch, torch_xla.core.xla_model as xm, torch_xla.distributed.parallel_loader as pl
torch.manual_seed(0)
device = xm.xla_device()
model = torch.nn.Linear(8, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.randn(5, 8), torch.randint(0, 4, (5,))) for _ in range(6)]
for value, target in pl.MpDeviceLoader(data, device):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(value), target).backward()
    xm.optimizer_step(optimizer)
line = " ".join(["arguments", *sys.argv[1:], str(xm.xrt_world_size())])
os.write(1, f"{line}\\n".encode())  # in one piece: workers share the output
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def neuron_run(tmp_path: Path) -> Run:
    (tmp_path / "script.py").write_text(SCRIPT)
    return partial(neuron_run_script.neuron_run, tmp_path, NEURONTOOLS_SOCKET=str(tmp_path / "none.sock"))


def test_a_script_with_its_arguments_and_its_summary(neuron_run: Run, tmp_path: Path) -> None:
    run = neuron_run("--simulate", "trn1.2xlarge", "--summary-json", "out.json", "script.py", "7", "--epochs")
    assert run.returncode == 7, run.stderr
    assert run.stdout == "arguments 7 --epochs 1\n"
    summary = json.loads((tmp_path / "out.json").read_text())
    assert (summary["exit_code"], summary["workers"], summary["steps_total"], summary["samples_total"]) == (7, 1, 6, 30)
    assert summary["instance_type"] == "trn1.2xlarge"
    assert summary["cores"] == [0]
    assert summary["executions_total"] >= 6
    # three products of 5 x 8 x 4 would be 960; the gradient of the batch is not asked for
    assert summary["flop_total"] == 6 * 2 * 2 * 5 * 8 * 4
    assert 0 < summary["mfu_ratio"] < 1
    assert "\nsteps        6 (" in run.stderr
    assert "\ncollectives  0\n" in run.stderr


def test_workers_have_a_core_each(neuron_run: Run) -> None:
    run = neuron_run(
        "--simulate", "trn1.2xlarge", "-n", "2", "--cores", "0-1", "--summary-json", "-", "-q", "script.py"
    )
    assert run.returncode == 0, run.stderr
    lines, _, document = run.stdout.partition("{")
    assert lines == "arguments 2\n" * 2
    summary = json.loads("{" + document)
    assert (summary["workers"], summary["cores"], summary["samples_total"]) == (2, [0, 1], 60)
    assert summary["collective_bytes"] > 0
    assert len({rank["pid"] for rank in summary["ranks"]}) == 2
    assert all(rank["is_simulated"] for rank in summary["ranks"])


OWN_WORKERS = """
import torch, torch_xla.core.xla_model as xm, torch_xla.distributed.xla_multiprocessing as xmp
def train(index):
    (torch.ones(2, device=xm.xla_device()) + index).cpu()
if __name__ == "__main__":
    xmp.spawn(train, nprocs=2, start_method="METHOD")
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_of_a_script_that_starts_its_workers_itself_the_workers_are_told(tmp_path: Path, method: str) -> None:
    told = neuron_run_script.summary_of(tmp_path, OWN_WORKERS.replace("METHOD", method))
    assert (told["workers"], told["cores"]) == (2, [0, 1])
    assert [rank["rank"] for rank in told["ranks"]] == [0, 1]
    assert told["executions_total"] >= 2


def test_modules_run_too(neuron_run: Run, tmp_path: Path) -> None:
    run = neuron_run("-q", "-m", "script", "0")
    assert (run.returncode, run.stdout) == (0, "arguments 0 1\n"), run.stderr


def test_a_script_that_a_signal_ended(neuron_run: Run, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert neuron_run("script.py").returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("arguments", "exit_code", "error"),
    [
        ((), 2, "no script given; usage: neuron-run [options] script.py [arguments …]"),
        (("nothing.py",), 2, "nothing.py: no such file; give the path of a Python script"),
        (("--cores", "1,3", "script.py"), 2, "--cores='1,3'"),
        (("--cores", "0-1", "-n", "3", "script.py"), 2, "2 core(s) for 3 workers; give one each"),
        (("-n", "x", "script.py"), 2, "--nproc-per-node 'x': not a whole number"),
        (("--simulate", "trn1.2xlarge", "--socket", "/x", "script.py"), 2, "exclude each other"),
        (("--bogus", "script.py"), 1, "unknown flag"),
        (("--summary-json", "none/out.json", "script.py"), 1, "none/out.json: No such file or directory; give a file"),
        (("--summary-json", ".", "script.py"), 1, "--summary-json .: Is a directory; give a file"),
        (("--wait", "1", "script.py"), 12, "no monitor daemon"),
    ],
)
def test_mistakes(neuron_run: Run, arguments: tuple[str, ...], exit_code: int, error: str) -> None:
    run = neuron_run(*arguments)
    assert error in run.stderr
    assert (run.returncode, run.stdout) == (exit_code, "")


def test_options_end_where_the_script_begins() -> None:
    assert options.split(["-q", "x.py", "-q", "--top"]) == ({"quiet": ""}, ["x.py", "-q", "--top"])
    assert options.split(["--cores=2", "-m", "pack.age", "-n", "3"]) == (
        {"cores": "2", "module": "pack.age"},
        ["-n", "3"],
    )
    assert options.split(["--", "-x.py"]) == ({}, ["-x.py"])
    with pytest.raises(UserError):
        options.split(["--cores"])


def test_the_summary_as_text() -> None:
    worker = {
        **dict.fromkeys(summary._SUMS, 0),
        "rank": 0,
        "cores": [0],
        "instance_type": "trn1.2xlarge",
        "logical_neuroncore_config": 1,
        "steps_total": 101,
        "samples_total": 808,
        "training_seconds": 50.0,
        "step_p50_seconds": 0.5,
        "step_p99_seconds": 0.75,
        "execution_p50_seconds": 0.4,
        "execution_p99_seconds": 0.6,
        "graphs_compiled_total": 2,
        "compile_seconds": 0.25,
        "executions_total": 101,
        "flop_total": 101 * 475 * 10**10,
        "hbm_peak_bytes": 3 << 30,
        "collectives_total": 202,
        "collective_seconds": 2.5,
        "collective_bytes": 3 << 20,
        "collective_p50_seconds": 0.0125,
        "fallbacks_total": 4,
    }
    document = summary.combined([worker], 0, 61.0)
    assert summary.text(document) == (
        "workers      1\n"
        "wall time    1 m 1 s\n"
        "steps        101 (2.0/s)\n"
        "step time    p50 500.0 ms, p99 750.0 ms\n"
        "samples      808 (16.0/s)\n"
        "graphs       2 compiled in 250.0 ms\n"
        "executions   101, p50 400.0 ms, p99 600.0 ms\n"
        "compute      9.5 TFLOPS, MFU 10.0000%\n"
        "HBM peak     3.0 GB\n"
        "transfers    0 to, 0 from the device\n"
        "collectives  202, 3.0 MB in 2.5 s, p50 12.5 ms\n"
        "errors       0 failed, 0 with NaN\n"
        "fallbacks    4 operators ran on the host\n"
    )


def test_a_tree_like_the_drivers_is_there_while_the_script_runs(neuron_run: Run, tmp_path: Path) -> None:
    tree = tmp_path / "host"
    (tmp_path / "look.py").write_text(
        "import pathlib, sys\n"
        "print(pathlib.Path(sys.argv[1], 'sys/devices/virtual/neuron_device/neuron0/core_count').read_text())\n"
    )
    done = neuron_run("-q", "--simulate", "trn1.2xlarge", "--export-sysfs", str(tree), "look.py", str(tree))
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    assert not tree.exists()


def test_the_tree_needs_a_simulated_host(neuron_run: Run) -> None:
    done = neuron_run("--export-sysfs", "host", "script.py")
    assert (done.returncode, done.stderr) == (
        2,
        "neuron-run: --export-sysfs is for a simulated host; add --simulate TYPE\n",
    )


def test_the_environment_can_ask_for_a_simulated_host(neuron_run: Run, tmp_path: Path) -> None:
    variables = {"NEURONTOOLS_SIMULATE": "inf2.xlarge", "NEURONTOOLS_SOCKET": ""}
    run = neuron_run("--summary-json", "out.json", "script.py", **variables)
    assert run.returncode == 0, run.stderr
    assert json.loads((tmp_path / "out.json").read_text())["instance_type"] == "inf2.xlarge"
    named = neuron_run("--summary-json", "out.json", "script.py", NEURONTOOLS_SIMULATE="inf2.xlarge")
    assert named.returncode == 0, named.stderr
    assert json.loads((tmp_path / "out.json").read_text())["instance_type"] is None


def test_graphs_are_compiled_ahead_of_a_run_that_finds_them(neuron_run: Run, tmp_path: Path) -> None:
    def ahead(*arguments: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NEURON", "XLA_"))}
        return subprocess.run(
            [sys.executable, "-m", "neurontools.cli.run.parallel_compile", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
            env={
                **kept,
                "PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}",
                "NEURON_COMPILE_CACHE_URL": str(tmp_path / "cache"),
                "NEURONTOOLS_SOCKET": str(tmp_path / "none.sock"),
                "OMP_NUM_THREADS": "1",
            },
        )

    collected = ahead("--command", "collect", sys.executable, "-m", "neurontools.runtime", "script.py", "3")
    assert collected.returncode == 3, collected.stderr
    assert "NEURON_PARALLEL_COMPILE||: " in collected.stderr.splitlines()[-1]
    compiled = int(collected.stderr.splitlines()[-1].partition("||: ")[2].split()[0])
    assert compiled > 0
    run = neuron_run("--summary-json", "out.json", "script.py")
    assert run.returncode == 0, run.stderr
    assert json.loads((tmp_path / "out.json").read_text())["graphs_compiled_total"] == 0
    assert ahead("--command=clean").returncode == 1
    assert ahead("--command=mow").returncode == ahead().returncode == 2
    assert ahead("--command=clear-locks").returncode == ahead("--help").returncode == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [(("--ignore", "float32,nan"), "float32,nan"), (("--no-advice",), "all"), ((), "None")],
)
def test_what_is_not_to_be_advised_is_told_to_the_runtime(
    tmp_path: Path, options: tuple[str, ...], expected: str
) -> None:
    (tmp_path / "script.py").write_text("import os\nprint(os.environ.get('NEURONTOOLS_IGNORE_ADVICE'))\n")
    assert neuron_run_script.neuron_run(tmp_path, "-q", *options, "script.py").stdout == f"{expected}\n"
