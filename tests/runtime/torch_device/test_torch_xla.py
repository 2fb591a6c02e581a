"""The modules that scripts import as torch_xla."""

from __future__ import annotations

import importlib.metadata
import os
import pkgutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.launch.import_hook import IMPORTABLE_MODULES, REFUSED_PACKAGES
from tests.harness.loaded_interpreter import WHOLE_END


@pytest.fixture
def xm(xla: Any) -> Any:
    import torch_xla.core.xla_model as module

    return module


def test_devices_and_collectives_of_a_single_process(xm: Any) -> None:
    import torch_xla
    import torch_xla.runtime as xr

    assert xm.xla_device() == torch_xla.device() == torch.device("xla:0")
    assert xm.xla_device_hw(xm.xla_device()) == "NEURON"
    assert (xm.xrt_world_size(), xm.get_ordinal(), xm.get_local_ordinal()) == (1, 0, 0)
    assert xm.is_master_ordinal()
    assert torch_xla.device_count() == xr.addressable_device_count() == 2
    value = torch.arange(4.0).to("xla")
    assert xm.all_reduce(xm.REDUCE_SUM, value, scale=0.5).tolist() == [0.0, 0.5, 1.0, 1.5]
    scattered = xm.reduce_scatter(xm.REDUCE_SUM, value / 2, 2.0, 0, 1)
    alone = xm.all_gather(value), scattered, xm.all_to_all(value, 0, 0, 1)
    assert all(map(value.equal, alone))
    assert xm.rendezvous("x", b"payload") == [b"payload"]
    assert xm.mesh_reduce("x", 3, sum) == 3


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.full((4, 2), float(i)), torch.arange(4)) for i in range(count)]


@pytest.mark.parametrize(("per_execution", "marks"), [(1, 13), (5, 3), (100, 1)])
def test_the_loader_marks_steps(xm: Any, per_execution: int, marks: int) -> None:
    import torch_xla.distributed.parallel_loader as pl

    before = metrics.counters.get("MarkStep", 0)
    loader = pl.MpDeviceLoader(batches(11), xm.xla_device(), batches_per_execution=per_execution)
    assert len(loader) == 11
    means = [value.mean() for value, target in loader if target.device.type == "xla"]
    assert [mean.item() for mean in means] == [float(i) for i in range(11)]
    assert metrics.counters["MarkStep"] - before == marks


def test_the_loader_hands_on_errors(xm: Any) -> None:
    import torch_xla.distributed.parallel_loader as pl

    def broken() -> Any:
        yield torch.ones(1)
        raise ValueError("bad sample")

    with pytest.raises(ValueError, match="bad sample"):
        list(pl.MpDeviceLoader(broken(), xm.xla_device()))


def test_metrics(xm: Any) -> None:
    import torch_xla.debug.metrics as met

    def times_and_plus(steps: int) -> None:
        value = torch.ones(3).to("xla")
        for _ in range(steps):
            total = value * 2 + 1
            total += value
            total.sum().exp().neg().abs()
            xm.mark_step()

    xm.mark_step()
    met.clear_all()
    pending = torch.ones(3).to("xla") + 1
    assert (met.counter_value("xla::add"), met.counter_value("CreateXlaTensor")) == (1, 2)
    assert met.metric_data("TensorToData")[0] == met.metric_data("LazyTracing")[0] == 1
    met.clear_counters()
    assert met.counter_names() == []
    xm.mark_step()
    assert met.counter_value("xla::add") is None
    times_and_plus(6)
    assert met.counter_value("FollowedGraph") > 0, "replayed calls count too, but are not traced"
    assert [met.counter_value(f"xla::{name}") for name in ("add", "mul", "sum")] == [12, 6, 6]
    assert met.metric_data("LazyTracing")[0] < 6 * 7
    assert met.counter_value("DeviceDataCacheMiss") is None
    pending.nonzero()
    assert "ExecuteTime" in met.metric_names()
    count, total, _ = met.metric_data("ExecuteTime")
    assert count > 0 < total
    assert "aten::nonzero" in met.executed_fallback_ops()
    assert "Counter: aten::nonzero" in met.metrics_report()
    for name in ("ExecuteTime", "TransferToDeviceTime"):
        assert f"Metric: {name}" in met.short_metrics_report()
    assert "TensorToData" not in met.short_metrics_report()


def test_syncfree_optimizers_skip_overflowed_steps(xm: Any) -> None:
    from torch_xla.amp import autocast, syncfree

    layer = torch.nn.Linear(2, 2).to("xla")
    optimizer = syncfree.SGD(layer.parameters(), lr=1.0)
    with autocast(xm.xla_device()):
        layer(torch.ones(1, 2, device="xla")).sum().backward()
    before = layer.weight.detach().cpu()
    optimizer.step(found_inf=torch.ones(1, device="xla"))
    assert torch.equal(layer.weight.detach().cpu(), before)
    optimizer.step(found_inf=torch.zeros(1, device="xla"))
    assert not torch.equal(layer.weight.detach().cpu(), before)


INSTEAD = {
    "torch_xla.distributed.spmd": "use one process per NeuronCore (torchrun) with xm.all_reduce",
    "torch_xla.stablehlo": "use torch.export on the CPU",
    "neuronx_distributed.pipeline": "use tensor and data parallelism",
}


@pytest.mark.parametrize(
    "path",
    [
        "torch_xla.amp.syncfree.adam.Adam",
        "torch_xla.experimental.pjrt_backend.ProcessGroupXla",
        "torch_neuronx.xla_impl.ops.set_unload_prior_neuron_models_mode",
        "neuronx_distributed.utils.model_utils.move_model_to_device",
        "neuronx_distributed.parallel_layers.random.model_parallel_xla_manual_seed",
    ],
)
def test_a_module_has_its_second_path(set_up_device: None, path: str) -> None:
    assert callable(pkgutil.resolve_name(path))
    with pytest.raises(AttributeError, match=f"{path}_ is not part of the simulated runtime"):
        pkgutil.resolve_name(f"{path}_")


@pytest.mark.parametrize("package", sorted(REFUSED_PACKAGES))
def test_packages_without_a_stand_in_are_refused_with_a_replacement(set_up_device: None, package: str) -> None:
    for name in (package, f"{package}.language"):
        with pytest.raises(
            ModuleNotFoundError, match=f"^{package} is not part of the simulated runtime; use "
        ) as raised:
            importlib.import_module(name)
        assert "\n" not in str(raised.value)
    assert importlib.util.find_spec(package) is None  # a library that asks may do without it


def test_kernels_are_refused_when_they_are_used(set_up_device: None) -> None:
    for module, name in (
        ("torch_neuronx.xla_impl.ops", "nki_jit"),
        ("torch_neuronx", "nki_jit"),
        ("torch_neuronx", "wrap_nki"),
        ("torch_neuronx.xla_impl.custom_op", "load"),
    ):
        kernel = getattr(importlib.import_module(module), name)
        with pytest.raises(NotImplementedError, match=rf"{module}\.{name} is not part of the simulated runtime; use "):
            kernel("kernel")


def test_the_older_form_of_the_model_builder_is_refused_with_the_newer_one(xm: Any) -> None:
    builder: Any = importlib.import_module("neuronx_distributed.trace.model_builder")
    for name, options in (("ModelBuilder", {"router": None, "tp_degree": 2}), ("BaseModelInstance", {})):
        with pytest.raises(NotImplementedError, match=r"use neuronx_distributed\.ModelBuilder\(model\)"):
            getattr(builder, name)(**options)
    value, weight = torch.rand(2, 3, 4), torch.rand(4)
    operators: Any = importlib.import_module("torch_neuronx.xla_impl.ops")
    norm = operators.RmsNorm.apply(value, weight, 1e-6, 2)
    torch.testing.assert_close(norm, nn.functional.rms_norm(value, (4,), weight, 1e-6))


def test_an_operator_of_a_kernel_runs_its_reference_for_the_cpu_and_counts_it(xm: Any) -> None:
    torch_neuronx = importlib.import_module("torch_neuronx")

    def calls_the_kernel(x: torch.Tensor, factor: float) -> torch.Tensor:
        result: torch.Tensor = torch_neuronx.wrap_nki(None)(x, factor)
        return result

    scaled = torch_neuronx.nki_op("neurontools_nki::scaled", mutates_args=())(calls_the_kernel)
    scaled.register_fake(lambda x, factor: torch.empty_like(x))
    value = torch.arange(3.0)
    with pytest.raises(NotImplementedError, match=r"neurontools_nki::scaled does not run here; register a reference"):
        scaled(value, 2.0)
    scaled.register_kernel("cpu")(lambda x, factor: x * factor)

    def count() -> int:
        return int(metrics.counters.get("NkiReference:neurontools_nki::scaled", 0))

    model = torch_neuronx.trace(lambda x: scaled(x, 2.0) + 1, value)
    before = count()
    assert torch.equal(model(value), value * 2 + 1)
    assert torch.equal(scaled(value.to("xla"), 3.0).cpu(), value * 3)
    assert count() >= before + 2


@pytest.mark.parametrize("module", sorted(IMPORTABLE_MODULES))
def test_a_missing_module_can_be_imported_and_says_what_to_use_when_it_is_used(xm: Any, module: str) -> None:
    space: dict[str, Any] = {}
    exec(f"import {module} as found; from {module} import Something", space)
    assert not isinstance(0, space["Something"])
    assert not hasattr(space["found"], "__wrapped__")
    for use in ("(0)", ".create()", "[0]", ".a.b", None):
        with pytest.raises(NotImplementedError) as raised:
            exec(f"Something{use}" if use else "class Own(Something): pass", space)
        error = str(raised.value)
        assert error.startswith(f"{module}.Something is not part of the simulated runtime; use ")
        assert INSTEAD.get(module, "") in error


def test_a_missing_name_is_an_error_that_says_what_to_use(xm: Any) -> None:
    import torch_xla.runtime

    for statement, name, instead in (
        ("torch_xla.nothing", "torch_xla.nothing", ""),
        ("import torch_xla.nothing", "torch_xla.nothing", ""),
        ("import torch_xla._internal.x", "torch_xla._internal.x", "; use torch_xla.runtime"),
        ("torch_xla.eager_mode", "torch_xla.eager_mode", "; use torch_xla.experiment"),
        ("torch_xla._XLAC._x()", "torch_xla._XLAC._x", "; use the Python"),
        ("torch_xla.runtime.use_spmd", "torch_xla.runtime.use_spmd", "; use one"),
    ):
        with pytest.raises((ImportError, AttributeError)) as raised:
            exec(statement, {"torch_xla": torch_xla})
        assert f"{name} is not part of the simulated runtime{instead}" in str(raised.value)


def test_torch_xla_is_not_there_without_a_launcher(run_python: Callable[..., Any]) -> None:
    run = run_python("-c", "import torch, neurontools.runtime\nimport torch_xla")
    assert run.returncode == 1
    assert "ModuleNotFoundError: No module named 'torch_xla'" in run.stderr


@pytest.mark.slow
def test_a_real_torch_xla_wins_unless_ours_is_forced(run_script: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "torch_xla.py").write_text("print('the real one')")
    assert run_script("import torch_xla").stdout == "the real one\n"
    assert run_script("import torch_xla", NEURONTOOLS_FORCE_TORCH_XLA="1").stdout == ""


def test_the_distribution_is_found_in_every_spelling(xm: Any) -> None:
    import torch_xla

    for name in ("torch_xla", "torch-xla", "Torch.XLA"):
        assert importlib.metadata.version(name) == torch_xla.__version__
    assert importlib.metadata.packages_distributions()["torch_neuronx"] == ["torch_neuronx"]


def test_the_number_of_the_random_state_tells_what_comes(xm: Any) -> None:
    xm.set_rng_state(42)
    assert xm.get_rng_state() == 42
    torch.rand(3, device="xla").tolist()
    number = xm.get_rng_state()
    assert number not in (42, xm.set_rng_state(7))
    xm.set_rng_state(number)
    assert xm.get_rng_state() == number
    drawn = torch.rand(3, device="xla").tolist()
    xm.set_rng_state(number)
    first = torch.rand(1, device="xla").tolist()
    with xm.fork_rng():
        torch.rand(5, device="xla").tolist()
    assert first + torch.rand(2, device="xla").tolist() == drawn


def test_closures_run_after_the_step_or_beside_the_next_ones_with_which_their_errors_come(xm: Any) -> None:
    import torch_xla

    may_go_on, seen = threading.Event(), list[float]()
    total = torch.ones(3, device="xla").sum()
    xm.add_step_closure(lambda value: seen.append(value.item() + 1), args=(total,))
    assert seen == []
    torch_xla.sync()
    assert seen == [4.0]
    xm.mark_step()
    assert seen == [4.0]
    seen.clear()

    def closure(total: torch.Tensor) -> None:
        may_go_on.wait()
        seen.append(total.item())
        raise ValueError("of the closure")

    xm.add_step_closure(closure, (total,), run_async=True)
    xm.mark_step()
    assert seen == []
    may_go_on.set()

    def steps_until_it_raises() -> None:
        while True:
            xm.mark_step()

    with pytest.raises(ValueError, match="of the closure"):
        steps_until_it_raises()
    assert seen == [3.0]


LEAVING = """
import sys, threading, torch, torch_xla.core.xla_model as xm, torch_xla.distributed.parallel_loader as pl
device = xm.xla_device()
began = threading.Event()
def closure(total):
    began.wait()
    print("closure", total.item())
def batches():
    while True: yield torch.ones(64, 64), torch.zeros(64)
def loaders(): return [thread for thread in threading.enumerate() if thread.name == "ParallelLoader"]
for value, target in pl.MpDeviceLoader(batches(), device): break
assert loaders() == [], "a loader that was left still loads"
for value, target in pl.MpDeviceLoader(batches(), device):
    if sys.argv[1] == "exit": sys.exit(3)
    if sys.argv[1] == "raise": raise ValueError
    break
kept = iter(pl.MpDeviceLoader(batches(), device)); next(kept)
assert loaders()
xm.add_step_closure(closure, (torch.ones(3, device="xla").sum(),), run_async=True)
xm.mark_step()
print("end of the script")
began.set()
"""


@pytest.mark.parametrize(
    ("how", "exit_code", "output"), [("exit", 3, ""), ("raise", 1, ""), ("keep", 0, "end of the script\nclosure 3.0\n")]
)
def test_a_script_that_leaves_its_loader_ends_well_and_after_its_closures(
    run_script: Callable[..., Any], how: str, exit_code: int, output: str
) -> None:
    """The interpreter must not end while the loader's thread is in torch's C++: that aborts the process."""
    run = run_script(LEAVING, how, exit_code=exit_code, **{WHOLE_END: "1"})
    assert run.stdout == output
    assert "terminate" not in run.stderr


def test_names_of_samples(xm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import libneuronxla
    import torch_xla.core.functions as xf
    import torch_xla.debug.profiler as xp
    from torch_xla._internal import neuron_utils
    from torch_xla.experimental import eager

    whole, synchronized, reference = torch.rand(8, 5, 7), xf.SyncBatchNorm(5).to("xla"), nn.BatchNorm1d(5)
    for _ in range(2):
        got, want = synchronized(whole.to("xla")), reference(whole)
        torch.testing.assert_close(got.cpu(), want)
    torch.testing.assert_close(synchronized.running_var.cpu(), reference.running_var)
    synchronized.eval(), reference.eval()
    torch.testing.assert_close(synchronized(whole.to("xla")).cpu(), reference(whole))
    with pytest.raises(ValueError, match=r"SyncBatchNorm\(5\) got \[2, 3\]"):
        synchronized(torch.ones(2, 3, device="xla"))
    with eager.eager_mode_context(True) as before:
        assert (before, eager.is_eager_mode()) == (False, True)
    assert not eager.is_eager_mode()
    with xp.Trace("outer"), xp.Trace("inner"), xp.StepTrace("step", step_num=1):
        doubled = torch.ones(2, device="xla") * 2
    assert doubled.tolist() == [2.0, 2.0]
    packed, lstm = nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(2, 2)]), nn.LSTM(2, 3)
    expected = lstm(packed)[0].data
    [moved] = xm.send_cpu_data_to_device([packed], "xla")
    assert torch.equal(lstm.to("xla")(moved)[0].data.cpu(), expected)
    first = libneuronxla.register_hlo_snapshot_callback(lambda *_: "outputs")
    assert first("graph", 0, 2) == "inputs"
    assert libneuronxla.register_hlo_snapshot_callback(first)("graph", 0, 2) == "outputs"
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "1,3,5-8")
    assert neuron_utils.get_visible_cores_list() == [1, 3, 5, 6, 7, 8]
    for wrong in ("1-3,5-8,3-5", "5-8-5", "a", "4-2"):
        monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", wrong)
        with pytest.raises(ValueError, match="NEURON_RT_VISIBLE_CORES"):
            neuron_utils.get_visible_cores_list()
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "4-6")
    with pytest.raises(ValueError, match="names 3 cores for local rank 0 of 2"):
        neuron_utils.remap_visible_cores(0, 2)
    neuron_utils.remap_visible_cores(2, 3)
    assert os.environ["NEURON_RT_VISIBLE_CORES"] == "6"


def test_sending_to_the_device_makes_a_list_of_a_single_tensor(xm: Any) -> None:
    [moved] = xm.send_cpu_data_to_device(torch.ones(2), xm.xla_device())
    assert moved.device.type == "xla"
    first, named = xm.send_cpu_data_to_device([torch.ones(1), {"x": torch.zeros(1)}], xm.xla_device())
    assert (first.device.type, named["x"].device.type) == ("xla", "xla")
    on_it = torch.ones(1, device="xla")
    assert xm.send_cpu_data_to_device([on_it], xm.xla_device())[0] is on_it


def test_a_state_is_saved_from_the_cpu_also_a_tensor_a_file(xm: Any, tmp_path: Path) -> None:
    import torch_xla.utils.serialization as xser

    xm.save({"weight": torch.ones(2, device="xla"), "step": 3}, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt")
    assert (loaded["weight"].device.type, loaded["step"]) == ("cpu", 3)
    state = {"weights": [torch.arange(3.0).to("xla"), torch.ones(2, 2)], "step": 7}
    xser.save(state, tmp_path / "state")
    xser.save(state, tmp_path / "state")
    assert len(list((tmp_path / "state.tensors").iterdir())) == 2
    loaded = xser.load(tmp_path / "state")
    assert loaded["step"] == 7
    assert [tensor.tolist() for tensor in loaded["weights"]] == [[0.0, 1.0, 2.0], [[1.0, 1.0], [1.0, 1.0]]]
    assert {tensor.device.type for tensor in loaded["weights"]} == {"cpu"}


def test_eager_mode_executes_each_operator_and_a_compiled_function_is_one_graph(xm: Any) -> None:
    import torch_xla
    import torch_xla.experimental
    import torch_xla.runtime as xr

    def work(value: torch.Tensor) -> torch.Tensor:
        return (value * 3 + 1).exp()

    def executions(function: Callable[[torch.Tensor], torch.Tensor]) -> int:
        before = metrics.counters.get("ExecuteComputation", 0)
        function(torch.ones(2, device="xla"))
        return metrics.counters.get("ExecuteComputation", 0) - before

    torch_xla.experimental.eager_mode(True)
    try:
        assert torch_xla.experimental.is_eager_mode()
        assert executions(work) >= 3
        one, many = executions(torch_xla.compile(work)), executions(work)
        assert one < many
    finally:
        torch_xla.experimental.eager_mode(False)
    assert executions(work) == 0
    assert xr.get_num_cached_compilation_graph() > 0
    xr.set_device_type("NEURON")
    with pytest.raises(RuntimeError, match="simulated NeuronCores"):
        xr.set_device_type("TPU")


def test_a_scan_is_the_loop(xm: Any) -> None:
    from torch_xla.experimental.scan import scan, value_and_grad_partitioned
    from torch_xla.experimental.scan_layers import scan_layers

    values = torch.arange(4.0).to("xla").requires_grad_()
    carry, sums = scan(lambda total, value: (total + value, total * 2), torch.zeros((), device="xla"), values)
    (carry * 5).backward()
    assert (carry.item(), sums.tolist()) == (6.0, [0.0, 0.0, 2.0, 6.0])
    assert values.grad is not None
    assert values.grad.tolist() == [5.0] * 4
    for wrong, problem in ((torch.ones(0), "no elements"), ((torch.ones(2), torch.ones(3)), r"lengths \[2, 3\]")):
        with pytest.raises(ValueError, match=problem):
            scan(lambda total, value: (total, None), torch.zeros(()), wrong)

    def step(total: Any, value: Any) -> tuple[Any, Any]:
        new = {"a": (total["a"] @ value).sin()}
        return new, (new["a"] * 2, None)

    carry, xs = ({"a": torch.rand(2, 2)}, torch.rand(3, 2, 2, requires_grad=True))
    on_device = {"a": carry["a"].to("xla")}, xs.detach().to("xla").requires_grad_()
    forward, backward = value_and_grad_partitioned(step, *on_device)
    new, ((doubled, nothing), activations) = forward(on_device[0], on_device[1][1])
    own = {"a": carry["a"].clone().requires_grad_()}
    expected, (twice, _) = step(own, xs[1])
    torch.testing.assert_close((new["a"].cpu(), doubled.cpu(), nothing), (expected["a"], twice, None))
    (expected["a"].sum() + twice.sum()).backward()
    grads, of_x = backward({"a": torch.ones_like(new["a"])}, ((torch.ones_like(doubled), None), activations))
    assert xs.grad is not None
    torch.testing.assert_close((grads["a"].cpu(), of_x.cpu()), (own["a"].grad, xs.grad[1]))
    layers = [torch.nn.Linear(2, 2).to("xla") for _ in range(2)]
    given = torch.ones(1, 2, device="xla")
    assert torch.equal(scan_layers(layers, given).cpu(), layers[1](layers[0](given)).cpu())


def test_updates_are_printed_as_the_examples_do(xm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from torch_xla.test import test_utils

    tracker = xm.RateTracker()
    tracker.add(10)
    assert tracker.rate() > 0 < tracker.global_rate()
    test_utils.print_training_update(xm.xla_device(), 3, 0.5, 10.0, 20.0, epoch=1)
    test_utils.print_test_update(xm.xla_device(), 99.5, epoch=1)
    test_utils.close_summary_writer(test_utils.get_summary_writer(None))
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("| Training Device=xla:0/0 Epoch=1 Step=3 Loss=0.50000 Rate=10.00 GlobalRate=20.00 Time=")
    assert second.startswith("| Test Device=xla:0/0 Epoch=1 Accuracy=99.50 Time=")
