"""The modules that scripts import as torch_xla."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.harness.loaded_interpreter import WHOLE_END


@pytest.fixture
def xm(xla: Any) -> Any:
    import torch_xla.core.xla_model as module

    return module


def test_devices_of_a_single_process(xm: Any) -> None:
    import torch_xla
    import torch_xla.runtime as xr

    assert xm.xla_device() == torch_xla.device() == torch.device("xla:0")
    assert xm.xla_device_hw(xm.xla_device()) == "NEURON"
    assert (xm.xrt_world_size(), xm.get_ordinal(), xm.get_local_ordinal()) == (1, 0, 0)
    assert xm.is_master_ordinal()
    assert torch_xla.device_count() == xr.addressable_device_count() == 2


def test_closures_run_after_the_step_with_values(xm: Any) -> None:
    seen: list[float] = []
    total = torch.ones(3, device="xla").sum()
    xm.add_step_closure(lambda value: seen.append(value.item()), args=(total,))
    assert seen == []
    xm.mark_step()
    xm.mark_step()
    assert seen == [3.0]


def test_collectives_of_one_rank_are_the_identity(xm: Any) -> None:
    value = torch.arange(4.0).to("xla")
    assert xm.all_reduce(xm.REDUCE_SUM, value, scale=0.5).tolist() == [0.0, 0.5, 1.0, 1.5]
    assert xm.all_gather(value).tolist() == value.tolist()
    assert xm.reduce_scatter(xm.REDUCE_SUM, value, 1.0, 0, 1).tolist() == value.tolist()
    assert xm.all_to_all(value, 0, 0, 1).tolist() == value.tolist()
    assert xm.rendezvous("x", b"payload") == [b"payload"]
    assert xm.mesh_reduce("x", 3, sum) == 3


def test_save_writes_cpu_tensors(xm: Any, tmp_path: Path) -> None:
    xm.save({"weight": torch.ones(2, device="xla"), "step": 3}, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt")
    assert loaded["weight"].device.type == "cpu"
    assert loaded["step"] == 3


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.full((4, 2), float(i)), torch.arange(4)) for i in range(count)]


@pytest.mark.parametrize(("per_execution", "marks"), [(1, 13), (5, 3), (100, 1)])
def test_the_loader_marks_steps(xm: Any, per_execution: int, marks: int) -> None:
    import torch_xla.distributed.parallel_loader as pl

    from neurontools.runtime.counting.metrics import metrics

    before = metrics.counters.get("MarkStep", 0)
    loader = pl.MpDeviceLoader(batches(11), xm.xla_device(), batches_per_execution=per_execution)
    assert len(loader) == 11
    means = [value.mean() for value, target in loader if target.device.type == "xla"]
    assert [mean.item() for mean in means] == [float(i) for i in range(11)]
    assert metrics.counters["MarkStep"] - before == marks


def test_the_loader_hands_on_errors_and_can_be_left_early(xm: Any) -> None:
    import torch_xla.distributed.parallel_loader as pl

    def broken() -> Any:
        yield torch.ones(1)
        raise ValueError("bad sample")

    with pytest.raises(ValueError, match="bad sample"):
        list(pl.MpDeviceLoader(broken(), xm.xla_device()))
    for value in pl.MpDeviceLoader(batches(100), xm.xla_device()):
        assert value[0].device.type == "xla"
        break


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


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("import torch_xla; torch_xla.nothing", "torch_xla.nothing is not part of the simulated runtime"),
        (
            "import torch_xla; torch_xla._XLAC._x()",
            "torch_xla._XLAC._x is not part of the simulated runtime; use the Python",
        ),
        ("import torch_xla.nothing", "torch_xla.nothing is not part of the simulated runtime"),
    ],
)
def test_what_is_missing_is_named(xm: Any, statement: str, error: str) -> None:
    with pytest.raises((ImportError, AttributeError)) as raised:
        exec(statement, {})
    assert error in str(raised.value)


@pytest.mark.parametrize("use", ["(0)", ".create()", "[0]", ".a.b"])
@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        ("torch_xla.distributed.spmd", "Mesh", "use one process a NeuronCore"),
        ("torch_xla.stablehlo", "exported_program_to_stablehlo", "use torch.export on the CPU"),
        ("neuronx_distributed.pipeline", "NxDPPModel", "use tensor and data parallelism"),
    ],
)
def test_what_is_missing_says_so_when_it_is_used_and_not_when_it_is_imported(
    xm: Any, module: str, name: str, instead: str, use: str
) -> None:
    space: dict[str, Any] = {}
    exec(f"from {module} import {name}; import {module} as found", space)
    with pytest.raises(NotImplementedError) as raised:
        exec(f"{name}{use}", space)
    assert str(raised.value) == f"{module}.{name} is not part of the simulated runtime; {instead}" + (
        " (torchrun) with xm.all_reduce" if "process" in instead else ""
    )
    with pytest.raises(NotImplementedError):
        exec(f"class Own({name}): pass", space)
    assert not isinstance(0, space[name])
    assert not hasattr(space["found"], "__wrapped__")


def test_torch_xla_is_not_there_without_a_launcher(run_python: Callable[..., Any]) -> None:
    run = run_python("-c", "import torch, neurontools.runtime\nimport torch_xla")
    assert run.returncode == 1
    assert "ModuleNotFoundError: No module named 'torch_xla'" in run.stderr


def test_a_real_torch_xla_wins_unless_ours_is_forced(run_python: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "torch_xla.py").write_text("print('the real one')")
    (tmp_path / "script.py").write_text("import torch_xla")
    assert run_python("-m", "neurontools.runtime", "script.py").stdout == "the real one\n"
    assert run_python("-m", "neurontools.runtime", "script.py", NEURONTOOLS_FORCE_TORCH_XLA="1").stdout == ""


def test_the_distribution_is_found_in_every_spelling(xm: Any) -> None:
    import importlib.metadata

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
    assert torch.rand(3, device="xla").tolist() == drawn


def test_forked_random_numbers_leave_the_others_alone(xm: Any) -> None:
    xm.set_rng_state(1)
    expected = torch.rand(4, device="xla").tolist()
    xm.set_rng_state(1)
    drawn = torch.rand(2, device="xla").tolist()
    with xm.fork_rng():
        torch.rand(5, device="xla").tolist()
    assert drawn + torch.rand(2, device="xla").tolist() == expected


def test_asynchronous_closures_do_not_hold_the_step_up_and_their_errors_come_with_the_next(xm: Any) -> None:
    may_go_on, seen = threading.Event(), []

    def closure(total: torch.Tensor) -> None:
        may_go_on.wait()
        seen.append(total.item())
        raise ValueError("of the closure")

    xm.add_step_closure(closure, (torch.ones(3, device="xla").sum(),), run_async=True)
    xm.mark_step()
    assert seen == []
    may_go_on.set()

    def steps_until_it_raises() -> None:
        while True:
            xm.mark_step()

    with pytest.raises(ValueError, match="of the closure"):
        steps_until_it_raises()
    assert seen == [3.0]


AT_THE_END = """
import threading, torch, torch_xla.core.xla_model as xm
began = threading.Event()
def closure(total):
    began.wait()
    print("closure", total.item())
xm.add_step_closure(closure, (torch.ones(3, device="xla").sum(),), run_async=True)
xm.mark_step()
print("end of the script")
began.set()
"""


def test_asynchronous_closures_are_called_before_the_process_ends(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(AT_THE_END)
    run = run_python("-m", "neurontools.runtime", "script.py", **{WHOLE_END: "1"})
    assert run.returncode == 0, run.stderr
    assert run.stdout.split("\n") == ["end of the script", "closure 3.0", ""]


def test_sending_to_the_device_makes_a_list_of_a_single_tensor(xm: Any) -> None:
    [moved] = xm.send_cpu_data_to_device(torch.ones(2), xm.xla_device())
    assert moved.device.type == "xla"
    first, named = xm.send_cpu_data_to_device([torch.ones(1), {"x": torch.zeros(1)}], xm.xla_device())
    assert (first.device.type, named["x"].device.type) == ("xla", "xla")
    on_it = torch.ones(1, device="xla")
    assert xm.send_cpu_data_to_device([on_it], xm.xla_device())[0] is on_it


def test_a_state_saved_a_tensor_a_file_comes_back(xm: Any, tmp_path: Path) -> None:
    import torch_xla.utils.serialization as xser

    state = {"weights": [torch.arange(3.0).to("xla"), torch.ones(2, 2)], "step": 7}
    xser.save(state, tmp_path / "state")
    xser.save(state, tmp_path / "state")
    assert len(list((tmp_path / "state.tensors").iterdir())) == 2
    loaded = xser.load(tmp_path / "state")
    assert loaded["step"] == 7
    assert [tensor.tolist() for tensor in loaded["weights"]] == [[0.0, 1.0, 2.0], [[1.0, 1.0], [1.0, 1.0]]]
    assert {tensor.device.type for tensor in loaded["weights"]} == {"cpu"}


def test_checkpointing_computes_again_with_the_gradients_of_the_cpu(xm: Any) -> None:
    from torch_xla.utils.checkpoint import checkpoint

    gradients = []
    for where in ("cpu", "xla"):
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 4).to(where)
        calls: list[int] = []

        def inner(value: torch.Tensor, layer: torch.nn.Linear = layer, calls: list[int] = calls) -> torch.Tensor:
            calls.append(1)
            result: torch.Tensor = layer(value).tanh()
            return result

        checkpoint(inner, torch.ones(2, 4, device=where, requires_grad=True)).sum().backward()
        assert calls == [1, 1]
        assert layer.weight.grad is not None
        gradients.append(layer.weight.grad.cpu())
    assert torch.equal(*gradients)


def test_eager_mode_executes_each_operator_and_a_compiled_function_is_one_graph(xm: Any) -> None:
    import torch_xla
    import torch_xla.experimental
    import torch_xla.runtime as xr

    from neurontools.runtime.counting.metrics import metrics

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
