"""The modules that scripts import as torch_xla, and stock torch with a device without C++ allocator and streams."""

from __future__ import annotations

import copy
import importlib.metadata
import io
import os
import pickle
import pkgutil
import subprocess
import threading
import weakref
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

    (torch.ones(3).to("xla") + 1).nonzero()
    assert "ExecuteTime" in met.metric_names()
    count, total, _ = met.metric_data("ExecuteTime")
    assert count > 0 < total
    assert "aten::nonzero" in met.executed_fallback_ops()
    assert "Counter: aten::nonzero" in met.metrics_report()
    assert "Metric: ExecuteTime" in met.short_metrics_report()


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
    from torch_xla.experimental.scan import scan
    from torch_xla.experimental.scan_layers import scan_layers

    values = torch.arange(4.0).to("xla").requires_grad_()
    carry, sums = scan(lambda total, value: (total + value, total * 2), torch.zeros((), device="xla"), values)
    (carry * 5).backward()
    assert (carry.item(), sums.tolist()) == (6.0, [0.0, 0.0, 2.0, 6.0])
    assert values.grad is not None
    assert values.grad.tolist() == [5.0] * 4
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


Run = Callable[..., "subprocess.CompletedProcess[str]"]
VALUES = [1.0, 2.0, 3.0]


@pytest.fixture
def value(xla: Any) -> torch.Tensor:
    return torch.tensor(VALUES).to("xla")


def test_saving_loading_and_copying(value: torch.Tensor, tmp_path: Path) -> None:
    path = tmp_path / "saved.pt"
    torch.save({"device": value, "host": torch.tensor(VALUES), "view": value[1:]}, path)
    for where in (None, "cpu", "xla", "xla:1", torch.device("xla", 0), {"cpu": "xla"}):
        loaded = torch.load(path, map_location=where)
        kinds = {"cpu"} if where == "cpu" else {"xla", "cpu"} if where is None else {"xla"}
        assert {t.device.type for t in loaded.values()} == kinds
        assert loaded["view"].tolist() == VALUES[1:]
        assert loaded["host"].tolist() == loaded["device"].tolist() == VALUES
    copied = copy.deepcopy(value)
    copied.add_(1)
    assert value.tolist() == VALUES
    assert pickle.loads(pickle.dumps(copied)).device.type == "xla"


def through_a_file(tensors: Any) -> Any:
    file = io.BytesIO()
    torch.save(tensors, file)
    file.seek(0)
    return torch.load(file)


def layouts_and_views(where: str, duplicate: Callable[[Any], Any]) -> list[Any]:
    """Copies tensors, changes two of the copies, and returns the layouts and values of all copies."""
    base = torch.arange(24.0).to(where)
    empty = torch.empty(0, 3).to(where)
    given = [base, base[2:8], base.view(4, 6)[:, ::2], base.view(2, 3, 4).permute(2, 0, 1), base[:4, None].expand(4, 3)]
    copied = duplicate([*given, empty])
    copied[0].mul_(2)
    copied[2][0] += 1
    assert base[1] == 1.0
    return [(t.stride(), t.storage_offset(), t.tolist()) for t in copied]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, through_a_file])
def test_copies_have_the_strides_and_the_shared_storages_of_the_cpu(xla: Any, duplicate: Callable[[Any], Any]) -> None:
    assert layouts_and_views("xla", duplicate) == layouts_and_views("cpu", duplicate)


def resized(where: str) -> list[Any]:
    whole = torch.arange(8.0).to(where)
    seen = []
    for view, size in ((whole.detach(), (2, 4)), (whole[4:], (1, 2)), (whole.view(2, 4).t(), (8,)), (whole[1:], (0,))):
        view.resize_(size)
        whole.add_(10)
        seen.append((view.tolist(), view.stride(), view.storage_offset()))
    grown = torch.arange(4.0).to(where)[1:].clone().resize_(2, 3)
    image = torch.zeros(1, 2, 3, 4).to(where).resize_(1, 2, 2, 2, memory_format=torch.channels_last)
    out = torch.empty(0).to(where)
    torch.add(whole, 1, out=out)
    return [*seen, grown.flatten()[:3].tolist(), grown.stride(), image.stride(), out.tolist(), whole.tolist()]


def test_a_resized_tensor_shares_its_storage_or_says_that_it_can_not(xla: Any) -> None:
    assert resized("xla") == resized("cpu")
    whole = torch.zeros(4).to("xla")
    view = whole.detach()
    with pytest.raises(NotImplementedError, match=r"needs 8 bytes more than the storage .* other tensors share"):
        view.resize_(3, 2)
    assert view.shape == (4,)


def test_the_old_format_is_refused_and_not_read_wrong(value: torch.Tensor) -> None:
    file = io.BytesIO()
    with pytest.raises(NotImplementedError, match="the old format can't hold tensors of xla; save CPU tensors"):
        torch.save(value, file, _use_new_zipfile_serialization=False)
    file = io.BytesIO()
    torch.save(value.cpu(), file, _use_new_zipfile_serialization=False)
    file.seek(0)
    assert torch.load(file, map_location="xla").tolist() == VALUES


def test_storages(value: torch.Tensor) -> None:
    storage: Any = value.untyped_storage()  # torch's stub of `to` wants a keyword
    assert storage.clone().tolist() == storage.cpu().tolist() == storage.tolist()
    assert storage.new().nbytes() == 0
    assert torch.UntypedStorage(8, device="xla").nbytes() == 8
    assert storage.to("cpu").nbytes() == value.nbytes
    assert copy.deepcopy(storage).device.type == "xla"
    assert torch.UntypedStorage(4).to(device="xla").device.type == "xla"
    for refused in (
        lambda: storage.resize_(4),
        lambda: storage.resize_(16),
        lambda: storage.byteswap(torch.float32),
        lambda: storage.share_memory_(),
        lambda: value.share_memory_(),
        lambda: nn.Linear(2, 2).to("xla").share_memory(),
    ):
        with pytest.raises(NotImplementedError, match="xla"):
            refused()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda v: v.to_sparse(), "torch.sparse_coo tensors are not supported on this device; use dense ones"),
        (lambda v: v.view(1, 3).to_sparse_csr(), "torch.sparse_csr tensors are not supported"),
        (lambda v: v.to_mkldnn(), "torch._mkldnn tensors are not supported"),
        (lambda v: torch.quantize_per_tensor(v, 0.1, 0, torch.qint8), "quantized tensors are not supported"),
        (
            lambda v: torch.nested.nested_tensor([v, v[1:]]) * 2,
            "nested tensors are supported on xla with layout=torch.jagged",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR tensor support")
def test_other_layouts_are_refused(value: torch.Tensor, make: Callable[[torch.Tensor], Any], text: str) -> None:
    with pytest.raises(NotImplementedError, match=text):
        make(value)


def test_more_than_the_core_has_is_refused_before_the_host_tries(xla: Any) -> None:
    for make in (
        lambda: torch.empty(1 << 45, device="xla"),
        lambda: torch.empty_strided((2, 2), (1 << 45, 1), device="xla"),
    ):
        with pytest.raises(torch.OutOfMemoryError, match=r"Failed to allocate .* \(usage: tensors\) on ND 0:NC 0"):
            make()  # type: ignore[no-untyped-call]


def test_the_accelerator(value: torch.Tensor) -> None:
    accelerator = torch.accelerator
    assert str(accelerator.current_accelerator()) == "xla"
    pending = value * 2
    accelerator.synchronize()
    assert pending.tolist() == [2.0, 4.0, 6.0]
    accelerator.empty_cache()
    assert accelerator.memory_allocated() >= value.nbytes
    assert accelerator.max_memory_allocated() >= accelerator.memory_allocated()
    free, total = accelerator.get_memory_info()
    assert 0 < free < total
    assert accelerator.memory_stats()["reserved_bytes.all.current"] == total - free
    assert torch.float32 in accelerator.get_device_capability()["supported_dtypes"]
    accelerator.set_device_index(0)
    with pytest.raises(RuntimeError, match="NeuronCore"):
        accelerator.set_device_index(9)


def test_the_device_module(value: torch.Tensor) -> None:
    module: Any = torch.get_device_module("xla")
    begin, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    begin.record()
    with module.stream(module.Stream()), module.device(0), module.device_of(value):
        doubled = value * 2
    end.record()
    assert begin.elapsed_time(end) == -end.elapsed_time(begin) > 0
    untimed = module.Event()
    untimed.record()
    with pytest.raises(RuntimeError, match="enable_timing=True"):
        begin.elapsed_time(untimed)
    assert module.current_stream().query()
    model = nn.Linear(3, 2).to("xla")
    assert torch.equal(nn.DataParallel(model)(value), model(value)), "it runs on one core"
    assert doubled.tolist() == [2.0, 4.0, 6.0]
    states = module.get_rng_state_all()
    drawn = torch.randn(3, device="xla")
    module.set_rng_state_all(states)
    assert torch.equal(torch.randn(3, device="xla"), drawn)
    assert module.get_device_properties(0).total_memory == module.mem_get_info()[1]
    with pytest.raises(AttributeError, match=r"torch\.xla\.graphs is not part of the simulated device"):
        _ = module.graphs


def test_generators_of_the_device(xla: Any) -> None:
    generator = torch.Generator("xla").manual_seed(4)
    assert str(generator.device) == "xla:0"
    assert isinstance(generator, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    drawn = torch.randn(3, generator=generator, device="xla")
    assert torch.equal(drawn.cpu(), torch.randn(3, generator=torch.Generator().manual_seed(4)))
    assert str(torch.Generator().device) == "cpu"


QUEUE = """
import os, sys, torch, torch.multiprocessing as mp
from neurontools.runtime.launch.install import install_runtime
D = os.environ["NEURONTOOLS_DEVICE"]

def work(given, back):
    tensor = given.get()
    back.put((str(tensor.device), tensor.requires_grad, tensor.tolist()))

class OnDevice(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return torch.full((2,), float(index), device=D)

if __name__ == "__main__":
    install_runtime()
    for method in sys.argv[1:]:
        context = mp.get_context(method)
        given, back = context.Queue(), context.Queue()
        process = context.Process(target=work, args=(given, back), daemon=True)
        process.start()
        given.put(torch.nn.Parameter(torch.ones(2, device=D)))
        print(back.get())
        process.join()
    loader = torch.utils.data.DataLoader(OnDevice(), batch_size=2, num_workers=1)
    print([batch.tolist() for batch in loader])
"""


@pytest.mark.parametrize(
    ("name", "methods"), [("xla", ["fork"]), pytest.param("neuron", ["fork", "spawn"], marks=pytest.mark.slow)]
)
def test_device_tensors_go_through_queues_as_copies(
    run_python: Run, tmp_path: Path, name: str, methods: list[str]
) -> None:
    (tmp_path / "queue_script.py").write_text(QUEUE)
    run = run_python("queue_script.py", *methods, NEURONTOOLS_DEVICE=name)
    assert run.stdout.splitlines() == [
        *[f"('{name}:0', True, [1.0, 1.0])"] * len(methods),
        "[[[0.0, 0.0], [1.0, 1.0]], [[2.0, 2.0], [3.0, 3.0]]]",
    ], run.stderr


def test_a_moved_parameter_keeps_who_refers_to_it_and_what_was_noted_at_it(xla: Any) -> None:
    layer: Any = torch.nn.Linear(3, 3)
    parameter = layer.weight
    seen, parameter.noted = weakref.ref(parameter), "here"
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    layer.to("xla")
    assert layer.weight is parameter is seen()
    assert (parameter.device.type, parameter.noted) == ("xla", "here")
    layer(torch.ones(1, 3, device="xla")).sum().backward()
    before = parameter.detach().cpu()
    optimizer.step()
    layer.load_state_dict(layer.state_dict())
    layer.cpu()
    assert torch.equal(parameter.detach(), before - 1)
    assert (layer.weight is parameter, parameter.noted) == (True, "here")


def test_a_module_moves_while_an_output_of_it_is_alive_and_the_old_graph_says_so(xla: Any) -> None:
    layer = torch.nn.LSTM(3, 4)
    output, _ = layer(torch.ones(2, 1, 3))
    layer.to("xla")
    again, _ = layer(torch.ones(2, 1, 3, device="xla"))
    assert torch.equal(again.cpu(), output)
    with pytest.raises(RuntimeError, match="moved or converted since forward"):
        output.sum().backward()
    layer.cpu()
    with pytest.raises(RuntimeError, match="moved or converted since forward"):
        again.sum().backward()
    layer(torch.ones(2, 1, 3))[0].sum().backward()
    assert layer.weight_ih_l0.grad is not None


@pytest.mark.parametrize("name", ["max", "min", "median", "mode", "nanmedian"])
def test_what_needs_an_element_and_gets_none_raises_at_its_own_call(xla: Any, name: str) -> None:
    others = torch.ones(3, device="xla") * 2
    nothing = torch.empty(0, 3).to("xla")
    with pytest.raises(IndexError, match="non-zero size"):
        getattr(torch, name)(nothing, 0)
    assert nothing.sum(0).tolist() == [0.0, 0.0, 0.0]
    assert others.tolist() == [2.0, 2.0, 2.0]
