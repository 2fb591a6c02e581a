"""--optlevel 3: graphs become machine code beside the training and compute the same within rounding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from neurontools.runtime.native.background_builder import compiler_of
from neurontools.runtime.native.native_program import SegmentCode
from neurontools.runtime.native.segments import Archive, InvalidArchive, Segment, machine_key, segments_of
from neurontools.runtime.programs import compiler
from neurontools.runtime.programs.compile_cache import CompileCache
from neurontools.runtime.programs.compiled_graph import CompiledGraph
from neurontools.runtime.programs.compiler import CompilerFlags, parse_compiler_flags
from neurontools.runtime.programs.numerics import Numerics
from neurontools.runtime.programs.program import Program
from neurontools.runtime.tensors.buffers import Tensor
from tests.harness import python_process
from tests.harness.hostile_user import HOSTILE, needs_two_users, public_directory, successful_attacks
from tests.harness.waiting import HANG_SECONDS, wait_until

Run = Callable[..., "subprocess.CompletedProcess[str]"]
LEVEL_3 = {"NEURON_CC_FLAGS": "--optlevel 3"}
needs_compiler = pytest.mark.skipif(compiler_of(os.environ) is None, reason="needs a C++ compiler")
# Trains until there is machine code, or so many steps; the learning rate is another one at each step. After 40 steps it
# waits for the compiler, because on a busy host it would train for minutes. Of the compiler, torch itself imports the
# settings alone.
SCRIPT = """
import glob, json, os, sys
from neurontools.runtime.launch.install import install_runtime
install_runtime()
import torch, torch_xla.core.xla_model as xm
from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.launch.device_registration import executor

def training(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    value, target = torch.randn(5, 6).to(device), torch.randn(5, 3).to(device)
    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(value), target)
        loss.backward(); optimizer.step(); schedule.step()
        return loss
    return model, step

mode, most = sys.argv[1], int(sys.argv[2])
model, step = training(xm.xla_device())
losses, count = [], 0
while metrics.counters.get("MachineCodeExecution", 0) < (20 if mode == "wait" else 1 << 60) and count < most:
    loss = step(); xm.mark_step(); count += 1
    losses.append(loss.item())
    if mode == "wait" and count == 40:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
own, step = training("cpu")
wanted = [step().item() for _ in range(count)]
core = executor().cores[0]
print(json.dumps({
    "steps": count, "losses": losses, "wanted": wanted,
    "difference": max(float((a.cpu() - b).abs().max()) for a, b in zip(model.parameters(), own.parameters())),
    "counters": {k: v for k, v in metrics.counters.items() if k.startswith("MachineCode")},
    "flops": core.statistics.flops_total, "executions": core.statistics.executions_total,
    "work": executor().work().moved_bytes,
    "descriptors": [path for path in map(os.path.realpath, glob.glob("/proc/self/fd/*")) if "memfd:" in path],
    "inductor": [n for n in ("compile_fx", "graph", "scheduler") if f"torch._inductor.{n}" in sys.modules],
}))
"""
ENDLESS = 10_000_000


def told(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def graph_of(xla: Any, make: Callable[[], Any]) -> CompiledGraph:
    kept = make()
    graph = xla.cores[0].graph
    made = compiler.compile_graph(graph, bytes([buffer.is_alive for buffer in graph.buffers]), "123", "d41d8cd9")
    assert kept is not None
    return made


def names_in(compiled: CompiledGraph, changing: Sequence[int] = ()) -> list[list[str]]:
    return [
        [compiled.instructions[at].operator.name for at in range(segment.first, segment.end)]
        for segment in segments_of(compiled, changing)
    ]


@needs_compiler
@pytest.mark.long
def test_a_training_gets_machine_code_and_the_next_one_finds_it(
    run_python: Run, device_environment: dict[str, str], tmp_path: Path
) -> None:
    cache = {"NEURON_COMPILE_CACHE_URL": str(tmp_path / "cache")}
    training = subprocess.run(
        [sys.executable, "-c", SCRIPT, "wait", str(ENDLESS)],
        env=python_process.user_environment(**{**device_environment, **cache, **LEVEL_3}),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=6 * HANG_SECONDS,  # the compiler takes half a minute of a CPU, at a low priority
        check=False,
    )
    first = told(training)
    assert first["counters"]["MachineCodeBuild"] == 1
    assert first["counters"]["MachineCodeExecution"] >= 20
    assert first["losses"] == pytest.approx(first["wanted"], rel=1e-3, abs=1e-6)
    assert first["difference"] < 1e-3
    assert not first["inductor"], "the compiler is a process of its own"
    assert not first["descriptors"], "a loaded object keeps none"

    second = told(run_python("-c", SCRIPT, "count", "60", **cache, **LEVEL_3))
    plain = told(run_python("-c", SCRIPT, "count", "60", **cache))
    assert "MachineCodeBuild" not in second["counters"]
    assert second["counters"]["MachineCodeExecution"] >= 40
    assert second["losses"] == pytest.approx(second["wanted"], rel=1e-3, abs=1e-6)
    assert plain["losses"] == plain["wanted"]
    assert plain["difference"] == 0.0
    assert not plain["counters"]
    for counted in ("flops", "executions", "work"):
        assert second[counted] == plain[counted]


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        pytest.param({}, None, id="no flag", marks=pytest.mark.slow),
        pytest.param({"CXX": "/nowhere/g++", **LEVEL_3}, "no C++ compiler (g++) was found", id="no compiler"),
        pytest.param(
            {"NEURON_CC_FLAGS": "-O3 --auto-cast matmult"},
            "--optlevel 3 does nothing where numbers are rounded",
            id="rounding",
        ),
    ],
)
def test_without_the_flag_or_a_compiler_training_goes_on_and_says_so_once(
    run_python: Run, tmp_path: Path, variables: dict[str, str], line: str | None
) -> None:
    cache = {"NEURON_COMPILE_CACHE_URL": str(tmp_path / "cache")}
    done = run_python("-c", SCRIPT, "count", "40", is_started=line is None, **cache, **variables)
    run = told(done)
    assert not run["counters"]
    assert not run["inductor"] or line is not None, "nothing of the compiler is imported without the flag"
    if "--auto-cast" not in variables.get("NEURON_CC_FLAGS", ""):
        assert run["losses"] == run["wanted"]
        assert run["difference"] == 0.0
    assert line is None or done.stderr.count(line) == 1


@needs_compiler
@pytest.mark.slow
def test_a_killed_training_takes_its_compiler_with_it(
    tmp_path: Path, start_script: Callable[..., subprocess.Popen[str]]
) -> None:
    places = {"TMPDIR": str(tmp_path), "NEURON_COMPILE_CACHE_URL": str(tmp_path / "cache")}
    looking_anew = "import tempfile\ntempfile.tempdir = None\n"  # a process that is forked knows one already
    training = start_script(looking_anew + SCRIPT, "count", str(ENDLESS), **LEVEL_3, **places)
    wait_until(lambda: list(tmp_path.glob("neurontools-machine-code-*")))
    training.kill()
    training.wait()
    wait_until(lambda: not list(tmp_path.glob("neurontools-machine-code-*")))


def test_what_may_raise_or_draws_numbers_stays_as_it_is(xla: Any) -> None:
    value = torch.ones(4, 4).to("xla")
    tokens = torch.tensor([1, 2]).to("xla")

    def make() -> Any:
        before = (value * 2).relu()
        drawn = torch.nn.functional.dropout(before, 0.5)
        looked_up = torch.nn.functional.embedding(tokens, drawn)
        return (looked_up + 1).exp(), tokens * tokens // tokens

    compiled = graph_of(xla, make)
    assert names_in(compiled) == [["aten::mul.Tensor", "aten::relu"], ["aten::add.Tensor", "aten::exp"]]


def test_a_number_that_changes_is_given_where_the_operator_can_take_it(xla: Any) -> None:
    value = torch.ones(4).to("xla")
    compiled = graph_of(xla, lambda: torch.nn.functional.leaky_relu((value * 2.5).exp(), 0.5).tanh().sin())
    (whole,) = segments_of(compiled, ())
    assert (whole.changing, len(whole.fixed)) == ((), 2)
    first, second = segments_of(compiled, whole.fixed)
    assert first.changing == whole.fixed[:1]
    assert (second.changing, second.fixed) == ((), ())
    assert names_in(compiled, whole.fixed) == [["aten::mul.Tensor", "aten::exp"], ["aten::tanh", "aten::sin"]]


def test_an_archive_survives_as_bytes_and_others_are_none() -> None:
    assert machine_key(1) == machine_key(1) != machine_key(2), "it is for a number of threads"
    segment = Segment(0, 2, (0, 1), (3,), (1,), (0,), (1,))
    archive = Archive("MODULE_1", "key", (segment,), (b"\x7fELF\n",), ((0, 0.1), (2, 3)), (1,))
    data = archive.to_bytes()
    assert Archive.from_bytes(data, "MODULE_1", "key") == archive
    for wrong in (data[:-1], b"", b"0" * 64 + data[64:]):
        with pytest.raises(InvalidArchive):
            Archive.from_bytes(wrong, "MODULE_1", "key")
    for module, key in (("MODULE_2", "key"), ("MODULE_1", "another machine")):
        with pytest.raises(InvalidArchive):
            Archive.from_bytes(data, module, key)


def test_machine_code_that_others_may_write_is_not_loaded(tmp_path: Path) -> None:
    flags = parse_compiler_flags("-O3")
    cache = CompileCache({"NEURON_COMPILE_CACHE_URL": str(tmp_path)})
    cache.store_machine_code("123", flags, "key", b"code")
    (path,) = tmp_path.rglob("machine-code-key.bin")
    assert cache.machine_code("123", flags, "key") == b"code"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o620)
    assert cache.machine_code("123", flags, "key") is None
    path.chmod(0o600)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert cache.machine_code("123", flags, "key") is None
    assert cache.machine_code("123", CompilerFlags(), "key") is None


@needs_two_users
def test_another_user_can_neither_change_nor_place_machine_code() -> None:
    flags = parse_compiler_flags("-O3")
    with public_directory() as place:
        cache = CompileCache({"NEURON_COMPILE_CACHE_URL": str(place / "cache")})
        cache.store_machine_code("123", flags, "key", b"code")
        (path,) = place.rglob("machine-code-key.bin")
        assert successful_attacks(path) == []
        assert cache.machine_code("123", flags, "key") == b"code"
        path.parent.chmod(0o777)
        assert "rename" in successful_attacks(path), "the attacks work where they are not refused"
        path.with_name(f"{path.name}.old").rename(path)
        os.chown(path, HOSTILE, HOSTILE)
        assert cache.machine_code("123", flags, "key") is None


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (torch.full((4,), 2.0), "differs by"),
        (torch.full((4,), float("nan")), "infinite or NaN"),
        (torch.zeros(8)[::2], "strides"),
        (torch.full((4,), 2.0).exp(), "same memory"),
        (torch.zeros(4, dtype=torch.float64), "float64"),
    ],
    ids=["values", "NaN", "strides", "no new memory", "type"],
)
def test_machine_code_that_computes_something_else_is_not_used(xla: Any, made: Tensor, reason: str) -> None:
    value = torch.ones(4).to("xla")
    compiled = graph_of(xla, lambda: (value * 2).exp())
    (segment,) = segments_of(compiled, ())
    program = Program(compiled, Numerics())
    told_reasons: list[str] = []
    wrong: Any = SimpleNamespace(run=lambda _inputs: [made])
    code = SegmentCode(program, segment, wrong, told_reasons.append)
    for _ in range(2):
        (result,) = code.run([torch.ones(4)], [2])
        assert torch.equal(result, torch.full((4,), 2.0).exp())
    assert len(told_reasons) == 1
    assert reason in told_reasons[0]
