"""HBM: what is taken, what is refused, the categories, and which bytes are constants (parameters and buffers)."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from neurontools.runtime.tensors.buffers import Category, CoreMemory, OutOfDeviceMemory, buffers, size_text

MIB = 1 << 20


def test_sizes_as_the_runtime_prints_them() -> None:
    bytes_of = {"0B": 0, "1023B": 1023, "1.000KB": 1024, "1.062KB": 1088, "1.000MB": MIB, "172.000MB": 180355072}
    for text, nbytes in {**bytes_of, "1.000GB": 1 << 30, "15.855GB": 17024176783}.items():
        assert size_text(nbytes) == text


def test_levels_and_their_peak() -> None:
    memory = CoreMemory(100, 0, 1, 1)
    assert (memory.hbm_index, memory.total_bytes, memory.peak_bytes, memory.levels) == (1, 0, 0, [0] * 5)
    memory.allocate(Category.TENSORS, 60)
    memory.allocate(Category.SCRATCHPAD, 40)
    with pytest.raises(OutOfDeviceMemory):
        memory.allocate(Category.RUNTIME, 1)
    memory.free(Category.SCRATCHPAD, 30)
    memory.allocate(Category.MODEL_CODE, 5)
    memory.move(Category.TENSORS, Category.CONSTANTS, 20)
    assert memory.by_field() == {
        "constants_bytes": 20,
        "model_code_bytes": 5,
        "model_shared_scratchpad_bytes": 10,
        "runtime_memory_bytes": 0,
        "tensors_bytes": 40,
    }
    assert (memory.total_bytes, memory.peak_bytes) == (75, 100)


def test_the_table_of_a_refused_allocation() -> None:
    memory = CoreMemory(32 << 30, 2, 3)
    usages = {
        Category.MODEL_CODE: "model code",
        Category.CONSTANTS: "model constants",
        Category.TENSORS: "tensors",
        Category.SCRATCHPAD: "shared scratchpad",
        Category.RUNTIME: "runtime",
    }
    rows, error = "", "NRT_RESOURCE(4): not enough HBM for 34359738368 bytes; "
    advice = "use a smaller batch, gradient checkpointing, or bfloat16"
    for number, (category, usage) in enumerate(usages.items(), 1):
        memory.allocate(category, number << 30)
        rows += f"\t* {usage}: {number}.000GB\n"
        table = (
            f"Failed to allocate 32.000GB (usage: {usage}) on ND 2:NC 3, current utilization:\n"
            f"\t* total: {sum(range(number + 1))}.000GB of 32.000GB\n{rows}"
        )
        with pytest.raises(OutOfDeviceMemory) as refused:
            memory.allocate(category, 32 << 30)
        assert str(refused.value) == f"{table}{error}{advice}"
    memory.write_log = lambda *_: "/tmp/table"
    assert str(memory.refusal(category, 32 << 30)) == f"{table}\t* by tensor: /tmp/table\n{error}{advice}"
    assert memory.total_bytes == 15 << 30


@pytest.fixture
def small(xla: Any) -> Any:
    """The first core, with 8.5 MiB left."""
    gc.collect()
    xla.flush_all("Test")
    memory = xla.cores[0].memory
    limit, memory.limit_bytes = memory.limit_bytes, memory.total_bytes + 17 * MIB // 2
    yield xla
    memory.limit_bytes = limit


def test_a_refusal_leaves_a_file_with_every_tensor(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / "neuron_mem_table_device_0_hbm_0.log"
    used = buffers.account_of(small.cores[0]).total_bytes
    held = [torch.ones(MIB).to("xla"), torch.ones(MIB, dtype=torch.bool).to("xla")]
    with pytest.raises(torch.OutOfMemoryError) as refused:
        torch.ones(4 * MIB, dtype=torch.uint8).to("xla")
    assert f"by tensor: {path}" in str(refused.value)
    text = path.read_text()
    assert re.match(r"20\d\d-[A-Z][a-z]{2}-\d\d \d\d:\d\d:\d\d\.0000", text)
    assert "Failed to allocate 4.000MB (usage: tensors) on ND 0:NC 0" in text
    rows = [line.split() for line in text.splitlines() if line.endswith(("float32[1048576]{1}", "bool[1048576]{1}"))]
    assert rows == [
        [str(4 * MIB), "1", "tensors", "float32[1048576]{1}"],
        [str(MIB), "1", "tensors", "bool[1048576]{1}"],
    ]
    assert [each.sum().item() for each in held] == [MIB, MIB]
    held.clear()
    small.flush_all("Test")
    assert buffers.account_of(small.cores[0]).levels[Category.TENSORS] <= used


def test_an_execution_beyond_the_hbm_is_refused_before_it_changes_anything(small: Any) -> None:
    value = torch.ones(MIB // 4).to("xla")
    tensors = buffers.account_of(small.cores[0]).levels[Category.TENSORS]
    results = [value + i for i in range(9)]
    value.add_(1)
    with pytest.raises(torch.OutOfMemoryError, match="current utilization"):
        small.flush_all("Test")
    with pytest.raises(RuntimeError, match="this tensor has no value"):
        results[0].cpu()
    assert value.sum().item() == MIB // 4
    assert buffers.account_of(small.cores[0]).levels[Category.TENSORS] == tensors


def test_pending_graphs_run_when_memory_is_short(small: Any) -> None:
    total = torch.zeros(MIB // 4).to("xla")
    for _ in range(20):  # 20 MiB of batches that are dead as soon as the graph has run
        total = total + torch.ones(MIB // 4).to("xla")
    assert total[0].item() == 20


def test_memory_info_is_the_account(xla: Any) -> None:
    import torch_xla.core.xla_model as xm

    held = torch.ones(1000, device="xla:1")
    xla.flush_all("Test")
    info = xm.get_memory_info(torch.device("xla:1"))
    memory = xla.cores[1].memory
    assert info["bytes_used"] == memory.total_bytes == sum(memory.by_field().values())
    assert info["bytes_limit"] == memory.limit_bytes
    assert held.numel() == 1000


def test_the_memory_functions_tell_tensors_everything_and_peaks_that_reset(xla: Any) -> None:
    module: Any = torch.get_device_module("xla")
    core, kib = "xla:1", 1024

    def in_snapshot() -> int:
        return sum(segment["total_size"] for segment in module.memory_snapshot() if segment["device"] == 1)

    # A snapshot lacks what some earlier tests have left on the core.
    missing_bytes = module.memory_reserved(core) - in_snapshot()
    module.reset_peak_memory_stats(core)
    module.reset_accumulated_memory_stats(core)
    before, everything = module.memory_allocated(core), module.memory_reserved(core)
    first = torch.zeros(256 * kib, dtype=torch.uint8).to(core)
    second = torch.zeros(64 * kib, dtype=torch.uint8).to(core)
    del first
    assert module.memory_allocated(core) == before + 64 * kib
    assert module.max_memory_allocated(core) == before + 320 * kib
    assert module.max_memory_reserved(core) == everything + 320 * kib
    assert module.mem_get_info(core)[0] == module.mem_get_info(core)[1] - module.memory_reserved(core)
    stats = module.memory_stats(core)
    assert stats["allocated_bytes"] == {"current": before + 64 * kib, "peak": before + 320 * kib}
    assert stats["reserved_bytes.all.freed"] == 256 * kib
    assert (stats["allocation_requests"], stats["num_tensor_frees"], stats["num_ooms"]) == (2, 1, 0)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 40, device=core)
    assert module.memory_stats(core)["num_ooms"] == 1
    assert f"allocated {size_text(before + 64 * kib)} {size_text(before + 320 * kib)}" in " ".join(
        module.memory_summary(core).split()
    )
    assert module.memory_reserved(core) - in_snapshot() == missing_bytes
    module.reset_peak_memory_stats(core)
    assert module.max_memory_allocated(core) == module.memory_allocated(core)
    assert second.numel() == 64 * kib


def test_temporaries_are_gone_without_the_garbage_collector(xla: Any) -> None:
    def compute(value: Any) -> Any:
        return ((value + 1) * 2).softmax(0)[1:] + 1

    compute(torch.ones(2).to("xla"))  # has torch import half of itself, and errors on the way keep frames of ours
    xla.flush_all("Test")
    gc.collect()
    gc.disable()
    others = [t for t in gc.get_objects() if type(t) is torch.Tensor]  # of other tests in this process
    known = {id(t) for t in others}
    try:
        for size in (1000, 1001):  # interpreted, then generated
            value = torch.ones(size).to("xla")
            for _ in range(2):
                result = compute(value)
                xla.flush_all("Test")
                del result
        buffers.drain()
        tensors = [t for t in gc.get_objects() if type(t) is torch.Tensor]
        left = [t for t in tensors if id(t) not in known and t.is_cpu and t.numel() in (999, 1000, 1001)]
        assert len(left) == 1  # the value of the last `value`
    finally:
        gc.enable()


def nbytes(tensors: Any) -> int:
    return sum(t.nbytes for t in tensors)


def own(module: nn.Module) -> int:
    return nbytes([*module.parameters(), *module.buffers()])


@pytest.fixture
def added(xla: Any) -> Any:
    """A function that says how many bytes of constants and tensors there are more than when the test began."""

    def levels() -> tuple[int, int]:
        gc.collect()  # what other tests left in cycles
        xla.flush_all("Test")
        memory = xla.cores[0].memory
        return memory.levels[Category.CONSTANTS], memory.levels[Category.TENSORS]

    constants, tensors = levels()
    return lambda: (levels()[0] - constants, levels()[1] - tensors)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))


def test_training_makes_parameters_constants_and_gradients_tensors(xla: Any, added: Any) -> None:
    made = model()
    size, gradients = own(made), nbytes(made.parameters())
    made.to("xla")
    assert added() == (size, 0)
    made(torch.randn(4, 8).to("xla")).sum().backward()
    assert added() == (size, gradients)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.9)
    optimizer.step()
    assert added() == (size, 2 * gradients)
    optimizer.zero_grad()
    assert added() == (size, gradients)
    del made, optimizer
    assert added() == (0, 0)


def test_parameters_that_get_other_bytes(xla: Any, added: Any) -> None:
    made = model().to("xla")
    size = own(made)
    for parameter in made.parameters():
        parameter.data = parameter.data - 1.0
    assert added() == (size, 0)
    weight = next(made.parameters())
    old = weight.data
    weight.data = torch.zeros(8, 8, device="xla")
    assert added() == (size, old.nbytes)
    del old
    assert added() == (size, 0)


def test_state_dicts(xla: Any, added: Any) -> None:
    made = model().to("xla")
    size = own(made)
    state = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    assert added() == (size, size)
    made.load_state_dict(state, assign=True)
    del state
    assert added() == (size, 0)
    made.load_state_dict({name: tensor.cpu() for name, tensor in made.state_dict().items()})
    assert added() == (size, 0)


def test_copies_of_a_model_are_models(xla: Any, added: Any) -> None:
    made = model().to("xla")
    size = own(made)
    copied = copy.deepcopy(made)
    assert added() == (2 * size, 0)
    copied = pickle.loads(pickle.dumps(made))
    assert added() == (2 * size, 0)
    del copied
    average = [p.detach().clone() for p in made.parameters()]
    assert added() == (size, nbytes(average))


def test_conversions_and_leaving(xla: Any, added: Any) -> None:
    made = model().to("xla")
    size = own(made)
    made.half()
    assert added() == (own(made), 0)
    assert own(made) < size
    made.cpu()
    assert added() == (0, 0)


def test_made_on_the_device(xla: Any, added: Any) -> None:
    with torch.device("xla"):
        made = nn.BatchNorm1d(4)
    assert added() == (own(made), 0)
    made.running_mean = torch.ones(4, device="xla")
    assert added() == (own(made), 0)
    lazy = nn.LazyLinear(3).to("xla")
    lazy(torch.ones(1, 2).to("xla"))
    assert lazy.weight.shape == (3, 2)
    assert added() == (own(made) + own(lazy), 0)
