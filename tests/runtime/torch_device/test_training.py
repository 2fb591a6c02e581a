"""Training on the device gives what training on the CPU gives, bit for bit."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.1)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embedding(tokens)).mean(1))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cells = kind(8, 12, 2, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(value)[0][:, -1])  # type: ignore[no-any-return]


def images(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(4, 3, 12, 12, generator=generator)


def vectors(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(4, 20, generator=generator)


def tokens(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 50, (4, 6), generator=generator)


def sequences(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(4, 6, 8, generator=generator)


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 5)
    )


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 5))


def grouped() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Flatten(), nn.Linear(800, 5))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], torch.Tensor]]] = {
    "convolutional": (convolutional, images),
    "normalised": (normalised, vectors),
    "grouped": (grouped, images),
    "attention": (Attention, tokens),
}
# On an accelerator torch adds the biases of recurrent cells in another order than on the CPU.
RECURRENT: dict[str, type[nn.Module]] = {"lstm": nn.LSTM, "gru": nn.GRU}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adamw_loop": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


def train(
    where: str,
    make: Callable[[], nn.Module],
    batch: Callable[[torch.Generator], torch.Tensor],
    optimizer: Callable[[Any], torch.optim.Optimizer],
    mark: Callable[[], None],
) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = make().to(where)
    steps = optimizer(model.parameters())
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(11)
    losses = []
    for _ in range(4):
        value, target = batch(generator), torch.randint(0, 5, (4,), generator=generator)
        steps.zero_grad()
        loss = F.cross_entropy(model(value.to(where)), target.to(where))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()
        mark()
        losses.append(loss.detach())
    return [tensor.detach().cpu() for tensor in (*losses, *model.parameters(), *model.buffers())]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_losses_and_parameters_equal_those_of_the_cpu(xla: Any, model: str, optimizer: str) -> None:
    make, batch = MODELS[model]
    expected = train("cpu", make, batch, OPTIMIZERS[optimizer], lambda: None)
    got = train("xla", make, batch, OPTIMIZERS[optimizer], lambda: xla.flush_all("Test"))
    differing = [i for i, (a, b) in enumerate(zip(expected, got, strict=True)) if not torch.equal(a, b)]
    assert differing == []


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_models_are_close_to_those_of_the_cpu(xla: Any, kind: str) -> None:
    results = [
        train(where, lambda: Recurrent(RECURRENT[kind]), sequences, OPTIMIZERS["sgd"], lambda: xla.flush_all("Test"))
        for where in ("cpu", "xla")
    ]
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_equal_those_of_the_cpu(xla: Any, optimizer: str) -> None:
    expected = train("cpu", normalised, vectors, OPTIMIZERS[optimizer], lambda: None)
    got = train("xla", normalised, vectors, OPTIMIZERS[optimizer], lambda: xla.flush_all("Test"))
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


@pytest.mark.parametrize("shape", [(8, 20), (4, 7, 20), (2, 3, 5, 20), (20,), (1, 7, 20)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_linear_takes_the_products_of_the_cpu(xla: Any, shape: tuple[int, ...], bias: bool, transposed: bool) -> None:
    value = torch.randn(*shape)
    if transposed and len(shape) > 2:
        value = value.transpose(0, -2)
    layer = nn.Linear(20, 13, bias=bias)
    results = []
    for where in ("cpu", "xla"):
        moved = value.detach().to(where).requires_grad_()
        copied = copy.deepcopy(layer).to(where)
        result = copied(moved)
        (result * result).sum().backward()
        results.append([t.detach().cpu() for t in (result, moved.grad, *(p.grad for p in copied.parameters()))])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_views_and_in_place_operations_share_bytes(xla: Any) -> None:
    expected = torch.arange(12.0)
    got = torch.arange(12.0).to("xla")
    for value in (expected, got):
        view = value.view(3, 4)
        view[1].add_(10)
        value.mul_(2)
        view.t()[0:2].zero_()
        view.narrow(0, 2, 1).fill_(7)
        xla.flush_all("Test")
        view[:, 3] += torch.ones(3, device=value.device)
    assert torch.equal(expected, got.cpu())


def test_conjugate_views_are_seen(xla: Any) -> None:
    value = torch.randn(3, 3, dtype=torch.complex64)
    moved = value.to("xla")
    assert torch.equal((moved.conj() @ moved).cpu(), value.conj() @ value)
    assert torch.equal(moved.conj().cpu(), value.conj().resolve_conj())
    assert torch.equal(moved.conj().imag.cpu(), value.conj().imag)


def test_shape_changing_in_place_operations_change_the_shape(xla: Any) -> None:
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


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_layers_drop_the_same_elements_again(xla: Any, reentrant: bool) -> None:
    results = []
    for where in ("cpu", "xla"):
        torch.manual_seed(0)
        layer = nn.Linear(8, 8).to(where)
        value = torch.randn(4, 8).to(where).requires_grad_()
        torch.manual_seed(5)
        for _ in range(3):
            hidden = F.dropout(layer(value), 0.3)
            for _ in range(2):
                hidden = checkpoint(lambda v, of=layer: F.dropout(of(v), 0.5), hidden, use_reentrant=reentrant)
            hidden.sum().backward()
        assert layer.weight.grad is not None
        results.append(layer.weight.grad.cpu())
    torch.testing.assert_close(results[1], results[0])


def test_a_given_generator_is_used(xla: Any) -> None:
    expected = torch.randn(5, generator=torch.Generator().manual_seed(3))
    got = torch.empty(5, device="xla").normal_(generator=torch.Generator().manual_seed(3))
    assert torch.equal(got.cpu(), expected)


def test_results_land_on_the_core_of_their_operands(xla: Any) -> None:
    value = torch.ones(3).to("xla:1") + 1
    assert value.device == torch.device("xla:1")
    assert value.tolist() == [2.0, 2.0, 2.0]
    assert torch.ones(2, device="xla:1").to("xla:0").device.index == 0
    with pytest.raises(RuntimeError, match="at least two devices"):
        value + torch.ones(3, device="xla:0")
    with pytest.raises(RuntimeError, match="at least two devices"):
        value + torch.ones(3)
    with pytest.raises(RuntimeError, match="this process has 2 NeuronCore"):
        torch.ones(1, device="xla:2")


def test_saving_loading_and_copying(xla: Any) -> None:
    model = nn.Linear(4, 4).to("xla")
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    for location in (None, "cpu", "xla:0", "xla:1"):
        file.seek(0)
        loaded = torch.load(file, map_location=location)
        assert torch.equal(loaded["weight"].cpu(), model.weight.detach().cpu())
    copied = copy.deepcopy(model)
    copied.weight.data.add_(1)
    assert not torch.equal(copied.weight.detach().cpu(), model.weight.detach().cpu())
    again = pickle.loads(pickle.dumps(model.weight))
    assert again.device.type == "xla"


def test_a_default_device_is_for_the_scripts_own_calls(run_python: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import torch, torch_xla\n"
        "torch.set_default_device('xla')\n"
        "layer = torch.nn.Linear(4, 4)\n"
        "layer(torch.ones(2, 4)).sum().backward()\n"
        "out = torch.mul(layer.weight.grad[::2], 2, out=torch.empty(0))\n"
        "print(out.device, out.tolist())\n"
    )
    expected = "xla:0 [[4.0, 4.0, 4.0, 4.0], [4.0, 4.0, 4.0, 4.0]]\n"
    for settings in ({}, {"XLA_USE_BF16": "1"}, {"NEURON_CC_FLAGS": "--auto-cast=all --auto-cast-type=tf32"}):
        run = run_python("-m", "neurontools.runtime", "script.py", **settings)
        assert (run.returncode, run.stdout) == (0, expected), run.stderr


def test_what_would_crash_torch_without_an_allocator_does_not(xla: Any) -> None:
    storage: Any = torch.arange(4.0).to("xla").untyped_storage()
    assert bytes(storage.clone().cpu().tolist()) == bytes(storage.cpu().tolist())
    assert torch.UntypedStorage(8, device="xla").nbytes() == 8
    assert storage.to("cpu").nbytes() == 16
    with pytest.raises(NotImplementedError, match="make a new tensor"):
        storage.resize_(8)


def test_sparse_gradients_are_refused_in_words(xla: Any) -> None:
    layer = nn.Embedding(10, 4, sparse=True).to("xla")
    with pytest.raises(NotImplementedError, match=r"sparse tensors are not supported on xla; use dense ones"):
        layer(torch.tensor([1, 2]).to("xla")).sum().backward()


def test_numbers_and_out_of_the_wrong_size(xla: Any) -> None:
    value = torch.arange(6.0).to("xla")
    assert torch.remainder(value, 4).tolist() == [0.0, 1.0, 2.0, 3.0, 0.0, 1.0]
    out = torch.empty(0, device="xla")
    torch.mul(value, 2, out=out)
    assert out.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


def test_threads_train_at_once(xla: Any) -> None:
    def gradient(where: str, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(8, 8, generator=generator).to(where).requires_grad_()
        value = torch.randn(4, 8, generator=generator).to(where)
        for _ in range(20):
            (value @ weight).tanh().sum().backward()
        assert weight.grad is not None
        return weight.grad.cpu()

    got: dict[int, torch.Tensor] = {}
    threads = [threading.Thread(target=lambda s=s: got.update({s: gradient("xla", s)})) for s in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(got[seed], gradient("cpu", seed)) for seed in range(4))


@pytest.mark.parametrize("backend", ["openxla", "neuron"])
def test_torch_compile_gives_the_same_bits(xla: Any, backend: str) -> None:
    torch._dynamo.reset()
    model = normalised().eval().to("xla")
    value = torch.randn(4, 20).to("xla")
    expected = model(value).detach().cpu()
    assert torch.equal(torch.compile(model, backend=backend)(value).detach().cpu(), expected)


def test_autocast_of_cuda_is_ours_only_where_the_script_means_it(xla: Any) -> None:
    """As stock torch with torch_xla beside it: bfloat16 is refused unless the script says that CUDA has it."""
    with pytest.raises(RuntimeError, match="Current CUDA Device does not support bfloat16"):
        torch.autocast("cuda", dtype=torch.bfloat16)
    with torch.autocast("cuda", dtype=torch.float16):
        assert not torch.is_autocast_enabled("xla")


def test_autocast_lowers_products_only(xla: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(4, 4).to("xla")
    value = torch.ones(2, 4, device="xla")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)  # as the script of the tutorial has it
    for name in ("xla", "cuda"):
        with torch.autocast(name, dtype=torch.bfloat16):
            product = layer(value)
            assert product.dtype is torch.bfloat16
            assert F.softmax(product, -1).dtype is torch.float32


def test_custom_operators_run_on_the_device(xla: Any) -> None:
    @torch.library.custom_op("neurontools_test::twice", mutates_args=())
    def twice(value: torch.Tensor) -> torch.Tensor:
        return value * 2

    @twice.register_fake
    def _(value: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(value)

    assert twice(torch.arange(3.0).to("xla")).tolist() == [0.0, 2.0, 4.0]
