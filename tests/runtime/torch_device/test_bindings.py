"""Which operator each function calls that stands for one in a program."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

from neurontools.runtime.operators.operator import find_overload  # noqa: E402
from neurontools.runtime.programs.program import BINDINGS  # noqa: E402


def arguments_of(name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Calls as the dispatcher hands them to a kernel."""
    one, other = torch.rand(3, 3) + 0.5, torch.rand(3, 3) + 0.5
    some, others = [one, one + 1], [other, other + 1]
    short = name.removeprefix("aten::")
    if short.endswith(".Tensor"):
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((one, other), {}), ((one, 2.5), {}), ((one, 2), {})]
        return [*calls, ((one, other), {"alpha": 2})] if short.startswith(("add", "sub")) else calls
    several: dict[str, tuple[Any, ...]] = {
        "mm": (one, other),
        "bmm": (one[None], other[None]),
        "addmm": (one[0], one, other),
        "embedding": (one, torch.tensor([0, 2]), 1, False, True),
        "_softmax": (one, 1, False),
        "_log_softmax": (one, 1, False),
        "_softmax_backward_data": (one, other, 1, torch.float32),
        "_log_softmax_backward_data": (one, other, 1, torch.float32),
        "native_layer_norm": (one, [3], None, None, 1e-5),
        "_foreach_add_.List": (some, others),
        "_foreach_add_.Scalar": (some, 2),
        "_foreach_mul_.Scalar": (some, 0.5),
        "_foreach_lerp_.Scalar": (some, others, 0.25),
        "_foreach_addcmul_.Scalar": (some, others, others, 0.25),
        "_foreach_sqrt": (some,),
        "_foreach_div_.ScalarList": (some, [0.5, 0.25]),
        "_foreach_addcdiv_.ScalarList": (some, others, others, [0.5, 0.25]),
    }
    keywords: dict[str, list[dict[str, Any]]] = {
        "addmm": [{}, {"beta": 0.5, "alpha": 2}],
        "clone": [{}, {"memory_format": torch.contiguous_format}],
        "gelu": [{}, {"approximate": "tanh"}],
        "_foreach_add_.List": [{}, {"alpha": -0.1}],
    }
    return [(several.get(short, (one,)), each) for each in keywords.get(short, [{}])]


@pytest.mark.parametrize("name", BINDINGS)
def test_a_binding_calls_its_operator_and_no_other(name: str) -> None:
    called: list[Any] = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append((func, len(args), kwargs))
            return func(*args, **(kwargs or {}))

    for arguments, keywords in arguments_of(name):
        called.clear()
        copies = tree_map(lambda a: a.clone() if isinstance(a, torch.Tensor) else a, arguments)
        noted: Any = Noted
        with noted(), torch.no_grad():
            result = BINDINGS[name](*arguments, **keywords)
        assert [func for func, _, _ in called] == [find_overload(name)]
        assert called[0][2] == keywords
        expected = find_overload(name)(*copies, **keywords)
        if expected is not None:
            torch.testing.assert_close(result, expected, rtol=0, atol=0)
        written = [part for part in tree_leaves(arguments) if isinstance(part, torch.Tensor)]
        as_written = [part for part in tree_leaves(copies) if isinstance(part, torch.Tensor)]
        torch.testing.assert_close(written, as_written, rtol=0, atol=0)
