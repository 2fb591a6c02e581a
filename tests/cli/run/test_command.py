"""neuron-run as a user calls it: scripts, workers, summaries, estimates."""

from __future__ import annotations

import json
import py_compile
import re
import signal
import subprocess
import sys
import zipapp
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from neurontools.cli.run import command, summary
from neurontools.faults.requests import FaultRequest
from neurontools.profile import read_directory
from neurontools.rpc import fault_calls
from neurontools.util.errors import UserError
from tests.harness import counted_runs, python_process
from tests.harness import neuron_run as runs
from tests.harness.neuron_run import environment, stable, summary_of
from tests.harness.paths import ROOT
from tests.harness.pictures import is_as_stored
from tests.harness.running_daemon import StartDaemon
from tests.harness.training_scripts import BEGINNING, PLAIN, TRAINED
from tests.harness.waiting import run_to_end, wait_until

pytest.importorskip("torch")

SUMMARY = Path(__file__).parent / "golden" / "summary.txt"
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
line = " ".join(["arguments", *sys.argv[1:], str(xm.xrt_world_size()), os.environ.get("MASTER_ADDR", "alone")])
os.write(1, f"{line}\\n".encode())  # in one piece: workers share the output
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def neuron_run(tmp_path: Path) -> Run:
    (tmp_path / "script.py").write_text(SCRIPT)
    return partial(runs.neuron_run, tmp_path)


def test_a_failed_test_of_the_devices_stops_the_run(neuron_run: Run, start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    options = ("--quiet", "--diag", "1", "--socket", daemon.socket, "script.py")
    assert neuron_run(*options).returncode == 0
    fault_calls.inject(daemon.socket, [FaultRequest("hbm-uncorrectable", device_index=3)])
    wait_until(daemon.findings)
    run = neuron_run(*options)
    assert (run.returncode, run.stdout) == (5, "")
    assert "1 test failed: counters on device 3" in run.stderr
    assert run.stderr.endswith("neuron-run: --diag: a test of the devices failed, so the script did not start\n")


def test_without_torch_the_next_step_is_one_line(tmp_path: Path) -> None:
    """`-S` leaves out the directory that has torch."""
    (tmp_path / "script.py").touch()
    run = run_to_end(
        [sys.executable, "-S", "-c", "from neurontools.cli.run.command import main; main()", "script.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
    )
    why = f"PyTorch is not installed for {sys.executable}; run pip install 'neurontools[runtime]'"
    assert (run.returncode, run.stdout, run.stderr) == (1, "", f"neuron-run: {why}\n")


def test_a_script_with_its_arguments_and_its_summary(neuron_run: Run, tmp_path: Path) -> None:
    run = neuron_run("--simulate", "trn1.2xlarge", "--summary-json", "out.json", "-m", "script", "7", "--epochs")
    assert run.returncode == 7, run.stderr
    assert run.stdout == "arguments 7 --epochs 1 alone\n"
    summary = json.loads((tmp_path / "out.json").read_text())
    (rank,) = summary.pop("ranks")
    # three products of 5 x 8 x 4 would be 960; the gradient of the batch is not asked for
    assert summary["flop_total"] == 6 * 2 * 2 * 5 * 8 * 4
    assert 0 < summary["mfu_ratio"] < 1
    assert 0 < summary["busy_seconds"] < summary["wall_seconds"]
    lines = [json.dumps({name: value}) for each in (summary, rank) for name, value in stable(each).items()]
    said = re.sub(r"(?<=wall time).*|\$[\d.]+|[\d.]+(/s| ([mun]?s|[KMG]?FLOPS|[KMG]iB)\b)", "", run.stderr)
    lines += said.splitlines()
    (text, program) = (next((tmp_path / "cache").rglob(name)).read_text() for name in ("model.hlo.pb", "model.neff"))
    graph = json.loads(program)
    instructions = graph.pop("instructions")
    del graph["torch"], graph["graph_hash"]
    lines += [*text.splitlines(), json.dumps(graph), *map(json.dumps, instructions)]
    assert is_as_stored("\n".join(lines), SUMMARY), "look at the difference; then UPDATE_GOLDEN=1 writes it"
    assert not re.search(r"[\r\x1b]|starting", run.stderr), "a line of progress is for terminals"


def test_a_script_from_standard_input_has_the_device_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("text = 'imported'")
    (tmp_path / "input.py").write_text(
        "import sys, torch, beside\n"
        "class Options: size: int\n"
        "total = torch.ones(2, device='neuron:0').sum().item()\n"
        "print(__name__, sys.argv, beside.text, total, Options.__annotations__)\n"
        "1 / 0"
    )
    with (tmp_path / "input.py").open("rb") as source:
        run = python_process.run(
            [*runs.COMMAND, "-q", "-", "--epochs", "3"],
            loaded=python_process.TORCH,
            text=True,
            cwd=tmp_path,
            env=environment(tmp_path),
            stdin=source,
        )
    assert run.stdout == "__main__ ['-', '--epochs', '3'] imported 2.0 {'size': <class 'int'>}\n"
    assert run.returncode == 1
    assert 'Traceback (most recent call last):\n  File "<stdin>", line 5, in <module>' in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pyz", "pyc"])
def test_an_archive_and_compiled_code_run_as_under_python(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "app" / "__main__.py"
    source.parent.mkdir()
    source.write_text("import sys, torch\nprint(__name__, sys.argv, torch.ones(2).sum().item())")
    if kind == "pyz":
        zipapp.create_archive(source.parent, tmp_path / "script.pyz", interpreter="/usr/bin/env python3")
    else:
        py_compile.compile(str(source), str(tmp_path / "script.pyc"))
    commands = ([sys.executable], [sys.executable, "-m", "neurontools.runtime"])
    runs = [run_to_end([*each, f"script.{kind}", "7"], cwd=tmp_path, env=environment(tmp_path)) for each in commands]
    assert runs[1].stdout == runs[0].stdout != "", runs[1].stderr


@pytest.mark.slow
def test_workers_have_a_core_each(neuron_run: Run) -> None:
    run = neuron_run(
        "--simulate", "trn1.2xlarge", "-n", "2", "--cores", "0-1", "--summary-json", "-", "-q", "script.py"
    )
    assert run.returncode == 0, run.stderr
    lines, _, document = run.stdout.partition("{")
    assert lines == "arguments 2 127.0.0.1\n" * 2  # no name that the host may not resolve
    summary = json.loads("{" + document)
    assert (summary["workers"], summary["cores"], summary["samples_total"]) == (2, [0, 1], 60)
    assert summary["collective_bytes"] > 0
    assert len({rank["pid"] for rank in summary["ranks"]}) == 2
    assert all(rank["is_simulated"] for rank in summary["ranks"])


OWN_WORKERS = """
import torch, torch_xla.core.xla_model as xm, torch_xla.distributed.xla_multiprocessing as xmp
def train(index):
    weight = torch.ones(4, 4, device=xm.xla_device(), requires_grad=True)
    for _ in range(5):
        (weight @ weight).sum().backward()
        xm.optimizer_step(torch.optim.SGD([weight], lr=0.1), barrier=True)
if __name__ == "__main__":
    xmp.spawn(train, nprocs=2, start_method="METHOD")
"""


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.slow), "fork"])
def test_workers_that_a_script_starts_itself_are_told_and_profiled(tmp_path: Path, method: str) -> None:
    told = summary_of(tmp_path, OWN_WORKERS.replace("METHOD", method), "--profile", "made")
    assert (told["workers"], told["cores"]) == (2, [0, 1])
    assert [rank["rank"] for rank in told["ranks"]] == [0, 1]
    assert told["executions_total"] >= 10
    found = [(each.metadata.rank, len(each.steps), each.state.has_ended) for each in read_directory(tmp_path / "made")]
    assert found == [(0, 5, True), (1, 5, True)]


def test_a_script_that_a_signal_ended(neuron_run: Run, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert neuron_run("script.py").returncode == 128 + signal.SIGKILL


def test_options_end_where_the_script_begins() -> None:
    assert command.split_command_line(["-q", "x.py", "-q", "--top"]) == ({"quiet": ""}, ["x.py", "-q", "--top"])
    assert command.split_command_line(["--cores=2", "-m", "pack.age", "-n", "3"]) == (
        {"cores": "2", "module": "pack.age"},
        ["-n", "3"],
    )
    assert command.split_command_line(["--", "-x.py"]) == ({}, ["-x.py"])
    with pytest.raises(UserError):
        command.split_command_line(["--cores"])


def test_the_summary_of_two_workers_of_four() -> None:
    worker = {
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
        "failed_executions_total": 1,
        "numerical_errors_total": 3,
        "busy_seconds": 40.5,
        "flop_total": 101 * 475 * 10**10,
        "hbm_peak_bytes": 3 << 30,
        "to_device_bytes": 5 << 10,
        "from_device_bytes": 7 << 20,
        "collectives_total": 202,
        "collective_seconds": 2.5,
        "collective_bytes": 3 << 20,
        "collective_p50_seconds": 0.0125,
        "fallbacks_total": 4,
    }
    served = {"name": "m", "requests_total": 7, "failed_requests_total": 2}
    served |= {"latency_p50_seconds": 0.5, "latency_p99_seconds": 2.0}
    other = {"rank": 1, "cores": [1], "step_p50_seconds": 0.625, "hbm_peak_bytes": 5 << 30, "served_models": [served]}
    other |= {"steady_state": {"steps_total": 10, "samples_total": 160}}
    workers = [worker, worker | other]
    document = summary.combine_workers(workers, 3, 61.0, 4)
    text = summary.summary_text(document)
    assert (document.pop("ranks"), document.pop("cores")) == (workers, [0, 1])
    values = [f"{name}={value}" for name, value in document.items()]
    expected = """
        exit_code=3 wall_seconds=61.0 workers=4 samples_total=1616 graphs_compiled_total=4 executions_total=202
        failed_executions_total=2 busy_seconds=81.0 flop_total=959500000000000 to_device_bytes=10240
        from_device_bytes=14680064 collective_seconds=5.0 collective_bytes=6291456 collectives_total=404
        numerical_errors_total=6 fallbacks_total=8 compile_seconds=0.5 steps_total=101 hbm_peak_bytes=5368709120
        step_p50_seconds=0.625 step_p99_seconds=0.75 execution_p50_seconds=0.4 execution_p99_seconds=0.6
        collective_p50_seconds=0.0125 collective_p99_seconds=None training_seconds=50.0 steps_per_second=2.0
        samples_per_second=48.0 flops_per_second=9500000000000.0 instance_type=trn1.2xlarge mfu_ratio=0.05
    """
    assert values == expected.split()
    assert text == (
        "workers      4\n"
        "wall time    1 m 1 s\n"
        "steps        101 (2.0/s)\n"
        "step time    p50 625.0 ms, p99 750.0 ms\n"
        "samples      1,616 (48.0/s)\n"
        "served       m: 7 requests, 2 failed, p50 500.0 ms, p99 2.0 s\n"
        "graphs       4 compiled in 500.0 ms\n"
        "executions   202, p50 400.0 ms, p99 600.0 ms\n"
        "compute      9.5 TFLOPS, MFU 5.0000%\n"
        "HBM peak     5.0 GiB\n"
        "transfers    10.0 KiB to, 14.0 MiB from the device\n"
        "collectives  404, 6.0 MiB in 5.0 s, p50 12.5 ms\n"
        "errors       2 failed, 6 with NaN\n"
        "fallbacks    8 operators ran on the host\n"
    )


def test_what_a_script_is_told_by_options(neuron_run: Run, tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text(
        "import os, pathlib, sys\n"
        "print(os.environ.get('NEURONTOOLS_IGNORE_ADVICE'))\n"
        "print(pathlib.Path(sys.argv[1], 'sys/devices/virtual/neuron_device/neuron0/core_count').read_text())\n"
    )
    tree = tmp_path / "host"
    simulated = ("--simulate", "trn1.2xlarge", "--export-sysfs", str(tree))
    done = neuron_run("-q", *simulated, "--ignore", "float32,nan", "look.py", str(tree))
    assert (done.returncode, done.stdout) == (0, "float32,nan\n2\n"), done.stderr
    assert not tree.exists()


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "told"), [(("--no-advice",), "all\n"), ((), "None\n")])
def test_rules_of_advice_that_a_script_is_not_told(
    neuron_run: Run, tmp_path: Path, flags: tuple[str, ...], told: str
) -> None:
    (tmp_path / "look.py").write_text("import os; print(os.environ.get('NEURONTOOLS_IGNORE_ADVICE'))\n")
    assert neuron_run("-q", *flags, "look.py").stdout == told


@pytest.mark.slow
@pytest.mark.parametrize("is_named", [False, True])
def test_the_environment_can_ask_for_a_simulated_host_where_it_names_no_socket(
    neuron_run: Run, tmp_path: Path, is_named: bool
) -> None:
    variables = {"NEURONTOOLS_SIMULATE": "inf2.xlarge", **({} if is_named else {"NEURONTOOLS_SOCKET": ""})}
    run = neuron_run("--summary-json", "out.json", "script.py", **variables)
    assert run.returncode == 0, run.stderr
    assert json.loads((tmp_path / "out.json").read_text())["instance_type"] == (None if is_named else "inf2.xlarge")


@pytest.mark.slow
def test_graphs_are_compiled_ahead_of_a_run_that_finds_them(neuron_run: Run, tmp_path: Path) -> None:
    def ahead(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_to_end(
            [sys.executable, "-m", "neurontools.cli.run.parallel_compile", *arguments],
            cwd=tmp_path,
            env=environment(tmp_path),
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


VIT = str(ROOT / "examples" / "train_vit.py")
WIDTH, DEPTH, TOKENS, BATCH, CLASSES = 64, 2, 17, 4, 1000


def flops_of_a_step() -> int:
    """By hand: multiplications and additions of the small model, forward and twice backward."""
    linear = TOKENS * WIDTH * (3 * WIDTH + WIDTH + 8 * WIDTH) * DEPTH + WIDTH * CLASSES
    patches = 16 * (3 * 8 * 8) * WIDTH
    attention = 2 * TOKENS * TOKENS * WIDTH * DEPTH  # two products: scores and what they weigh
    # Pictures need no gradient, so the patches are multiplied once in backward; backward of attention computes its
    # scores again.
    return 2 * BATCH * (3 * linear + 2 * patches + attention + attention * 5 // 2)


def test_a_run_is_estimated_without_a_daemon(neuron_run: Run, tmp_path: Path) -> None:
    run = neuron_run(
        "--estimate", "inf2.xlarge", "--summary-json", "out.json", "--samples", "1000", VIT, "--small",
        "--batch", str(BATCH), "--steps", "4", NEURONTOOLS_SOCKET="",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "loss" in run.stdout
    assert re.search(r"\n\ncounted +4 steps.*\ninf2.xlarge        fits", run.stderr, re.DOTALL), run.stderr
    assert "would cost" in run.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["instance_type"] == "inf2.xlarge"
    (rank,) = document["ranks"]
    (estimate,) = document["estimates"]
    assert rank["flops_by_dtype"] == {"float32": 4 * flops_of_a_step()}
    weights = rank["weight_bytes"]
    assert (rank["gradient_bytes"], rank["batch_samples"], rank["batches_total"]) == (weights, BATCH, 4)
    assert rank["optimizer_state_bytes"] == 2 * weights  # and a step each, which Adam keeps on the host
    assert estimate["counted"]["rest_bytes"] == rank["hbm_peak_bytes"] - 4 * weights
    assert estimate["costs"][0]["epoch_usd"] is not None


@pytest.mark.slow
def test_an_evaluation_is_no_part_of_a_step(tmp_path: Path) -> None:
    evaluation = (
        "with torch.no_grad():\n    for value, target in pl.MpDeviceLoader(DataLoader(data, batch_size=4), device):\n"
        "        right = (model(value).argmax(1) == target).sum()\n"
    )
    epoch = PLAIN + "    step(value, target)\n"
    script = BEGINNING + TRAINED + (epoch + evaluation) * 2
    document = summary_of(tmp_path, script, "--estimate", "trn1.2xlarge")
    assert (document["steps_total"], document["samples_total"]) == (24, 4 * 96)
    (made,) = document["estimates"]
    # Of the first layer only the gradient of the weights is asked for.
    assert made["counted"]["flops_by_dtype"] == {"float32": 2 * 8 * (2 * 8 * 16 + 3 * 16 * 4)}
    assert made["counted"]["executions_per_step"] == 1
    assert document["samples_per_second"] == pytest.approx(8 * document["steps_per_second"])


@pytest.mark.slow
def test_memory_is_that_of_all_optimizers(tmp_path: Path) -> None:
    script = (
        "import torch, torch_xla.core.xla_model as xm\n"
        "models = [torch.nn.Linear(8, 4).to(xm.xla_device()), torch.nn.Linear(4, 2).to(xm.xla_device())]\n"
        "optimizers = [torch.optim.Adam(model.parameters()) for model in models]\n"
        "for _ in range(3):\n"
        "    models[1](models[0](torch.ones(3, 8).to(xm.xla_device()))).sum().backward()\n"
        "    for optimizer in optimizers: optimizer.step()\n"
        "    for optimizer in optimizers: optimizer.zero_grad()\n"
        "    xm.mark_step()\n"
    )
    (rank,) = summary_of(tmp_path, script)["ranks"]
    weights = 4 * (8 * 4 + 4 + 4 * 2 + 2)
    memory = (rank["weight_bytes"], rank["gradient_bytes"], rank["optimizer_state_bytes"])
    assert memory == (weights, weights, 2 * weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "variables"),
    [((), {"NEURON_CC_FLAGS": "--auto-cast=matmult --auto-cast-type=bf16"}), (("--bf16",), {})],
    ids=["compiler", "script"],
)
def test_what_is_narrowed_is_counted_as_that(
    neuron_run: Run, tmp_path: Path, flags: tuple[str, ...], variables: dict[str, str]
) -> None:
    arguments = ("-q", "--estimate", "trn1.2xlarge", "--summary-json", "out.json", VIT, "--small", "--steps", "2")
    run = neuron_run(*arguments, *flags, **variables, NEURONTOOLS_SOCKET="")
    assert run.returncode == 0, run.stderr
    assert set(json.loads((tmp_path / "out.json").read_text())["ranks"][0]["flops_by_dtype"]) == {"bfloat16"}


@pytest.mark.slow
def test_a_script_without_a_step_has_no_estimate_and_its_own_exit_code(neuron_run: Run, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys, torch_xla.core.xla_model as xm; xm.xla_device(); sys.exit(3)\n")
    run = neuron_run("-q", "--estimate", "trn1.2xlarge", "script.py", NEURONTOOLS_SOCKET="")
    assert run.returncode == 3
    assert "no estimate: neither a training step nor a matrix multiplication on the device was seen" in run.stderr


def test_the_summary_says_what_it_would_cost() -> None:
    rank = counted_runs.summary()["ranks"][0] | {"instance_type": "trn1.2xlarge", "cores": [0], "rank": 0}
    told = summary.summary_text(summary.combine_workers([rank], 0, 12.0))
    assert "for 1,000 steps on trn1.2xlarge, an estimate" in told
    assert "would cost" not in summary.summary_text(summary.combine_workers([rank | {"instance_type": None}], 0, 12.0))
