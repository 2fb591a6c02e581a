"""Tensors of a device without C++ allocator and streams in stock torch: copies, storages, queues, moved modules."""

from __future__ import annotations

import copy
import io
import pickle
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
install_runtime()  # workers that import this script have the device too, as with an import of torch_xla

def work(given, back):
    tensor = given.get()
    back.put((str(tensor.device), tensor.requires_grad, tensor.tolist()))

class OnDevice(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return torch.full((2,), float(index), device=D)

if __name__ == "__main__":
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
