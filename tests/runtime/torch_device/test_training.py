"""Training on the device gives what training on the CPU gives, bit for bit."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from neurontools.runtime.counting.metrics import metrics

Tensor = torch.Tensor
Generator = torch.Generator
Mark = Callable[[], None]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.1)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(tokens)).mean(1))  # type: ignore[no-any-return]


def images(generator: Generator) -> Tensor:
    return torch.randn(4, 3, 12, 12, generator=generator)


def vectors(generator: Generator) -> Tensor:
    return torch.randn(4, 20, generator=generator)


def tokens(generator: Generator) -> Tensor:
    return torch.randint(0, 50, (4, 6), generator=generator)


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 5)
    )


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 5))


def grouped() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Flatten(), nn.Linear(800, 5))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[Generator], Tensor]]] = {
    "convolutional": (convolutional, images),
    "normalised": (normalised, vectors),
    "grouped": (grouped, images),
    "attention": (Attention, tokens),
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9},
    "Adam": {},
    "AdamW": {"foreach": False},
    **{name: {} for name in ("NAdam", "RAdam", "ASGD", "Adagrad", "RMSprop", "Rprop")},
}


def train(where: str, model: str, optimizer: str, mark: Mark, seed: int = 0, steps: int = 4) -> list[Tensor]:
    make, batch = MODELS[model]
    generator = Generator().manual_seed(3 + seed)
    made = make()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    made = made.to(where)
    torch.manual_seed(11)  # for what is dropped
    stepping = getattr(torch.optim, optimizer)(made.parameters(), lr=1e-2, **OPTIMIZERS[optimizer])
    losses = []
    for _ in range(steps):
        value, target = batch(generator), torch.randint(0, 5, (4,), generator=generator)
        stepping.zero_grad()
        loss = F.cross_entropy(made(value.to(where)), target.to(where))
        loss.backward()
        nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        stepping.step()
        mark()
        losses.append(loss.detach())
    return [tensor.detach().cpu() for tensor in (*losses, *made.parameters(), *made.buffers())]


@pytest.mark.parametrize(
    ("model", "optimizer"), [(m, o) for m in MODELS for o in OPTIMIZERS if o in ("SGD", "Adam") or m == "normalised"]
)
def test_losses_and_parameters_equal_those_of_the_cpu(xla: Any, model: str, optimizer: str) -> None:
    expected = train("cpu", model, optimizer, lambda: None)
    got = train("xla", model, optimizer, lambda: xla.flush_all("Test"))
    assert [i for i, (a, b) in enumerate(zip(expected, got, strict=True)) if not torch.equal(a, b)] == []


@pytest.mark.slow
@pytest.mark.parametrize("places", [("xla:0",) * 3, ("xla:0", "xla:1", "xla:0", "xla:1")])
def test_threads_train_whole_models_at_once(xla: Any, places: tuple[str, ...]) -> None:
    together = threading.Barrier(len(places))

    def work(number: int, where: str) -> list[Tensor]:
        together.wait()
        return train(where, "convolutional", "Adam", lambda: xla.flush_all("Test"), number, steps=12)

    with ThreadPoolExecutor(len(places)) as pool:
        results = list(pool.map(work, itertools.count(), places))
    for number, got in enumerate(results):
        expected = train("cpu", "convolutional", "Adam", lambda: None, number, steps=12)
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


class ReadersKnown(torch.optim.SGD):
    """Records the threads that read its parameters."""

    readers: ClassVar[set[int]] = set()

    def __getattribute__(self, name: str) -> Any:
        if name == "param_groups":
            self.readers.add(threading.get_ident())
        return super().__getattribute__(name)


def test_no_other_thread_reads_an_optimizers_gradients(xla: Any) -> None:
    """Another thread may be replacing them: torch then reads freed memory."""

    def step(kind: type[torch.optim.SGD]) -> torch.optim.SGD:
        weight = nn.Parameter(torch.ones(2, device="xla"))
        stepping = kind([weight], lr=1.0)
        weight.sum().backward()
        stepping.step()
        return stepping

    kept = step(ReadersKnown)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(step, torch.optim.SGD).result()
    assert ReadersKnown.readers == {threading.get_ident()}
    assert kept.param_groups


@pytest.mark.parametrize("shape", [(8, 20), (4, 7, 20), (2, 3, 5, 20), (20,), (1, 7, 20)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_linear_takes_the_products_of_the_cpu(xla: Any, shape: tuple[int, ...], bias: bool, transposed: bool) -> None:
    value = torch.randn(*shape)
    if transposed and len(shape) > 2:
        value = value.transpose(0, -2)
    assert_same_bits(nn.Linear(20, 13, bias=bias), lambda moved, leaf: moved(leaf).square(), value)


RECURRENT: dict[str, Callable[..., nn.Module]] = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "RNN_TANH": nn.RNN,
    "RNN_RELU": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
    "LSTM_PROJECTED": lambda *a, **k: nn.LSTM(*a, proj_size=3, **k),
}
CELLS: dict[str, Callable[..., nn.Module]] = {"LSTMCell": nn.LSTMCell, "GRUCell": nn.GRUCell, "RNNCell": nn.RNNCell}


def leaves(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    else:
        for part in result:
            if part is not None:
                yield from leaves(part)


def assert_same_bits(module: nn.Module, run: Callable[[nn.Module, Tensor], Any], value: Tensor) -> None:
    found = []
    for where in ("cpu", "xla"):
        moved, leaf = copy.deepcopy(module).to(where), value.detach().to(where).requires_grad_()
        torch.manual_seed(3)
        outputs = [t for t in leaves(run(moved, leaf)) if t.is_floating_point()]
        if torch.is_grad_enabled():
            sum((n + 1) * output.float().sum() for n, output in enumerate(outputs)).backward()  # type: ignore[union-attr]
        found.append([*outputs, leaf.grad, *(p.grad for p in moved.parameters())])
    for expected, got in zip(*found, strict=True):
        assert (expected is None) == (got is None)
        if expected is not None:
            assert got.stride() == expected.stride()
            assert torch.equal(got.cpu(), expected)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize(
    ("bidirectional", "batch_first", "bias"),
    [
        pytest.param(*choice, marks=[] if choice in ((False, False, True), (True, True, False)) else pytest.mark.slow)
        for choice in itertools.product((False, True), repeat=3)
    ],
)
def test_recurrent_layers(xla: Any, kind: str, bidirectional: bool, batch_first: bool, bias: bool) -> None:
    module = RECURRENT[kind](4, 5, 2, bidirectional=bidirectional, batch_first=batch_first, bias=bias, dropout=0.4)
    value = torch.randn(7, 3, 4)
    lengths = [3, 3, 2, 2, 2, 1, 1] if batch_first else [7, 5, 2]

    def packed(moved: nn.Module, leaf: Tensor) -> Any:
        return moved(pack_padded_sequence(leaf, lengths, batch_first=batch_first))

    assert_same_bits(module, lambda moved, leaf: moved(leaf), value)
    assert_same_bits(module, packed, value)
    module.eval()
    with torch.no_grad():
        assert_same_bits(module, lambda moved, leaf: moved(leaf), value)


def cell_run(cell: nn.Module, value: Tensor) -> Any:
    state = None
    for step in value:
        state = cell(step, state)
    return state


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", [*RECURRENT, *CELLS])
def test_recurrent_cells_and_layers_of_other_types(xla: Any, kind: str, dtype: torch.dtype) -> None:
    run = cell_run if kind in CELLS else lambda moved, leaf: moved(leaf)
    module = {**RECURRENT, **CELLS}[kind](4, 5).to(dtype)
    assert_same_bits(module, run, torch.randn(7, 3, 4, dtype=dtype))


def test_recurrent_layers_are_parts_of_graphs(xla: Any) -> None:
    module = nn.LSTM(4, 5, 2, bidirectional=True).to("xla")
    before = {name for name in metrics.counters if "::" in name}
    module(torch.randn(7, 3, 4, device="xla"))[0].sum().backward()
    with torch.no_grad():  # the mode at execution is not that of the recording
        xla.flush_all("Test")
    assert {name for name in metrics.counters if "::" in name} == before
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in module.parameters())


def test_a_backward_pass_refuses_tensors_that_a_foreach_operator_changed(xla: Any) -> None:
    weight = nn.Parameter(torch.ones(3, device="xla"))
    loss = weight.square().sum()
    with torch.no_grad():
        torch._foreach_mul_([weight], 2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_tensor_changes_its_own_shape_in_place(xla: Any) -> None:
    value = torch.arange(6.0).reshape(1, 2, 3).to("xla")
    value.squeeze_(0).t_()
    assert value.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_random_numbers_are_the_devices_own_and_reproducible(xla: Any) -> None:
    torch.manual_seed(7)
    host = torch.randn(3)
    torch.manual_seed(7)
    first = torch.randn(100, device="xla").cpu()
    assert torch.equal(torch.randn(3), host), "a device operator drew from the host's generator"
    torch.manual_seed(7)
    assert torch.equal(torch.randn(100, device="xla").cpu(), first)
    given = torch.empty(5, device="xla").normal_(generator=Generator().manual_seed(3))
    assert torch.equal(given.cpu(), torch.randn(5, generator=Generator().manual_seed(3)))


@pytest.mark.parametrize("kind", ["reentrant", "not reentrant", "torch_xla"])
def test_checkpointed_layers_compute_again_and_drop_the_same_elements(xla: Any, kind: str) -> None:
    from torch_xla.utils.checkpoint import checkpoint as checkpoint_of_torch_xla

    again = checkpoint_of_torch_xla if kind == "torch_xla" else partial(checkpoint, use_reentrant=kind == "reentrant")
    results = []
    for where in ("cpu", "xla"):
        torch.manual_seed(0)
        layer = nn.Linear(8, 8).to(where)
        value = torch.randn(4, 8).to(where).requires_grad_()
        calls: list[int] = []

        def inner(value: Tensor, layer: nn.Module = layer, calls: list[int] = calls) -> Tensor:
            calls.append(1)
            return F.dropout(layer(value), 0.5)

        torch.manual_seed(5)
        for _ in range(3):
            hidden = F.dropout(layer(value), 0.3)
            for _ in range(2):
                hidden = again(inner, hidden)
            hidden.sum().backward()
        assert len(calls) == 2 * 2 * 3
        assert layer.weight.grad is not None
        results.append(layer.weight.grad.cpu())
    torch.testing.assert_close(results[1], results[0])


def test_results_land_on_the_core_of_their_operands(xla: Any) -> None:
    value = torch.ones(3).to("xla:1") + 1
    assert value.device == torch.device("xla:1")
    assert value.tolist() == [2.0, 2.0, 2.0]
    assert torch.ones(2, device="xla:1").to("xla:0").device.index == 0
    for other in (torch.ones(3, device="xla:0"), torch.ones(3)):
        with pytest.raises(RuntimeError, match="at least two devices"):
            value + other
    with pytest.raises(RuntimeError, match="this process has 2 NeuronCore"):
        torch.ones(1, device="xla:2")


@pytest.mark.parametrize("backend", ["openxla", "neuron", None])
def test_torch_compile_gives_the_same_bits(xla: Any, backend: str | None) -> None:
    torch._dynamo.reset()
    model = normalised().eval().to("xla")
    value = torch.randn(4, 20).to("xla")
    expected = model(value).detach().cpu()
    compiled = torch.compile(model, backend=backend) if backend else torch.compile(model)
    assert torch.equal(compiled(value).detach().cpu(), expected)


def test_autocast_of_cuda_is_ours_only_where_the_script_means_it(xla: Any) -> None:
    """As stock torch with torch_xla beside it: bfloat16 is refused unless the script says that CUDA has it."""
    with pytest.raises(RuntimeError, match="Current CUDA Device does not support bfloat16"):
        torch.autocast("cuda", dtype=torch.bfloat16)
    with torch.autocast("cuda", dtype=torch.float16):
        assert not torch.is_autocast_enabled("xla")


def test_autocast_casts_a_parameter_once_for_several_uses(xla: Any) -> None:
    def gradient(where: str) -> torch.Tensor:
        weight = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)).to(where).requires_grad_()
        for _ in range(2):
            with torch.autocast(where, dtype=torch.bfloat16):
                result = weight @ weight @ weight
            result.float().sum().backward()
            with torch.no_grad():
                weight += 0.1
        assert weight.grad is not None
        return weight.grad.cpu()

    assert gradient("xla").equal(gradient("cpu"))


def test_gradients_under_autocast_add_up_in_the_order_of_the_cpu(xla: Any) -> None:
    def gradient(where: str) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        weight = torch.randn(16, 16, generator=generator).to(where).requires_grad_()
        rows = weight[:12]
        with torch.no_grad():
            weight += 0.1  # the rows get their new history when they are used next
        with torch.autocast(where, dtype=torch.bfloat16):
            result = nn.functional.linear(weight, rows)
        (result.float().square().sum() + (weight * 0.3).square().sum()).backward()
        assert weight.grad is not None
        return weight.grad.cpu()

    assert gradient("xla").equal(gradient("cpu"))


def test_autocast_lowers_products_only(xla: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(4, 4).to("xla")
    value = torch.ones(2, 4, device="xla")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)  # as the script of the tutorial has it
    for name in ("xla", "cuda"):
        with torch.autocast(name, dtype=torch.bfloat16):
            product = layer(value)
            assert product.dtype is torch.bfloat16
            assert F.softmax(product, -1).dtype is torch.float32


@pytest.mark.parametrize("make", [nn.Embedding, nn.EmbeddingBag, partial(nn.EmbeddingBag, mode="sum")])
def test_a_sparse_embedding_has_the_dense_gradient(xla: Any, make: Any) -> None:
    def gradient(where: str, **how: bool) -> Any:
        torch.manual_seed(0)
        layer = make(5, 3, **how).to(where)
        (layer(torch.tensor([[0, 1], [2, 2]]).to(where)) ** 2).sum().backward()
        return layer.weight.grad

    got = gradient("xla", sparse=True)
    assert got.layout is torch.strided
    assert torch.equal(got.cpu(), gradient("cpu"))


def test_the_norm_of_no_gradients_is_on_the_device(xla: Any) -> None:
    norm = nn.utils.clip_grad_norm_(nn.Linear(2, 2).to("xla").parameters(), 1.0)
    assert (norm.device.type, norm.item()) == ("xla", 0.0)
