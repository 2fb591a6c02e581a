"""ATen operators with the properties that the device needs, and signatures of operator calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import torch

from neurontools.runtime.operators.flops import find_flop_formula
from neurontools.runtime.operators.layout import TensorLayout, layouts
from neurontools.runtime.operators.lru_cache import LRUCache

_operator_ids = count()
# Operators whose number arguments decide the result size. These numbers are constants in a graph, not inputs.
_SIZED_BY_NUMBERS = frozenset({"aten::arange", "aten::range"})
# Operators with these tags promote mixed types by the same code on meta tensors and on the CPU.
_PROMOTING_TAGS = frozenset({torch.Tag.core, torch.Tag.pointwise})
# Argument types whose numbers are inputs of a graph, so that a new learning rate needs no new graph.
# "Tensor" is among these types because torch passes the 2 of `x * 2` as a number for a tensor argument.
_LIFTED_TYPES = frozenset(
    {"Tensor", "Optional[Tensor]", "number", "Optional[number]", "List[number]", "float", "Optional[float]"}
)
# Operators that the Neuron compiler computes in a narrower type under --auto-cast matmult.
MATMUL_NAMES = frozenset(
    "aten::" + name
    for name in (
        "mm bmm addmm addmv mv baddbmm addbmm addr dot vdot convolution _convolution convolution_backward "
        "convolution_overrideable linear _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_flash_attention_for_cpu_backward mkldnn_convolution"
    ).split()
)

# Operators whose CPU kernels refuse an `out=` tensor that is also an argument.
_NEVER_COINCIDE = frozenset(
    "aten::" + name
    for name in "cat gather index index_add index_copy index_select linalg_cross scatter scatter_add take".split()
)


def counter_name(name: str) -> str | None:
    """Returns torch_xla's counter for an operator in a graph, such as xla::add; None for other operators than ATen's.

    An in-place operator counts as its functional form, because torch_xla records that form.
    """
    namespace, _, base = name.partition(".")[0].partition("::")
    if namespace != "aten":
        return None
    return "xla::" + (base if base.endswith("__") else base.removesuffix("_"))


class DeviceOperator:
    """An ATen or custom operator, with the properties that the device needs.

    `call` computes the operator on CPU tensors, `meta_call` on meta tensors; both default to the operator itself.
    `writes` has the changed arguments as (position, name). `returns` has, for each result, the changed argument that is
    the result, or None for a new tensor. If there is one result, a changed argument, `changed_result` is its name. A
    `random` operator draws from the device's generator. An `effect` operator must run even if its results are unused. A
    `dynamic` operator runs eagerly, because its result layouts depend on values or its results are views of arguments.
    If an operator `may_coincide`, its changed tensor may also be another argument, as in `x.mul_(x)`.
    The meta kernel of a `trusted` operator returns the same layouts as its CPU kernel. Without `trusted`, the first
    call of each signature runs eagerly, and compares these layouts.
    """

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
        self.id = next(_operator_ids)
        self.op = op
        self.name: str = op.name()
        self.counter = counter_name(self.name)
        self.call: Callable[..., Any] = call or getattr(op, "_op", op)
        self.meta_call: Callable[..., Any] = meta_call or call or op
        self.has_generator = any(a.name == "generator" for a in arguments)
        self.has_device = any(a.name == "device" for a in arguments)
        self.random = random or self.has_generator
        self.effect = effect
        self.mixed_devices = mixed_devices
        self.flop_formula = find_flop_formula(op)
        self.matmul = self.name.partition(".")[0] in MATMUL_NAMES
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        data_dependent = torch.Tag.dynamic_output_shape in op.tags or torch.Tag.data_dependent_output in op.tags
        self.dynamic = is_view or data_dependent
        written = [(i, a.name) for i, a in enumerate(arguments) if _is_written(a) or a.name in writes]
        self.writes: tuple[tuple[int, str], ...] = tuple(written)
        self.out_names: tuple[str, ...] = tuple(a.name for a in arguments if a.is_out)
        self.returns: tuple[tuple[int, str] | None, ...] = tuple(
            _returned_argument(r, arguments) for r in schema.returns
        )
        # torch's composite operators pass a result of theirs also as an argument, for example to addmm and where.
        self.may_coincide = (
            torch.Tag.pointwise in op.tags
            or is_batched(self.name)
            or (bool(self.out_names) and self.name.partition(".")[0] not in _NEVER_COINCIDE)
        )
        self.in_place = all(r is not None for r in self.returns)
        only = self.returns[0] if len(self.returns) == 1 and not self.out_names else None
        self.changed_result = None if only is None else only[1]
        has_own_kernel = call is not None or meta_call is not None
        self.trusted = self.in_place or has_own_kernel or self.name in verified_names() or is_batched(self.name)
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

    def with_number(self, position: int) -> DeviceOperator:
        """Returns the overload that accepts a number at `position`. Raises NotImplementedError if no overload does."""
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

    def call_for(self, arguments: Sequence[Any], layouts: Sequence[TensorLayout | None]) -> Callable[..., Any]:
        """Returns the function that computes calls with these arguments and layouts. The default is `call`.

        Subclasses override this method to choose a faster function once per program instead of in each execution.
        """
        del arguments, layouts
        return self.call

    def flop_count(self, arguments: list[Any], keywords: dict[str, Any], result: Any) -> int:
        """Returns the FLOPs of a call, whose arguments are meta tensors. 0 without a FLOP formula."""
        if self.flop_formula is None:
            return 0
        return int(self.flop_formula(*arguments, **keywords, out_val=result))


def is_batched(name: str) -> bool:
    return name.startswith(("aten::_foreach", "aten::_fused"))


@cache
def verified_names() -> frozenset[str]:
    """Returns the ATen operators whose meta kernels agree with their CPU kernels, as the tests found by comparison."""
    return frozenset(Path(__file__).with_name("verified_operators.txt").read_text().split())


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def _returned_argument(result: Any, arguments: Any) -> tuple[int, str] | None:
    if not _is_written(result):
        return None
    for position, argument in enumerate(arguments):
        if _is_written(argument) and argument.alias_info.before_set == result.alias_info.before_set:
            return position, argument.name
    return None


def find_overload(name: str) -> Any:
    """Returns the torch overload with a full name such as `aten::add.Tensor`. Raises AttributeError if none exists."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


class OperatorTable:
    """The operators of the device by full name, such as `aten::add.Tensor`. Compiled models contain these names."""

    def __init__(self) -> None:
        self.by_name: dict[str, DeviceOperator] = {}
        self._undescribed: dict[str, Callable[[], DeviceOperator]] = {}

    @property
    def names(self) -> list[str]:
        """The names of all operators that have a kernel, whether they are described or not."""
        return [*self.by_name, *self._undescribed]

    def add_undescribed(self, name: str, describe: Callable[[], DeviceOperator]) -> None:
        """Adds an operator that `describe` returns when it is used first. A script uses few of all operators."""
        self._undescribed[name] = describe

    def add(self, operator: DeviceOperator) -> DeviceOperator:
        self.by_name[operator.name] = operator
        return operator

    def get(self, name: str) -> DeviceOperator:
        """Returns the operator with this name. The first call for a name creates the operator from torch's schema."""
        found = self.by_name.get(name)
        if found is None:
            describe = self._undescribed.pop(name, None)
            found = self.add(DeviceOperator(find_overload(name)) if describe is None else describe())
        return found


operators = OperatorTable()


Tensor = torch.Tensor
_signature_ids = count()


class TensorSlot:
    """A device tensor argument. Its storage offset is the call's scalar number `offset`, or 0 if `offset` is None."""

    __slots__ = ("layout", "offset", "slot")

    def __init__(self, slot: int, layout: TensorLayout, offset: int | None) -> None:
        self.slot = slot
        self.layout = layout
        self.offset = offset

    def overlaps(self, other: TensorSlot, scalars: Sequence[Any], *, may_coincide: bool) -> bool:
        """Returns whether two dense views of one storage share elements. With `may_coincide`, equal views may."""
        begin, end = self._range_bytes(scalars)
        other_begin, other_end = other._range_bytes(scalars)
        if may_coincide and (begin, end) == (other_begin, other_end):
            return self.layout.stride != other.layout.stride
        return begin < other_end and other_begin < end

    def _range_bytes(self, scalars: Sequence[Any]) -> tuple[int, int]:
        offset = 0 if self.offset is None else scalars[self.offset]
        size = self.layout.dtype.itemsize
        return offset * size, (offset + self.layout.extent) * size


class ScalarSlot:
    """A number argument, whose value may differ between executions."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class HostSlot:
    """A CPU tensor argument. The graph stores a copy of the tensor."""

    __slots__ = ("dtype", "index", "text")

    def __init__(self, index: int, tensor: Tensor) -> None:
        self.index = index
        self.dtype = tensor.dtype
        self.text = f"{tensor.dtype}{list(tensor.shape)}"


class NotRecordable(Exception):
    """A graph can't contain this call, so it must run eagerly, for example because result layouts depend on values."""


class NumberForTensor(Exception):
    """The script passed a number for a tensor argument. Another overload of the operator must take the call."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


class Unverified(Exception):
    """The meta kernel was not yet compared with the CPU kernel for a signature, so its first call runs eagerly."""

    def __init__(self, key: tuple[Any, ...], signature: OperatorSignature) -> None:
        super().__init__(signature.operator.name)
        self.key = key
        self.signature = signature


class NeedsResize(Exception):
    """The result of an `out=` call has another shape than the `out` tensor, which must be resized."""


class OperatorSignature:
    """An operator call without tensor data and without the values of numbers that may differ between executions.

    `outputs` has a layout or a list of layouts for each result, but None for a result that is a changed argument.
    `overlap_candidates` has pairs of a changed tensor and another one, which must not overlap.
    """

    def __init__(self, operator: DeviceOperator, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.id = next(_signature_ids)
        self.operator = operator
        for position in operator.tensor_positions:
            if position < len(arguments) and isinstance(arguments[position], (int, float, complex)):
                raise NumberForTensor(position)
        template = _Template(operator)
        self.arguments = [template.make_slot(a, n in operator.lifted_positions) for n, a in enumerate(arguments)]
        self.keywords = {name: template.make_slot(a, name in operator.lifted_names) for name, a in keywords.items()}
        self.tensor_count = template.tensor_count
        self.scalar_count = len(template.scalars)
        self.host_count = len(template.hosts)
        given: dict[Any, Any] = {**dict(enumerate(self.arguments)), **self.keywords}
        written = [s for position, name in operator.writes for s in _tensor_slots(given.get(name, given.get(position)))]
        self.written_slots = tuple(slot.slot for slot in written)
        self.overlap_candidates = () if operator.effect else self._find_overlap_candidates(written)
        result, self.flops = self._on_meta(template)
        self.outputs = self._layouts_of(result)
        if self._fills_from_empty_arguments():
            self._run_on_zeros(template)
        elif self._mixes_types():
            self._use_layouts_of_cpu(template)
        elif self._may_differ_in_strides():
            with suppress(NotRecordable):  # some CPU kernels fail on zeros, such as integer division
                self._use_layouts_of_cpu(template)
        self.single = self.outputs[0] if len(self.outputs) == 1 and isinstance(self.outputs[0], TensorLayout) else None
        self.result_count = sum(1 for _ in flattened(self.outputs))
        self._text: str | None = None

    def _find_overlap_candidates(self, written: list[TensorSlot]) -> tuple[tuple[TensorSlot, TensorSlot], ...]:
        if any(slot.layout.repeats_elements for slot in written):
            raise NotRecordable(self.operator.name)  # most CPU kernels refuse to change such a tensor
        given = [*self.arguments, *self.keywords.values()]
        if is_batched(self.operator.name):
            if not self.operator.name.startswith("aten::_foreach"):
                return ()  # the CPU kernels do not check
            pairs = [pair for a in given[1:] for pair in _pairs(written, a)]
        else:
            pairs = [(one, other) for one in written for other in _tensor_slots(given) if other is not one]
        dense = {slot for slot in _tensor_slots(given) if slot.layout.is_dense}
        return tuple(pair for pair in pairs if dense.issuperset(pair))

    def slots_in_one_storage(self, indices: Sequence[int]) -> set[int]:
        """Returns the tensors that share a storage with a changed tensor. `indices` has the storage of each tensor."""
        pairs = ((one.slot, other.slot) for one, other in self.overlap_candidates)
        return {slot for pair in pairs if indices[pair[0]] == indices[pair[1]] for slot in pair}

    def _on_meta(self, template: _Template) -> tuple[Any, int]:
        operator = self.operator
        if operator.effect and operator.in_place:
            return None, 0  # no meta call of a collective: it would communicate
        if operator.dynamic and not (operator.name == "aten::index.Tensor" and not _has_mask(self.arguments)):
            raise NotRecordable(operator.name)
        values = [template.build_argument(a) for a in self.arguments]
        keywords = {name: template.build_argument(a) for name, a in self.keywords.items() if name != "generator"}
        if operator.has_device:
            keywords["device"] = torch.device("meta")
        before = [keywords[name].shape for name in operator.out_names if isinstance(keywords.get(name), Tensor)]
        try:
            with torch.no_grad():
                result = operator.meta_call(*values, **keywords)
        except Exception as error:
            # The CPU kernel may accept the call. If not, it raises an error whose text users know.
            if operator.in_place and not operator.out_names and _is_inconclusive(error):
                return None, 0
            raise NotRecordable(operator.name) from None
        after = [keywords[name].shape for name in operator.out_names if isinstance(keywords.get(name), Tensor)]
        if before != after:
            raise NeedsResize(operator.name)
        return result, operator.flop_count(values, keywords, result)

    def _layouts_of(self, result: Any) -> tuple[Any, ...]:
        operator = self.operator
        if operator.in_place:
            return ()
        results = result if len(operator.returns) > 1 else (result,)
        return tuple(
            None if written is not None else _layout_tree(value, operator.name)
            for value, written in zip(results, operator.returns, strict=True)
        )

    def _fills_from_empty_arguments(self) -> bool:
        given = [slot.layout for slot in _tensor_slots([*self.arguments, *self.keywords.values()])]
        if not given or self.host_count or any(0 not in layout.size for layout in given):
            return False
        return any(isinstance(output, TensorLayout) and 0 not in output.size for output in self.outputs)

    def _run_on_zeros(self, template: _Template) -> Any:
        """Runs the CPU kernel on zeros of the same layouts and returns the result.

        Raises NotRecordable if the CPU kernel fails, as `max` of an empty tensor does, although the meta kernel accepts
        the call. The eager call then raises the error that users know.
        """
        operator = self.operator
        values = [template.build_argument(argument, "cpu") for argument in self.arguments]
        keywords = {name: template.build_argument(a, "cpu") for name, a in self.keywords.items() if name != "generator"}
        if operator.has_device:
            keywords["device"] = torch.device("cpu")
        if operator.has_generator:
            # a draw from the script's random generator would change the script's results
            keywords["generator"] = torch.Generator()
        try:
            with torch.no_grad(), torch._C._DisableAutocast():
                return operator.call(*values, **keywords)
        except Exception:
            raise NotRecordable(operator.name) from None

    def _mixes_types(self) -> bool:
        """Returns whether floating-point arguments have several types, for which only the CPU kernel knows the result.

        Many kernels refuse them, or return another type than the meta kernel.
        """
        op = self.operator.op
        if not self._can_run_on_zeros() or is_batched(self.operator.name) or _PROMOTING_TAGS.issubset(op.tags):
            return False
        given = _tensor_slots([*self.arguments, *self.keywords.values()])
        return len({slot.layout.dtype for slot in given if slot.layout.dtype.is_floating_point}) > 1

    def _can_run_on_zeros(self) -> bool:
        operator = self.operator
        return not (
            operator.effect
            or (operator.random and not operator.has_generator)
            or (operator.writes and self.host_count)
            or not operator.name.startswith("aten::")
        )

    def _may_differ_in_strides(self) -> bool:
        """Returns whether meta and CPU kernels may disagree about strides: of dimensions of size 1, or of images.

        The kernels agree if all inputs are contiguous. Returns False for operators that may have side effects, and for
        matrix products, which are expensive and choose their own layout.
        """
        operator = self.operator
        if not self.outputs or not self._can_run_on_zeros():
            return False
        given = [slot.layout for slot in _tensor_slots([*self.arguments, *self.keywords.values()])]
        if any(layout.is_channels_last for layout in given):
            return operator.flop_formula is None or "convolution" in operator.name
        return operator.flop_formula is None and any(layout.has_ambiguous_strides for layout in given)

    def _use_layouts_of_cpu(self, template: _Template) -> None:
        result = self._run_on_zeros(template)
        results = result if len(self.operator.returns) > 1 else (result,)
        self.outputs = tuple(map(_with_layout_of, self.outputs, results))

    def agrees_with(self, results: list[Any]) -> bool:
        """Returns whether the CPU kernel's results have the layouts that the meta kernel returned."""
        announced = [output for output in self.outputs if output is not None]
        new_results = [r for r, written in zip(results, self.operator.returns, strict=True) if written is None]
        return _layouts_agree(announced, [value for value in new_results if value is not None])

    def text(self) -> str:
        """Returns the call as text for a graph. Device tensors are named %0, %1; numbers $0, $1; CPU tensors @0, @1."""
        if self._text is None:
            arguments = [_format_argument(a) for a in self.arguments]
            arguments += [f"{name}={_format_argument(a)}" for name, a in sorted(self.keywords.items())]
            outputs = ", ".join(_format_argument(o) for o in self.outputs)
            self._text = f"{self.operator.name}({', '.join(arguments)}) -> ({outputs})"
        return self._text


signatures: LRUCache[tuple[Any, ...], OperatorSignature] = LRUCache(8192)
"""The signatures in use, by the recorder's key of a call: operator ID and arguments."""


class _Template:
    """Converts the arguments of a call to slots, and numbers the slots in the order of the recorder's inputs."""

    def __init__(self, operator: DeviceOperator) -> None:
        self.operator = operator
        self.tensor_count = 0
        self.scalars: list[Any] = []
        self.hosts: list[Tensor] = []

    def make_slot(self, value: Any, lifted: bool) -> Any:
        if isinstance(value, Tensor):
            if value.is_cpu:
                self.hosts.append(value)
                return HostSlot(len(self.hosts) - 1, value)
            offset = value.storage_offset()
            if offset:
                self.scalars.append(offset)
            self.tensor_count += 1
            return TensorSlot(
                self.tensor_count - 1, layouts.layout_of(value), len(self.scalars) - 1 if offset else None
            )
        if isinstance(value, (list, tuple)):
            return [self.make_slot(item, lifted) for item in value]
        if lifted and value.__class__ in (float, int):
            self.scalars.append(value)
            return ScalarSlot(len(self.scalars) - 1)
        return value

    def build_argument(self, slot: Any, where: str = "meta") -> Any:
        """Returns the argument for a slot. A device tensor becomes a meta tensor, or zeros if `where` is "cpu"."""
        if isinstance(slot, TensorSlot):
            layout = slot.layout
            tensor = torch.empty_strided(layout.size, layout.stride, dtype=layout.dtype, device=where)
            return tensor if where == "meta" else tensor.zero_()
        if isinstance(slot, ScalarSlot):
            return self.scalars[slot.index]
        if isinstance(slot, HostSlot):
            return self.hosts[slot.index]
        if isinstance(slot, list):
            return [self.build_argument(item, where) for item in slot]
        return slot


def _is_inconclusive(error: Exception) -> bool:
    """Whether a meta kernel failed because it is missing or needs data, and not because of wrong arguments."""
    text = str(error).lower()
    words = ("meta", "dispatch", "fake", "data-dependent", "symint")
    return isinstance(error, NotImplementedError) or any(word in text for word in words)


def flattened(tree: Any) -> Iterator[Any]:
    """Yields the leaves of nested lists, except None."""
    if isinstance(tree, (list, tuple)):
        for item in tree:
            yield from flattened(item)
    elif tree is not None:
        yield tree


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Returns `value` with `change` applied to its tensors, also in nested sequences, which become lists."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [map_tensors(item, change) for item in value]
    return value


def _tensor_slots(template: Any) -> list[TensorSlot]:
    return [slot for slot in flattened(template) if isinstance(slot, TensorSlot)]


def _pairs(changed: list[TensorSlot], argument: Any) -> Iterator[tuple[TensorSlot, TensorSlot]]:
    """Yields each changed tensor of a `_foreach_` operator with the tensor that another argument has for it."""
    others = argument if isinstance(argument, list) else [argument] * len(changed)
    for one, other in zip(changed, others, strict=False):
        if isinstance(other, TensorSlot):
            yield one, other


def _has_mask(arguments: list[Any]) -> bool:
    """Returns whether an index is a mask. The size of the result is then the mask's number of true elements."""
    masks = (torch.bool, torch.uint8)
    slots = list(flattened(arguments[1:]))
    return any(slot.layout.dtype in masks for slot in slots if isinstance(slot, TensorSlot)) or any(
        slot.dtype in masks for slot in slots if isinstance(slot, HostSlot)
    )


def _layout_tree(value: Any, name: str) -> Any:
    if isinstance(value, Tensor):
        return layouts.layout_of(value)
    if isinstance(value, (list, tuple)):
        return [_layout_tree(item, name) for item in value]
    if value is None:
        return None
    raise NotRecordable(name)


def _with_layout_of(output: Any, result: Any) -> Any:
    """Returns the result layouts with the strides and types that the CPU kernel's results have."""
    if isinstance(output, list):
        return [_with_layout_of(layout, value) for layout, value in zip(output, result, strict=True)]
    if output is None or result.shape != output.size:
        return output
    return layouts.get(output.size, output.stride if 0 in result.stride() else result.stride(), result.dtype)


def _layouts_agree(announced: Any, actual: Any) -> bool:
    if isinstance(announced, list):
        return (
            isinstance(actual, (list, tuple))
            and len(announced) == len(actual)
            and all(_layouts_agree(a, m) for a, m in zip(announced, actual, strict=True))
        )
    if announced is None or not isinstance(actual, Tensor):
        return announced is actual
    return bool(announced.agrees_with(actual))


def _format_argument(part: Any) -> str:
    if isinstance(part, TensorSlot):
        return f"%{part.slot}:{part.layout.text()}" + ("" if part.offset is None else f"+${part.offset}")
    if isinstance(part, ScalarSlot):
        return f"${part.index}"
    if isinstance(part, HostSlot):
        return f"@{part.index}:{part.text}"
    if isinstance(part, TensorLayout):
        return part.text()
    if isinstance(part, list):
        return "[" + ", ".join(_format_argument(item) for item in part) + "]"
    return repr(part)
