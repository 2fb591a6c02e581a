"""Storages of device tensors: each has an address that can't be read, and a memory word that shows if it is alive.

torch makes a tensor from the structure that a DLPack capsule points at. A structure has eight words. All structures lie
side by side in memory that is never freed. When the last view of a storage is gone, torch calls its deleter. This is
the C library's pthread_spin_unlock, which only writes a constant to the lower half of the structure's first word. That
word is the address of the storage, so a storage is alive while the word is unchanged. No Python object is needed, and
no Python code runs when a storage dies. A storage may die in any thread, in a garbage collection, or after the
interpreter has ended.
"""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from neurontools.runtime.operators.layout import TensorLayout

_EXTENSION_DEVICE = 12  # kDLExtDev of DLPack, which torch maps to PrivateUse1
_WORDS = 8  # words of 8 bytes: data, device, dimensions and type, sizes, strides, offset, context, deleter
_BYTES = 8 * _WORDS
_MOST = 1 << 23
_REGION_BYTES = (1 << 44, 1 << 40, 1 << 36)
# The lowest byte of a slot's first word tells the state of its storage. _LIVE_BYTE is the last byte of all addresses.
# _RELEASED_BYTE marks a new slot, and a slot whose dead storage `pop_dead` has returned. Deleters write neither byte.
_LIVE_BYTE, _RELEASED_BYTE = 0x80, 0x81
_PROT_NONE, _PROT_READ_WRITE, _PRIVATE_ANONYMOUS_NORESERVE = 0, 3, 0x4022
NAME = b"dltensor"

capsule_of: Any = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_capsule_pointer: Any = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
from_dlpack: Any = torch._C._from_dlpack


def _map_pages(size: int, protection: int) -> int | None:
    libc: Any = ctypes.CDLL(None, use_errno=True)
    mmap = ctypes.CFUNCTYPE(
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long, use_errno=True
    )(("mmap", libc))
    base = mmap(None, size, protection, _PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
    return None if base in (None, ctypes.c_void_p(-1).value) else int(base)


class SlotRange:
    """Adjacent slots of memory. Each slot holds the DLPack structure of one storage: its layout and its address."""

    __slots__ = ("addresses", "end", "live_count", "pointers", "slots", "span_bytes", "start")

    def __init__(self, start: int, count: int, base: int) -> None:
        self.start = start
        self.end = start + count * _WORDS
        self.slots = range(start, self.end, _WORDS)
        self.pointers = [base + slot * 8 for slot in self.slots]
        self.addresses: list[int] = []
        self.span_bytes = 0
        self.live_count = 0


class Storages:
    """The DLPack structures and addresses of all device storages. The caller holds the runtime's lock.

    Maps its memory at the first use. A slot is the index of a structure in `words`. Single slots are taken from the
    beginning, ranges from the end.
    """

    def __init__(self) -> None:
        self.words: Any = None
        self._bytes: Any = None
        self._base = 0
        self._deleter = 0
        self._dead_byte = 0
        self._free_slots: list[int] = []
        self._end = 0
        self._ranges_begin = _MOST * _WORDS
        self._ranges: list[SlotRange] = []
        self._free_ranges: list[SlotRange] = []
        self._watched: list[SlotRange] = []
        self._types: dict[torch.dtype, int] = {}
        self._first_address = self._last_address = 0
        self._address = self._gap_end = 0
        self.used_addresses: Callable[[], list[tuple[int, int]]] = list

    def tensor(self, layout: TensorLayout, local_index: int) -> tuple[torch.Tensor, int, int]:
        """Creates a device tensor with a storage of its own. Returns the tensor, the slot and the address.

        Raises MemoryError if no slot or no address is left.
        """
        slot = self._free_slots.pop() if self._free_slots else self._new_slot()
        address = self._address
        following = address + layout.span_bytes
        if following > self._gap_end:
            address = self._next_gap(layout.span_bytes)
            following = address + layout.span_bytes
        self._address = following
        words = self.words
        words[slot : slot + _WORDS] = layout.structure or self._structure(layout)
        words[slot] = address
        if local_index:
            words[slot + 1] = _EXTENSION_DEVICE | local_index << 32
        return from_dlpack(capsule_of(self._base + slot * 8, NAME, None)), slot, address

    def allocate_range(self, layouts: Sequence[TensorLayout], local_index: int) -> SlotRange:
        """Allocates a range for storages of these layouts. Raises MemoryError if no slot or no address is left.

        To create a storage in a slot, the caller first writes the storage's address to the slot.
        """
        if self.words is None:
            self._map_memory()
        count = len(layouts)
        slot_range = next((free for free in self._free_ranges if len(free.slots) == count), None)
        if slot_range is None:
            start = self._ranges_begin - count * _WORDS
            if start <= self._end:
                raise MemoryError(f"more than {_MOST} storages on the simulated device")
            self._ranges_begin = start
            slot_range = SlotRange(start, count, self._base)
        else:
            self._free_ranges.remove(slot_range)
        slot_range.span_bytes = sum(layout.span_bytes for layout in layouts)
        address = self._address
        if address + slot_range.span_bytes > self._gap_end:
            address = self._next_gap(slot_range.span_bytes)
        self._address = address + slot_range.span_bytes
        slot_range.addresses = []
        for slot, layout in zip(slot_range.slots, layouts, strict=True):
            self.words[slot : slot + _WORDS] = layout.structure or self._structure(layout)
            self.words[slot] = _RELEASED_BYTE
            self.words[slot + 1] = _EXTENSION_DEVICE | local_index << 32
            slot_range.addresses.append(address)
            address += layout.span_bytes
        self._ranges.append(slot_range)
        return slot_range

    def is_dead(self, slot_range: SlotRange) -> bool:
        """Returns whether all storages of a range are dead."""
        return bool(self._bytes[slot_range.start * 8 : slot_range.end * 8 : _BYTES].tobytes().find(_LIVE_BYTE) < 0)

    def release_range(self, slot_range: SlotRange) -> None:
        """Releases a range. The caller creates no more storages in the range.

        `pop_dead` returns the storages of the range as they die. Once all are dead, the range can be allocated again.
        """
        first, step = slot_range.start * 8, _BYTES
        living = self._bytes[first : slot_range.end * 8 : step].tobytes()
        for position, byte in enumerate(living):
            if byte != _LIVE_BYTE:
                self._bytes[first + position * step] = _RELEASED_BYTE
        slot_range.live_count = living.count(_LIVE_BYTE)
        if slot_range.live_count:
            self._watched.append(slot_range)
        else:
            self._free(slot_range)

    def pop_dead(self) -> list[int]:
        """Returns the slots of storages that died since the last call, and frees these slots.

        The slots of a released range become free together, when all its storages are dead. Ranges that are not released
        are not checked.
        """
        if not self._end:
            return []
        slots = self._pop_dead_in(0, self._end)
        self._free_slots += slots
        for watched in [*self._watched]:
            found = self._pop_dead_in(watched.start, watched.end)
            slots += found
            watched.live_count -= len(found)
            if not watched.live_count:
                self._watched.remove(watched)
                self._free(watched)
        return slots

    def _free(self, slot_range: SlotRange) -> None:
        self._ranges.remove(slot_range)
        self._free_ranges.append(slot_range)

    def _pop_dead_in(self, start: int, end: int) -> list[int]:
        living = self._bytes[start * 8 : end * 8 : _BYTES].tobytes()
        dead = self._dead_byte
        position = living.find(dead)
        slots = []
        while position >= 0:
            slot = start + position * _WORDS
            self._bytes[slot * 8] = _RELEASED_BYTE
            slots.append(slot)
            position = living.find(dead, position + 1)
        return slots

    def _new_slot(self) -> int:
        if self.words is None:
            self._map_memory()
        slot = self._end
        if slot >= self._ranges_begin:
            raise MemoryError(f"more than {_MOST} storages on the simulated device")
        self._end = slot + _WORDS
        return slot

    def _structure(self, layout: TensorLayout) -> Any:
        """Returns a DLPack structure with this layout and address 0. Caches the structure in the layout."""
        kind = self._types.get(layout.dtype)
        if kind is None:
            seed = torch.empty(1, dtype=layout.dtype, device="cpu")
            capsule = torch._C._to_dlpack(seed)
            kind = self._types[layout.dtype] = ctypes.c_int32.from_address(_capsule_pointer(capsule, NAME) + 20).value
        words = [0, _EXTENSION_DEVICE, layout.ndim | kind << 32, layout.size_address, layout.stride_address]
        layout.structure = memoryview(array.array("q", [*words, 0, 0, self._deleter]))
        return layout.structure

    def _map_memory(self) -> None:
        for size in _REGION_BYTES:
            first = _map_pages(size, _PROT_NONE)
            if first is not None:
                break
        base = _map_pages(_MOST * _BYTES, _PROT_READ_WRITE)
        if first is None or base is None:
            raise MemoryError(
                "no address space for the simulated device; raise the limit of virtual memory (ulimit -v)"
            )
        self._first_address, self._last_address = first, first + size
        self._address = first + _LIVE_BYTE
        self._gap_end = self._last_address
        self._base = base
        self._bytes = memoryview((ctypes.c_ubyte * (_MOST * _BYTES)).from_address(base)).cast("B")
        self.words = self._bytes.cast("q")
        unlock = ctypes.CDLL(None).pthread_spin_unlock
        self._deleter = ctypes.cast(unlock, ctypes.c_void_p).value or 0
        # Finds out what pthread_spin_unlock writes: 1 or 0, depending on the C library and the processor.
        unlock(ctypes.c_void_p(base))
        self._dead_byte = self._bytes[0]

    def _next_gap(self, size: int) -> int:
        """Returns the start of a gap of at least `size` unused addresses. Stores the gap's end in `_gap_end`.

        Searches after the latest allocated address, then from the first address.
        """
        used = sorted([*self.used_addresses(), *((each.addresses[0], each.span_bytes) for each in self._ranges)])
        for beginning in (self._address, self._first_address + _LIVE_BYTE):
            free = beginning
            for first, nbytes in [*used, (self._last_address, 0)]:
                if first - free >= size:
                    self._gap_end = first
                    return free
                free = max(free, first + nbytes)
        raise MemoryError(
            "no addresses are left on the simulated device; raise the limit of virtual memory (ulimit -v)"
        )


storages = Storages()
