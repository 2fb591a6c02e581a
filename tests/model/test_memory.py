from __future__ import annotations

from dataclasses import fields, replace

from hypothesis import given
from hypothesis import strategies as st

from neurontools.model import DeviceMemory, HostMemory, memory_categories, sum_device_memory, sum_host_memory

UNKNOWN = DeviceMemory(**dict.fromkeys((field.name for field in fields(DeviceMemory)), None))
sizes = st.none() | st.integers(0, 2**40)
memories = st.builds(DeviceMemory, **{field.name: sizes for field in fields(DeviceMemory)})


def test_the_total_is_that_of_the_known_categories() -> None:
    assert DeviceMemory().total_bytes == 0
    assert DeviceMemory(constants_bytes=3, tensors_bytes=None, collectives_bytes=4).total_bytes == 7
    assert HostMemory(tensors_bytes=3, dma_rings_bytes=4).total_bytes == 7


def test_the_total_of_what_is_unknown_is_unknown() -> None:
    assert UNKNOWN.total_bytes is None
    assert replace(UNKNOWN, notifications_bytes=0).total_bytes == 0


def test_the_categories_are_those_of_the_driver_in_the_order_of_the_tools() -> None:
    assert list(memory_categories(DeviceMemory()))[:5] == [
        "constants_bytes",
        "model_code_bytes",
        "model_shared_scratchpad_bytes",
        "runtime_memory_bytes",
        "tensors_bytes",
    ]
    assert (len(memory_categories(DeviceMemory())), len(memory_categories(HostMemory()))) == (11, 8)


def test_the_sum_of_nothing_is_nothing() -> None:
    assert sum_device_memory([]) == DeviceMemory()
    assert sum_host_memory([]) == HostMemory()


@given(st.lists(memories, min_size=1, max_size=5))
def test_a_category_is_unknown_in_a_sum_only_where_every_part_is(parts: list[DeviceMemory]) -> None:
    for name, summed in memory_categories(sum_device_memory(parts)).items():
        known = [size for part in parts if (size := getattr(part, name)) is not None]
        assert summed == (sum(known) if known else None)


@given(st.lists(memories, min_size=1, max_size=5))
def test_the_total_of_a_sum_is_the_sum_of_the_totals(parts: list[DeviceMemory]) -> None:
    assert (sum_device_memory(parts).total_bytes or 0) == sum(part.total_bytes or 0 for part in parts)
