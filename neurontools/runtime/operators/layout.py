"""Layouts of device tensors: shape, strides and element type. Layouts are interned, so their IDs can be compared."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import count

import torch

from neurontools.runtime.operators.lru_cache import LRUCache

_ADDRESS_STEP = 256
_ids = count()


class TensorLayout:
    """The layout of a tensor without its storage offset. Equal layouts in use are the same object.

    `extent` is the number of elements from the first to the last in memory, and `nbytes` is their size in HBM.
    `device_dtype` is the element type in HBM, narrower than `dtype` under XLA_USE_BF16 and XLA_DOWNCAST_BF16.
    `span_bytes` is the address range that a storage of this layout reserves. `structure` caches the arguments with
    which torch creates a tensor of this layout.
    """

    def __init__(
        self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device_dtype: torch.dtype
    ) -> None:
        self.id = next(_ids)
        self.size = tuple(size)
        self.stride = tuple(stride)
        self.dtype = dtype
        self.device_dtype = device_dtype
        self.ndim = len(size)
        self.extent = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if all(size) else 0
        self.nbytes = self.extent * device_dtype.itemsize
        self.span_bytes = max(1, -(-self.extent * dtype.itemsize // _ADDRESS_STEP)) * _ADDRESS_STEP
        self.structure: memoryview | None = None
        array = ctypes.c_int64 * max(1, self.ndim)
        self._c_size = array(*size)
        self._c_stride = array(*stride)
        self.size_address = ctypes.addressof(self._c_size)
        self.stride_address = ctypes.addressof(self._c_stride)

    @property
    def has_ambiguous_strides(self) -> bool:
        """Whether a dimension of size 1 has an unusual stride, so that two kernels may choose different strides.

        The strides of a contiguous tensor and of a batch of one example are usual.
        """
        if 1 not in self.size or not self.extent:
            return False
        contiguous = []
        count = 1
        for size in reversed(self.size):
            contiguous.append(count)
            count *= size
        if self.stride == tuple(reversed(contiguous)):
            return False
        # A batch of one example is not ambiguous: the stride of its first dimension spans all other dimensions.
        is_batch_of_one = self.stride[0] == count and 1 not in self.size[1:] and max(self.stride[1:]) < count
        return not is_batch_of_one

    @property
    def repeats_elements(self) -> bool:
        """Whether several elements are at one address, as in an expanded tensor. In-place operators refuse it."""
        return any(size > 1 and stride == 0 for size, stride in zip(self.size, self.stride, strict=True))

    @property
    def is_dense(self) -> bool:
        """Whether the elements fill their range of memory, each at an address of its own."""
        expected = 1
        for stride, size in sorted((stride, size) for size, stride in zip(self.size, self.stride, strict=True)):
            if size > 1:
                if stride != expected:
                    return False
                expected *= size
        return self.extent > 0

    @property
    def is_channels_last(self) -> bool:
        """Whether the channels of images or volumes are closer to each other in memory than pixels of a row."""
        return self.ndim in (4, 5) and self.stride[-1] >= self.size[1] * self.stride[1] > 0

    def agrees_with(self, value: torch.Tensor) -> bool:
        """Returns whether a CPU tensor has this layout. Ignores the strides of dimensions of size 1."""
        return (
            value.shape == self.size
            and value.dtype in (self.dtype, self.device_dtype)
            and (
                not self.extent
                or all(n == 1 or a == b for n, a, b in zip(self.size, value.stride(), self.stride, strict=True))
            )
        )

    def text(self) -> str:
        """Returns the layout as text, such as `float32[2,3]{3,1}`. Adds the element type in HBM if it differs."""
        short = str(self.dtype).removeprefix("torch.")
        if self.device_dtype is not self.dtype:
            short += f":{str(self.device_dtype).removeprefix('torch.')}"
        return f"{short}[{','.join(map(str, self.size))}]{{{','.join(map(str, self.stride))}}}"


class LayoutTable:
    """All layouts in use.

    `narrowed` maps an element type to its narrower type in HBM. The first new layout calls `find_narrowed_types`
    for this map, because scripts set XLA_USE_BF16 after their imports.
    """

    def __init__(self) -> None:
        self._layouts: LRUCache[tuple[object, ...], TensorLayout] = LRUCache(16384)
        self._is_settled = False
        self.find_narrowed_types: Callable[[], dict[torch.dtype, torch.dtype]] = dict
        self.narrowed: dict[torch.dtype, torch.dtype] = {}
        self.has_complex = False  # conjugate and negative views exist only for complex tensors

    @property
    def young(self) -> dict[tuple[object, ...], TensorLayout]:
        """The recently used layouts by (size, stride, dtype), for the recorder's look-ups."""
        return self._layouts.young

    def layout_of(self, tensor: torch.Tensor) -> TensorLayout:
        return self.get(tensor.shape, tensor.stride(), tensor.dtype)

    def get(self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> TensorLayout:
        key = (size, stride, dtype)
        found = self._layouts.get(key)
        if found is None:
            if not self._is_settled:
                self._is_settled = True
                self.narrowed = self.find_narrowed_types()
            self.has_complex = self.has_complex or dtype.is_complex
            found = TensorLayout(size, stride, dtype, self.narrowed.get(dtype, dtype))
            self._layouts.put((found.size, found.stride, dtype), found)
        return found


layouts = LayoutTable()
