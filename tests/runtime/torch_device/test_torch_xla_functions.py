"""Functions of torch_xla, neuronx_distributed and neuronperf that need one process: results, defaults and refusals."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from neurontools.runtime.counting.metrics import metrics


@pytest.fixture(autouse=True)
def in_one_process(xla: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "NEURONCORE_NUM_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def module(name: str) -> Any:
    return importlib.import_module(name)


def test_adamw_in_float32_is_torchs() -> None:
    optimizer = module("neuronx_distributed.utils.adamw_fp32_optim_params").AdamW_FP32OptimParams
    options: dict[str, Any] = {"lr": 0.1, "betas": (0.8, 0.95), "eps": 0.01, "weight_decay": 0.3}
    for dtype in (torch.float32, torch.bfloat16):
        start = torch.linspace(-1, 1, 6).to(dtype)
        whole = start.float().clone().requires_grad_()
        mine = start.to("xla").requires_grad_()
        without_gradient = torch.ones(1, device="xla", requires_grad=True)
        theirs, ours = torch.optim.AdamW([whole], **options), optimizer([without_gradient, mine], **options)
        for step in range(3):
            mine.grad = torch.sin(start.float() * 3 + step).to(dtype).to("xla")
            whole.grad = mine.grad.cpu().float()
            theirs.step()
            assert ours.step(lambda: torch.is_grad_enabled()) is True
        torch.testing.assert_close(ours.state[mine].get("fp32_param", mine).detach().cpu(), whole.detach())
        torch.testing.assert_close(mine.detach().cpu(), whole.detach().to(dtype))
        assert {tensor.device.type for tensor in ours.state[mine].values()} == {"xla"}
        assert without_gradient.item() == 1.0
    assert ours.step() is None


def test_places_come_from_the_variables_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    xr, xmp, torch_xla = (module(f"torch_xla{name}") for name in (".runtime", ".distributed.xla_multiprocessing", ""))

    def places() -> tuple[Any, ...]:
        found = xr.local_ordinal(), xr.local_process_count(), xr.host_index(), xr.get_master_ip(), xmp.process_count()
        return (*found, module("torch_xla._internal.tpu").num_available_devices())

    calls: list[tuple[Any, ...]] = []
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "NEURONCORE_NUM_DEVICES")
    assert places() == (0, 1, 0, "127.0.0.1", 1, 1)
    xmp.spawn(lambda *given: calls.append(given))
    torch_xla.launch(lambda *given: calls.append(given), ("x",), debug_single_process=True)
    for name, value in zip(names, ("1", "2", "3", "10.0.0.1", "4"), strict=True):
        monkeypatch.setenv(name, value)
    assert places() == (1, 2, 3, "10.0.0.1", 4, 4)
    monkeypatch.setenv("RANK", "0")
    assert places() == (1, 2, 3, "10.0.0.1", 2, 2)
    torch_xla.launch(lambda *given: calls.append(given), ("y",))
    for name in names:
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("RANK", "")
    assert places() == (0, 1, 0, "", 1, 1)
    xmp.spawn(lambda *given: calls.append(given), ("z",))
    assert calls == [(0,), (0, "x"), (1, "y"), (0, "z")]
    assert xr.global_ordinal() == 0
    pjrt = module("torch_xla.experimental.pjrt")
    facts = (xr.device_type(), xr.using_pjrt(), xr.is_spmd(), xr.is_bf16_supported(), pjrt.device_type())
    assert facts == ("NEURON", True, False, True, "NEURON")
    for name in ("__path__", "nothing"):
        with pytest.raises(AttributeError, match=f"torch_xla.experimental.pjrt.{name} is not part"):
            getattr(pjrt, name)
    xr.initialize_cache("elsewhere")
    assert os.environ["NEURON_COMPILE_CACHE_URL"] == "elsewhere"


def test_devices_have_names() -> None:
    torch_xla, xm = module("torch_xla"), module("torch_xla.core.xla_model")
    numbers = [core.global_index for core in module("neurontools.runtime.tensors.device").device.cores]
    assert torch_xla.devices() == [torch.device("xla:0"), torch.device("xla:1")]
    assert torch_xla.real_devices() == xm.xla_real_devices() == [f"NEURON:{number}" for number in numbers]
    assert xm.xla_real_devices(["xla:1"]) == [f"NEURON:{numbers[1]}"]
    assert xm.get_xla_supported_devices() == ["xla:0", "xla:1"]
    assert xm.get_xla_supported_devices(max_devices=1) == ["xla:0"]
    assert (xm.xla_device_hw("cpu"), xm.xla_device(1)) == ("CPU", torch.device("xla:1"))
    on_it = torch.ones(1, device="xla")
    assert (xm.is_xla_tensor(on_it), xm.is_xla_tensor(torch.ones(1))) == (True, False)
    assert torch_xla._XLAC._xla_get_tensor_id(on_it) == on_it.untyped_storage().data_ptr()
    before = xm.get_memory_info()
    kept = torch.ones(1024, 1024, device="xla")
    xm.mark_step()
    after = xm.get_memory_info("xla:0")
    assert 0 <= after["bytes_used"] - before["bytes_used"] - kept.nbytes < 2**20  # with the graph
    assert after["kb_total"] == after["bytes_limit"] / 1024
    assert after["kb_free"] == (after["bytes_limit"] - after["bytes_used"]) // 1024
    assert after["peak_bytes_used"] >= after["bytes_used"]
    assert xm.get_memory_info("xla:1")["bytes_used"] < kept.nbytes


def executions(work: Callable[[], Any]) -> int:
    before = metrics.counters.get("ExecuteComputation", 0)
    work()
    return metrics.counters.get("ExecuteComputation", 0) - before


def test_pending_operators_are_executed_where_a_script_asks_for_it() -> None:
    torch_xla, xm = module("torch_xla"), module("torch_xla.core.xla_model")
    pending: list[torch.Tensor] = []

    def add() -> None:
        pending.append(torch.ones(3, device="xla") + 1)

    def step() -> None:
        add()
        with torch_xla.step():
            add()
        add()

    assert executions(add) == 0
    for work in (torch_xla.sync, add, xm.wait_device_ops, add, lambda: xm.unlazy([pending[-1]])):
        assert executions(work) == (0 if work is add else 1)
    assert executions(step) == 2
    assert executions(xm.mark_step) == 1
    assert all(tensor.tolist() == [2.0] * 3 for tensor in pending)


def test_seeds_of_one_and_of_all_devices() -> None:
    torch_xla, xm = module("torch_xla"), module("torch_xla.core.xla_model")
    torch_xla.manual_seed(5)
    assert [xm.get_rng_state(name) for name in ("xla:0", "xla:1")] == [5, 5]
    torch_xla.manual_seed(6, "xla:1")
    assert [xm.get_rng_state(name) for name in (None, "xla:1")] == [5, 6]
    with xm.fork_rng():
        torch.rand(1, device="xla").tolist()
    assert xm.get_rng_state() == 5
    with xm.fork_rng(enabled=False):
        torch.rand(1, device="xla").tolist()
    assert xm.get_rng_state() != 5


def test_collectives_of_one_process() -> None:
    xm, functions = module("torch_xla.core.xla_model"), module("torch_xla.core.functions")
    grads = module("neuronx_distributed.parallel_layers.grads")
    value = torch.arange(4.0, device="xla")
    one, several = torch.zeros(4, device="xla"), [torch.zeros(4, device="xla")]
    assert xm.all_gather(value, output=one) is one
    assert xm.reduce_scatter_bucketized(xm.REDUCE_SUM, [value], 2.0, 0, 1, output=several) is several
    assert (one.tolist(), several[0].tolist()) == ([0, 1, 2, 3], [0, 2, 4, 6])
    xm.all_reduce_bucketized_gradients([one], 0.5, None, True)
    xm.collective_broadcast([one])
    grads.bucket_allreduce_gradients([one])
    assert one.tolist() == [0.0, 0.5, 1.0, 1.5]
    assert xm.collective_permute(value, [[0, 0]]).tolist() == [0, 1, 2, 3]
    assert xm.collective_permute(value, []).tolist() == [0] * 4
    assert xm.do_on_ordinals(lambda x: x.device.type, (value,)) == "cpu"
    assert xm.do_on_ordinals(print, (value,), ordinals=(1,)) is None
    layer = nn.Linear(2, 2).to("xla")
    assert executions(lambda: xm.broadcast_master_param(layer)) <= 1
    source = torch.ones(2, 3, device="xla", requires_grad=True)
    (functions.all_reduce(xm.REDUCE_SUM, source, 3.0) * 2 + functions.all_gather(source, 1)).sum().backward()
    assert source.grad is not None
    assert source.grad.tolist() == [[7.0] * 3] * 2


def test_rates_are_smoothed(monkeypatch: pytest.MonkeyPatch) -> None:
    xm = module("torch_xla.core.xla_model")
    clock = SimpleNamespace(now=10.0)
    monkeypatch.setattr(xm, "time", SimpleNamespace(monotonic=lambda: clock.now))
    tracker = xm.RateTracker()
    tracker.add(100)
    assert (tracker.rate(), tracker.global_rate()) == (0.0, 0.0)
    clock.now = 12.0
    assert (tracker.rate(), tracker.global_rate()) == (50.0, 50.0)
    tracker.add(20)
    tracker.add(10)
    clock.now = 13.0
    assert tracker.rate() == pytest.approx(0.4 * 50 + 0.6 * 30)
    assert tracker.global_rate() == pytest.approx(130 / 3)


class Writer:
    """A summary writer of a script."""

    def __init__(self, directory: str = "") -> None:
        self.seen: list[Any] = [directory]

    def add_scalar(self, name: str, value: float, step: int | None) -> None:
        self.seen.append((name, value, step))

    def flush(self) -> None:
        self.seen.append("flush")

    def close(self) -> None:
        self.seen.append("close")


def test_progress_of_the_examples(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tests, met = module("torch_xla.test.test_utils"), module("torch_xla.debug.metrics")
    writer = Writer()
    tests.print_training_update("xla:0", 7, 0.123456, 10.126, 9.0, summary_writer=writer)
    tests.print_training_update("xla:0", 8, 1.0, 1.0, 2.0, epoch=3)
    tests.print_test_update("xla:0", 98.765, 3, 4)
    tests.print_test_update("xla:0", None)
    lines = [line.rpartition(" Time=")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "| Training Device=xla:0/0 Step=7 Loss=0.12346 Rate=10.13 GlobalRate=9.00",
        "| Training Device=xla:0/0 Epoch=3 Step=8 Loss=1.00000 Rate=1.00 GlobalRate=2.00",
        "| Test Device=xla:0/0 Step=4 Epoch=3 Accuracy=98.77",
        "| Test Device=xla:0/0",
    ]
    assert writer.seen == ["", ("examples/sec", 10.126, None), ("average_examples/sec", 9.0, None)]
    assert [len(part) for part in tests.now().split(":")] == [2, 2, 2]
    met.clear_counters()
    torch.ones(3, device="xla").nonzero()
    counted = {name: met.counter_value(name) for name in met.counter_names()}
    fallbacks = sum(value for name, value in counted.items() if name.startswith("aten::"))
    writer = Writer()
    tests.write_to_summary(writer, 5, {"loss": 2.0}, write_xla_metrics=True)
    expected = {"loss": 2.0, **counted, "aten_ops_sum": fallbacks}
    assert writer.seen[1:] == [(name, value, 5) for name, value in expected.items()]
    assert fallbacks >= 1
    tests.close_summary_writer(writer)
    assert writer.seen[-2:] == ["flush", "close"]
    assert tests.get_summary_writer(None) is tests.close_summary_writer(None) is tests.write_to_summary(None) is None
    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=Writer))
    directory, (name, seconds, step) = tests.get_summary_writer("runs").seen
    assert (directory, name, step) == ("runs", "TensorboardStartTimestamp", 0)
    assert seconds > 1e9


def test_values_of_variables_and_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    xu, xmp = module("torch_xla.utils.utils"), module("torch_xla.distributed.xla_multiprocessing")
    monkeypatch.setenv("N", "0")
    assert (xu.getenv_as("N", int, 3), xu.getenv_as("N", bool), xu.getenv_as("N", str)) == (0, False, "0")
    assert (xu.getenv_as("M", int, 3), xu.getenv_as("M", int)) == (3, None)
    samples = xu.SampleGenerator(("x", "y"), 2)
    assert (len(samples), [*samples], [*samples]) == (2, [("x", "y")] * 2, [("x", "y")] * 2)
    assert xmp.MpModelWrapper(nn.Linear(1, 1)).to("xla").weight.device.type == "xla"
    assert xmp.MpSerialExecutor().run(lambda: "result") == "result"
    monkeypatch.setenv("NXD_CPU_MODE", "1")
    assert module("neuronx_distributed.utils").cpu_mode() is True
    monkeypatch.setenv("NXD_CPU_MODE", "0")
    assert module("neuronx_distributed.utils").cpu_mode() is False
    clients = module("libneuronxla").supported_clients()
    assert clients == [f"torch_xla {module('torch_xla').__version__}"]


class Loader:
    """A loader as accelerate wraps it: it knows its end after its last batch."""

    dataset = "words"

    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.end_of_dataloader = batches, False

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        self.end_of_dataloader = False
        for number, batch in enumerate(self.batches, 1):
            self.end_of_dataloader = number == len(self.batches)
            yield batch


def test_a_loader_that_knows_its_end_is_not_read_ahead() -> None:
    pl, xm = module("torch_xla.distributed.parallel_loader"), module("torch_xla.core.xla_model")
    loader = Loader([{"a": torch.full((2, 3), float(number))} for number in range(3)])
    parallel = pl.MpDeviceLoader(loader, xm.xla_device())
    ends = [(batch["a"][0, 0].item(), batch["a"].device.type, loader.end_of_dataloader) for batch in parallel]
    assert ends == [(0.0, "xla", False), (1.0, "xla", False), (2.0, "xla", True)]
    assert (parallel.dataset, len(parallel)) == ("words", 3)
    assert not hasattr(parallel, "_nothing")
    parallel.close()
    parallel.close()
    for batches, counts in ((loader, [2, 2, 2]), ([torch.ones(5), [torch.ones(4, 1)], (3, ())], [5, 4, 0])):
        both = pl.ParallelLoader(batches, [xm.xla_device()])
        assert len(both) == len(both.per_device_loader("xla")) == both.per_device_samples() == 3
        both.close()
        assert [both.next_item("xla")[1] for _ in counts] == counts
        both.close()
    turned = pl.ParallelLoader([torch.ones(5, 6), torch.ones(5)], [xm.xla_device()], batchdim=1)
    assert [turned.next_item("xla")[1] for _ in range(2)] == [6, 1]
    turned.close()


def test_groups_of_ranks() -> None:
    xm, state = module("torch_xla.core.xla_model"), module("neuronx_distributed.parallel_layers.parallel_state")
    builder = module("neuronx_distributed.trace.model_builder")

    def facts() -> tuple[Any, ...]:
        kinds = ("tensor_model_parallel", "data_parallel", "pipeline_model_parallel")
        sizes = [getattr(state, f"get_{kind}_size")() for kind in kinds]
        ranks = [getattr(state, f"get_{kind}_rank")() for kind in kinds]
        sources = state.get_tensor_model_parallel_src_rank(), state.get_data_parallel_src_rank()
        names = ("tensor_model_parallel", "data_parallel", "world")
        groups = [getattr(state, f"get_{name}_group")() for name in names]
        lists = [getattr(state, f"get_{name}_group")(as_list=True) for name in names]
        assert lists[:2] == [state.get_tensor_model_parallel_replica_groups(), state.get_data_parallel_replica_groups()]
        return sizes, ranks, sources, [(each.size(), each.rank()) for each in groups], lists

    assert facts() == ([1, 1, 1], [0, 0, 0], (0, 0), [(1, 0)] * 3, [[[0]]] * 3)
    assert not state.model_parallel_is_initialized()
    state.initialize_model_parallel()
    assert state.model_parallel_is_initialized()
    with pytest.raises(RuntimeError, match="initialized already"):
        state.initialize_model_parallel()
    state.destroy_model_parallel()
    for size in (0, 2):
        with pytest.raises(ValueError, match=rf"tensor_model_parallel_size={size}: 1 rank\(s\) can't be divided"):
            state.initialize_model_parallel(size)
    for kind in ("pipeline_model", "context", "expert_model"):
        with pytest.raises(NotImplementedError, match=f"{kind}_parallel_size=2"):
            state.initialize_model_parallel(**{f"{kind}_parallel_size": 2})
    with builder.NxDParallelState(world_size=4, rank=3, tensor_model_parallel_size=2, lnc_size=2, other=None):
        lists = [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 1, 2, 3]]]
        assert facts() == ([2, 2, 1], [1, 1, 0], (2, 1), [(2, 1), (2, 1), (4, 3)], lists)
        state.model_parallel_xla_manual_seed(5)
        assert xm.get_rng_state() == 5 + 2718 + 1
        assert state.get_aot_mode()
    assert not state.get_aot_mode()
    assert not state.model_parallel_is_initialized()


def test_layers_of_one_rank_and_shards_of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: dict[str, Any] = {}
    library = SimpleNamespace(save_file=lambda tensors, path: saved.update({str(path): tensors}))
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, name, library)
    layers, utils = (module(f"neuronx_distributed.parallel_layers.{name}") for name in ("layers", "utils"))
    norm = module("neuronx_distributed.parallel_layers.layer_norm").LayerNorm
    builder = module("neuronx_distributed.trace.model_builder")
    value, words = torch.rand(3, 4), torch.tensor([[1, 2], [5, 0]])
    for layer, reference in ((norm(4, sequence_parallel_enabled=True), nn.LayerNorm(4)), (norm(4), nn.LayerNorm(4))):
        assert torch.equal(layer(value), reference(value))
        assert layer.eps == reference.eps
        assert {p.sequence_parallel_enabled for p in layer.parameters()} == {layer.sequence_parallel_enabled}
    assert [*norm(4, elementwise_affine=False).parameters()] == []
    assert not norm(4).sequence_parallel_enabled
    embedding = layers.ParallelEmbedding(6, 4, padding_idx=2)
    found = embedding(words)
    assert torch.equal(found, nn.functional.embedding(words, embedding.weight))
    assert found[0, 1].tolist() == [0.0] * 4
    found.sum().backward()
    assert embedding.weight.grad.sum(1).tolist() == [4.0, 4.0, 0.0, 0.0, 0.0, 4.0]
    parts = utils.split_tensor_along_last_dim(value, 2, contiguous_split_chunks=True)
    assert torch.equal(torch.cat(parts, 1), value)
    assert parts[1].is_contiguous()
    assert not utils.split_tensor_along_last_dim(value, 2)[1].is_contiguous()
    with builder.NxDParallelState(2, 0, 2):
        model = nn.Sequential(layers.ColumnParallelLinear(4, 6), layers.RowParallelLinear(6, 4, input_is_parallel=True))
        full = {"0.weight": torch.rand(6, 4), "0.bias": torch.rand(6), "1.weight": torch.rand(4, 6)}
        full["1.bias"], extra = torch.rand(4), {"other": torch.rand(1)}
        shards = builder.shard_checkpoint({**full, **extra}, model, serialize_path=tmp_path / "a" / "b")
        second = builder.shard_checkpoint(full, model, 1, 1)
    assert [torch.equal(shards[1][name], value) for name, value in second[0].items()] == [True] * 4
    joined = {"0.weight": 0, "0.bias": 0, "1.weight": 1}
    for name, dim in joined.items():
        assert torch.equal(torch.cat([part[name] for part in shards], dim), full[name])
    assert all(torch.equal(part["1.bias"], full["1.bias"]) and part.keys() == full.keys() for part in shards)
    files = [str(tmp_path / "a" / "b" / f"tp{rank}_sharded_checkpoint.safetensors") for rank in range(2)]
    assert [*saved] == files
    assert [*saved.values()] == shards


def test_sharded_training_of_one_rank(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fsdp, xm = module("torch_xla.distributed.fsdp"), module("torch_xla.core.xla_model")
    policies = module("torch_xla.distributed.fsdp.wrap")
    layer = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    expected = {name: value.clone() for name, value in layer.state_dict().items()}
    model = fsdp.XlaFullyShardedDataParallel(
        layer, compute_dtype=torch.bfloat16, buffer_dtype=torch.float16, auto_wrap_policy=policies.always_wrap_policy
    )
    assert model.module is layer
    assert model[0] is layer[0]
    assert (layer[1].running_mean.dtype, layer[1].num_batches_tracked.dtype) == (torch.float16, torch.int64)
    reduced = model.all_reduce_op(xm.REDUCE_SUM, torch.ones(2, device="xla"), 0.5)
    assert reduced.tolist() == [0.5, 0.5]
    linear = fsdp.XlaFullyShardedDataParallel(nn.Linear(3, 2), compute_dtype=torch.bfloat16)
    assert linear(torch.ones(1, 3, device="xla")).dtype is torch.bfloat16
    assert linear.reshard_after_forward
    torch.save({"model": model.state_dict(), "shard_metadata": model.get_shard_metadata()}, "part-0.pth")
    whole, name = fsdp.consolidate_sharded_model_checkpoints("part-", save_model=False)
    assert name == ""
    assert {key: value.tolist() for key, value in whole.items()} == {key: expected[key].tolist() for key in expected}
    monkeypatch.setattr("sys.argv", ["consolidate", "--ckpt_prefix", "part-"])
    module("torch_xla.distributed.fsdp.consolidate_sharded_ckpts").main()
    assert capsys.readouterr().out == "consolidated into part-_consolidated.pth\n"
    assert torch.load("part-_consolidated.pth")["model"].keys() == whole.keys()
    monkeypatch.setattr("sys.argv", ["consolidate", "--ckpt_prefix", "./", "--ckpt_suffix=*t-0.pth", "--save_path=all"])
    module("torch_xla.distributed.fsdp.consolidate_sharded_ckpts").main()
    assert capsys.readouterr().out == "consolidated into all\n"
    assert fsdp.apply_xla_patch_to_nn_linear(layer) is layer
    by_size, small = policies.size_based_auto_wrap_policy, {"min_num_params": 10}
    kinds: tuple[nn.Module, ...] = nn.Identity(), nn.ModuleList(), nn.ModuleDict(), nn.MultiheadAttention(1, 1)
    chosen = {recurse: [by_size(kind, recurse, 10, **small) for kind in kinds] for recurse in (True, False)}
    assert chosen == {True: [True, True, True, False], False: [True, False, False, True]}
    assert not any(by_size(kind, recurse, 9, **small) for kind in kinds for recurse in (True, False))
    assert by_size(nn.Identity(), False, 0, nonwrapped_numel=100_000_000)
    assert not by_size(nn.Identity(), False, 99_999_999)
    leaves = {"force_leaf_modules": (nn.Identity,), "exclude_wrap_modules": (nn.Identity,), **small}
    assert [by_size(nn.Identity(), recurse, 10, **leaves) for recurse in (True, False)] == [False, False]


def test_a_scaler_and_optimizers_of_mixed_precision() -> None:
    amp = module("torch_xla.amp")
    scaler = amp.GradScaler(use_zero_grad=True, init_scale=8.0)
    assert scaler.scale(torch.ones(1, device="xla")).item() == 8.0
    with amp.autocast():
        assert torch.get_autocast_dtype("xla") is torch.bfloat16
        assert torch.is_autocast_enabled("xla")
        assert torch.is_autocast_cache_enabled()
    with amp.autocast(enabled=False, dtype=torch.float16, cache_enabled=False):
        assert not torch.is_autocast_enabled("xla")
        assert not torch.is_autocast_cache_enabled()
    weight = torch.ones(2, device="xla", requires_grad=True)
    optimizer = amp.syncfree.SGD([weight], lr=0.5)
    weight.grad = torch.ones(2, device="xla")
    optimizer.step()
    assert weight.tolist() == [0.5, 0.5]


def test_indexes_of_models_are_joined_and_filtered() -> None:
    npf, index = module("neuronperf"), module("neuronperf.model_index")
    assert npf.__version__
    first, second = index.create("a.pt"), index.create("b.pt", 1, 4, 2, "all", 2.5)
    assert first["model_configs"] == [
        {"filename": "a.pt", "input_idx": 0, "batch_size": 1, "pipeline_size": 1, "cast_mode": None, "compile_s": None}
    ]
    names = ["filename", "input_idx", "batch_size", "pipeline_size", "cast_mode", "compile_s"]
    assert second["model_configs"] == [dict(zip(names, ("b.pt", 1, 4, 2, "all", 2.5), strict=True))]
    joined = index.append(first, second, first)
    assert [config["filename"] for config in joined["model_configs"]] == ["a.pt", "b.pt"]
    assert len(first["model_configs"]) == 1
    for chosen, wanted in (({"batch_sizes": [4, 8]}, ["b.pt"]), ({"filename": "a.pt"}, ["a.pt"]), ({"x": None}, None)):
        found = [config["filename"] for config in index.filter(joined, **chosen)["model_configs"]]
        assert found == (wanted or ["a.pt", "b.pt"])
    assert index.save(joined, "models.json") == "models.json"
    assert json.loads(Path("models.json").read_text("utf-8")) == index.load("models.json") == joined
    here, there = Path(index.save(joined)), Path(index.save(joined, root_dir=str(Path.cwd())))
    assert (here.parent, there.parent) == (Path(), Path.cwd())
    assert {path.name.startswith("model_") and path.suffix == ".json" for path in (here, there)} == {True}
    for text, problem in (("{", "Expecting"), ("[]", "no model_configs"), ('{"model_configs": 1}', "no model_configs")):
        Path("wrong.json").write_text(text)
        with pytest.raises(ValueError, match=f"wrong.json is no model index: .*{problem}"):
            index.load("wrong.json")


MODULES = {
    "xm": "torch_xla.core.xla_model",
    "pl": "torch_xla.distributed.parallel_loader",
    "scan": "torch_xla.experimental.scan",
    "fsdp": "torch_xla.distributed.fsdp",
    "layers": "neuronx_distributed.parallel_layers.layers",
    "utils": "neuronx_distributed.parallel_layers.utils",
    "nxd": "neuronx_distributed",
    "builder": "neuronx_distributed.trace.model_builder",
    "traces": "neuronx_distributed.trace",
    "npf": "neuronperf",
    "profiler": "torch_neuronx.experimental.profiler",
}
ONE_OF_TWO = {"model": {}, "shard_metadata": {"rank": 1, "world_size": 2, "shard_info": {}}}
INLINED = "needs inline_weights_to_neff=False"
REFUSED = (
    ("xm._fetch_gradients(sparse)", "sparse gradients are not supported on xla; use dense ones"),
    ("xm.get_stablehlo()", "torch_xla.stablehlo is not part of the simulated runtime; use torch.export on the CPU"),
    ("xm.all_gather_bucketized(one)", "input_list is Tensor; give a list of tensors"),
    ("xm.all_gather_bucketized([one, 1])", "input_list is list; give a list of tensors"),
    ("xm.collective_permute(one, [[0, 0], [0, 1]])", "give each rank once as source and once as target"),
    ("xm.collective_permute(one, [[0, 1], [1, 1]])", "give each rank once as source and once as target"),
    ("xm.collective_permute(one, [[0, 1]])", "there is no rank 1, but 0 to 0"),
    ("xm.collective_permute(one, [[-1, 0]])", "there is no rank -1, but 0 to 0"),
    ("xm.send_cpu_data_to_device([], 'xla', input_sharding=1)", "input_sharding needs SPMD"),
    ("pl.ParallelLoader([], ['xla'], input_sharding=1)", "input_sharding needs SPMD"),
    ("pl.ParallelLoader([], ['xla', 'xla:1'])", "a ParallelLoader of several devices is not here"),
    ("scan.scan(1, one, one)", "scan: fn is of type int"),
    ("fsdp.XlaFullyShardedDataParallel(linear, b=1, a=2)", "no keyword 'a' is known; leave it out"),
    ("fsdp.XlaFullyShardedDataParallel(linear, True, True)", "(flatten_parameters=True) is not part"),
    ("fsdp.consolidate_sharded_model_checkpoints('nothing-')", "nothing-*.pth: no such checkpoints"),
    ("fsdp.consolidate_sharded_state_dicts([ONE_OF_TWO])", "checkpoints of ranks [1], but there were 2; give one"),
    ("layers.ColumnParallelLinear(1, 1, skip_bias_add=True)", "ColumnParallelLinear(skip_bias_add=…) is not part"),
    ("layers.RowParallelLinear(1, 1, stride=2)", "RowParallelLinear(stride=…) is not part"),
    ("layers.RowParallelLinear(1, 1, sequence_dimension=1)", "RowParallelLinear(sequence_dimension=…) is not part"),
    ("layers.ParallelEmbedding(1, 1, sequence_parallel_enabled=True)", "(sequence_parallel_enabled=…) is not part"),
    ("layers.ColumnParallelLinear(1, 1, pad=True)(one)", "ColumnParallelLinear: pad=True is for inference only"),
    ("utils.divide(3, 2)", "3 can't be divided among 2 ranks; use a multiple"),
    ("builder.NxDParallelState(pipeline=2)", "NxDParallelState(pipeline=2) is not part"),
    ("nxd.ModelBuilder()", "ModelBuilder: a NoneType can't be traced; pass a module"),
    ("nxd.ModelBuilder(linear).trace(one, spmd=False)", "ModelBuilder.trace(spmd=False) is not part"),
    ("nxd.ModelBuilder(linear).compile()", "there is no trace; call trace() before"),
    ("nxd.ModelBuilder(linear).trace(one, tag='a').compile('x')", "priority_model_key='x' is no tag of a trace"),
    ("nxd.ModelBuilder(linear).trace(one, tag='a').compile(compiler_args={'b': ''})", "no flags for a"),
    ("traces.parallel_model_trace(None, one, spmd_mode=True)", f"spmd_mode {INLINED}"),
    ("traces.parallel_model_trace(None, one, bucket_config=1)", f"bucket_config {INLINED}"),
    (
        "traces.parallel_model_trace(None, one, None, None, None, False, spmd_mode=True)",
        "needs checkpoint_loader_callable",
    ),
    ("traces.parallel_model_trace(None, one, serialization_path='x')", "serialization_path needs spmd_mode=True"),
    ("traces.parallel_model_trace(None, one, 1)", "(states=…) is not part"),
    ("npf.write_csv([])", "there are no reports to write"),
    ("npf.model_index.append()", "name at least one index"),
    ("npf.torch.benchmark('x', torch.utils.data.TensorDataset(one))", "datasets are not supported here"),
    ("profiler.profile(profile_type='x')", "profile_type='x': give one of"),
    ("profiler.profile(ms_duration=0)", "ms_duration=0: give milliseconds above 0"),
)


def test_refusals_say_what_to_do_instead() -> None:
    words = nn.Embedding(3, 2, sparse=True)
    words(torch.tensor([1])).sum().backward()
    names = {name: module(path) for name, path in MODULES.items()}
    names |= {"one": torch.ones(1), "linear": nn.Linear(1, 1), "ONE_OF_TWO": ONE_OF_TWO, "torch": torch}
    names["sparse"] = torch.optim.SGD(words.parameters(), lr=1.0)
    module("neuronperf.torch")
    for call, text in REFUSED:
        with pytest.raises((NotImplementedError, RuntimeError, TypeError, ValueError, OSError)) as refused:
            eval(call, names)
        assert text in str(refused.value)
