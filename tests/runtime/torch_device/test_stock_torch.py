"""What stock torch does with a device without C++ allocator, streams and generators: it works, or says what to do."""

from __future__ import annotations

import copy
import io
import subprocess
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

Run = Callable[..., "subprocess.CompletedProcess[str]"]
VALUES = [1.0, 2.0, 3.0]


@pytest.fixture
def value(xla: Any) -> torch.Tensor:
    return torch.tensor(VALUES).to("xla")


def test_loading_onto_the_device(value: torch.Tensor, tmp_path: Path) -> None:
    path = tmp_path / "saved.pt"
    torch.save({"device": value, "host": torch.tensor(VALUES), "view": value[1:]}, path)
    for where in ("xla", torch.device("xla", 0), {"cpu": "xla"}):
        loaded = torch.load(path, map_location=where)
        assert {t.device.type for t in loaded.values()} == {"xla"}
        assert loaded["view"].tolist() == VALUES[1:]
        assert loaded["host"].tolist() == VALUES


def test_the_old_format_is_refused_and_not_read_wrong(value: torch.Tensor) -> None:
    file = io.BytesIO()
    with pytest.raises(NotImplementedError, match="the old format can't hold tensors of xla; save CPU tensors"):
        torch.save(value, file, _use_new_zipfile_serialization=False)
    file = io.BytesIO()
    torch.save(value.cpu(), file, _use_new_zipfile_serialization=False)
    file.seek(0)
    assert torch.load(file, map_location="xla").tolist() == VALUES


def test_storages(value: torch.Tensor) -> None:
    storage = value.untyped_storage()
    assert storage.clone().tolist() == storage.cpu().tolist() == storage.tolist()
    assert storage.new().nbytes() == 0
    assert torch.UntypedStorage(8, device="xla").nbytes() == 8
    assert copy.deepcopy(storage).device.type == "xla"
    assert torch.UntypedStorage(4).to(device="xla").device.type == "xla"
    for refused in (
        lambda: storage.resize_(4),
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
        (
            lambda v: nn.Embedding(3, 2, sparse=True).to("xla")(v.long() - 1).sum().backward(),
            r"sparse tensors are not supported on xla; use dense ones \(nn.Embedding\(sparse=False\)\)",
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
    assert accelerator.memory_stats()["allocated_bytes.all.current"] == total - free
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
    assert begin.elapsed_time(end) >= 0
    assert module.current_stream().query()
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


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "ASGD", "Adagrad", "RMSprop", "Rprop"])
def test_optimizers_step_to_the_same_bits(xla: Any, name: str) -> None:
    found = []
    for where in ("cpu", "xla"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).to(where)
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(3, 6).to(where)).square().sum().backward()
            optimizer.step()
        found.append([p.detach().cpu() for p in model.parameters()])
    assert all(map(torch.equal, *found))


def test_data_parallel_runs_on_one_core(value: torch.Tensor) -> None:
    model = nn.Linear(3, 2).to("xla")
    assert torch.equal(nn.DataParallel(model)(value), model(value))


def test_torch_compile_without_a_backend(xla: Any) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 3), nn.GELU()).to("xla")
    given = torch.randn(2, 4).to("xla")
    assert torch.equal(torch.compile(model)(given), model(given))


QUEUE = """
import os, torch, torch.multiprocessing as mp
from neurontools.runtime.launch.install import install
D = os.environ["NEURONTOOLS_DEVICE"]

def work(given, back):
    tensor = given.get()
    back.put((str(tensor.device), tensor.requires_grad, tensor.tolist()))

class OnDevice(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return torch.full((2,), float(index), device=D)

if __name__ == "__main__":
    install()
    for method in ("fork", "spawn"):
        context = mp.get_context(method)
        given, back = context.Queue(), context.Queue()
        process = context.Process(target=work, args=(given, back), daemon=True)
        process.start()
        given.put(torch.nn.Parameter(torch.ones(2, device=D)))
        print(back.get(timeout=60))
        process.join()
    loader = torch.utils.data.DataLoader(OnDevice(), batch_size=2, num_workers=1)
    print([batch.tolist() for batch in loader])
"""


@pytest.mark.parametrize("name", ["xla", "neuron"])
def test_device_tensors_go_through_queues_as_copies(run_python: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "queue_script.py").write_text(QUEUE)
    run = run_python("queue_script.py", NEURONTOOLS_DEVICE=name)
    assert run.stdout.splitlines() == [
        f"('{name}:0', True, [1.0, 1.0])",
        f"('{name}:0', True, [1.0, 1.0])",
        "[[[0.0, 0.0], [1.0, 1.0]], [[2.0, 2.0], [3.0, 3.0]]]",
    ], run.stderr


FSDP = """
import os, warnings, torch, torch.distributed as dist
warnings.simplefilter("ignore")
from neurontools.runtime.launch.install import install
install()
D = os.environ["NEURONTOOLS_DEVICE"]
import torch_xla.distributed.xla_backend
dist.init_process_group(D, store=dist.HashStore(), rank=0, world_size=1)
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
ways = [FullyShardedDataParallel, lambda m: FullyShardedDataParallel(m, device_id=0)]
for wrap in ways + [fully_shard] * (D == "xla"):
    try:
        wrap(torch.nn.Linear(2, 2).to(D))
    except NotImplementedError as error:
        print(error)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).to(D))
optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
model(torch.ones(1, 2, device=D)).sum().backward()
optimizer.step()
print("stepped")
"""


@pytest.mark.parametrize("name", ["xla", "neuron"])
def test_fsdp_is_refused_by_name_and_its_substitutes_work(run_python: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "fsdp_script.py").write_text(FSDP)
    run = run_python("fsdp_script.py", NEURONTOOLS_DEVICE=name)
    lines = run.stdout.splitlines()
    assert lines.pop() == "stepped", run.stderr
    for line in lines[:2]:
        assert line.startswith(f"FullyShardedDataParallel is not supported on {name}")
        assert "use fully_shard under the device name neuron" in line
    assert len(lines) == (3 if name == "xla" else 2)
    for line in lines[2:]:
        assert line.startswith("fully_shard is not supported on xla")
        assert "NEURONTOOLS_DEVICE=neuron" in line


MISSING = """
import importlib
from neurontools.runtime.launch.missing import MODULES
import torch_xla, torch_xla.core.xla_model as xm, torch_xla.runtime
for name in sorted(MODULES):
    try:
        importlib.import_module(name).anything()
    except NotImplementedError as error:
        print(error)
print(len(MODULES))
for what in ("torch_xla._internal.x", "torch_xla.eager_mode", "torch_xla._XLAC._x", "torch_xla.runtime.use_spmd"):
    try:
        eval(what)
    except AttributeError as error:
        print(error)
"""


def test_missing_parts_of_torch_xla_are_named_with_a_substitute(run_python: Run, tmp_path: Path) -> None:
    (tmp_path / "missing_script.py").write_text(MISSING)
    run = run_python("-m", "neurontools.runtime", "missing_script.py")
    lines = run.stdout.splitlines()
    count = next(int(line) for line in lines if line.isdigit())
    assert lines.index(str(count)) == count > 20, run.stderr
    assert len(lines) == count + 5
    assert all(" is not part of the simulated runtime; use " in line for line in lines if not line.isdigit())


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
