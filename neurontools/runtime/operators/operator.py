"""What the recorder has to know of an ATen operator, read once from its schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import torch

from neurontools.runtime.operators.flops import formula
from neurontools.runtime.operators.layout import Layout

_ids = count()
# Their results' sizes come from numbers, so the numbers belong to the graph and not to its inputs.
_SIZED_BY_NUMBERS = frozenset({"aten::arange", "aten::range"})
# Arguments of these types are inputs of a graph: a learning rate that changes does not make a new graph.
# A number where a tensor is expected is what torch makes of `x * 2`.
_LIFTED_TYPES = frozenset(
    {"Tensor", "Optional[Tensor]", "number", "Optional[number]", "List[number]", "float", "Optional[float]"}
)
# The Neuron compiler's "matmult" class: what --auto-cast matmult narrows.
MATMUL_NAMES = frozenset(
    "aten::" + name
    for name in (
        "mm bmm addmm addmv mv baddbmm addbmm addr dot vdot convolution _convolution convolution_backward "
        "convolution_overrideable linear _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_flash_attention_for_cpu_backward mkldnn_convolution"
    ).split()
)


class Operator:
    """An operator as the device runs it.

    `call` computes it on CPU tensors, `meta_call` on meta tensors; both default to the operator itself. `writes` are
    the arguments it changes, as (position, name); `returns` has one entry a result: None for a new tensor, else the
    written argument that it returns. `random` draws from the device's generator, `effect` must run even if nobody
    reads it. `dynamic`: it runs at once, because its results depend on values or are views of its arguments.
    `trusted`: what its meta kernel announces is known to be what the CPU returns; the first call of any other operator
    in each of its signatures runs at once and is compared.
    """

    __slots__ = (
        "call",
        "dynamic",
        "effect",
        "flop_formula",
        "has_device",
        "has_generator",
        "id",
        "in_place",
        "lifted_names",
        "lifted_positions",
        "matmul",
        "meta_call",
        "mixed_devices",
        "name",
        "op",
        "out_names",
        "random",
        "returns",
        "tensor_positions",
        "trusted",
        "writes",
    )

    def __init__(
        self,
        op: Any,
        *,
        call: Callable[..., Any] | None = None,
        meta_call: Callable[..., Any] | None = None,
        random: bool = False,
        effect: bool = False,
        writes: tuple[str, ...] = (),
        mixed_devices: bool = False,
    ) -> None:
        schema = op._schema
        arguments = schema.arguments
        self.id = next(_ids)
        self.op = op
        self.name: str = op.name()
        self.call: Callable[..., Any] = call or getattr(op, "_op", op)
        self.meta_call: Callable[..., Any] = meta_call or call or op
        self.has_generator = any(a.name == "generator" for a in arguments)
        self.has_device = any(a.name == "device" for a in arguments)
        self.random = random or self.has_generator
        self.effect = effect
        self.mixed_devices = mixed_devices
        self.flop_formula = formula(op)
        self.matmul = self.name.partition(".")[0] in MATMUL_NAMES
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        data_dependent = torch.Tag.dynamic_output_shape in op.tags or torch.Tag.data_dependent_output in op.tags
        self.dynamic = is_view or data_dependent
        written = [(i, a.name) for i, a in enumerate(arguments) if _is_written(a) or a.name in writes]
        self.writes: tuple[tuple[int, str], ...] = tuple(written)
        self.out_names: tuple[str, ...] = tuple(a.name for a in arguments if a.is_out)
        self.returns: tuple[tuple[int, str] | None, ...] = tuple(_returned(r, arguments) for r in schema.returns)
        self.in_place = all(r is not None for r in self.returns)
        self.trusted = (
            self.in_place
            or call is not None
            or meta_call is not None
            or self.name in verified_names()
            or is_batched(self.name)
        )
        lifted = [
            (i, a.name)
            for i, a in enumerate(arguments)
            if str(a.type) in _LIFTED_TYPES and self.name.partition(".")[0] not in _SIZED_BY_NUMBERS
        ]
        self.lifted_positions = frozenset(i for i, _ in lifted)
        self.lifted_names = frozenset(name for _, name in lifted)
        takes_numbers = torch._C._should_allow_numbers_as_tensors(self.name.partition("::")[2].partition(".")[0])
        self.tensor_positions = frozenset(
            i for i, a in enumerate(arguments) if str(a.type) == "Tensor" and not takes_numbers
        )

    def with_number(self, position: int) -> Operator:
        """The overload that takes a number at this position; NotImplementedError when there is none."""
        packet = self.op._overloadpacket
        own = self.op._schema.arguments
        for overload in packet.overloads():
            arguments = getattr(packet, overload)._schema.arguments
            if len(arguments) == len(own) and all(
                str(a.type) == ("number" if i == position else str(b.type))
                for i, (a, b) in enumerate(zip(arguments, own, strict=True))
            ):
                return operators.get(getattr(packet, overload).name())
        raise NotImplementedError(f"{self.name}: a number as {own[position].name}")

    def call_for(self, arguments: Sequence[Any], layouts: Sequence[Layout | None]) -> Callable[..., Any]:
        """What computes calls with these arguments, of which tensors have layouts; by default `call`.

        For operators whose way depends on the layouts: it is chosen once, and not in each execution.
        """
        del arguments, layouts
        return self.call

    def flop_count(self, arguments: list[Any], keywords: dict[str, Any], result: Any) -> int:
        """FLOPs of a call with meta tensors; 0 where nothing is multiplied."""
        if self.flop_formula is None:
            return 0
        return int(self.flop_formula(*arguments, **keywords, out_val=result))


def is_batched(name: str) -> bool:
    """Whether an operator does to each tensor of a list what another one does to a single tensor."""
    return name.startswith(("aten::_foreach", "aten::_fused"))


@cache
def verified_names() -> frozenset[str]:
    """The ATen operators whose meta kernels the tests have compared with the CPU; the tests write the file."""
    return frozenset(Path(__file__).with_name("verified_operators.txt").read_text().split())


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def _returned(result: Any, arguments: Any) -> tuple[int, str] | None:
    if not _is_written(result):
        return None
    for position, argument in enumerate(arguments):
        if _is_written(argument) and argument.alias_info.before_set == result.alias_info.before_set:
            return position, argument.name
    return None


def resolve(name: str) -> Any:
    """The torch operator overload of a full name such as `aten::add.Tensor`; AttributeError when there is none."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


class OperatorTable:
    """The operators that the device knows, by full name; compiled models refer to them by it."""

    def __init__(self) -> None:
        self.by_name: dict[str, Operator] = {}

    def add(self, operator: Operator) -> Operator:
        """Makes an operator known."""
        self.by_name[operator.name] = operator
        return operator

    def get(self, name: str) -> Operator:
        """The operator of this name; made from its schema on first use."""
        found = self.by_name.get(name)
        return found if found is not None else self.add(Operator(resolve(name)))


operators = OperatorTable()
