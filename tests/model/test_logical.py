from __future__ import annotations

from dataclasses import replace

import pytest

from neurontools.model import DeviceMemory, logical_cores
from tests.harness.snapshots import snapshot_of


@pytest.mark.parametrize(("lnc", "count", "size"), [(None, 64, 2), (1, 128, 1), (2, 64, 2)])
def test_physical_cores_in_groups(lnc: int | None, count: int, size: int) -> None:
    groups = logical_cores(snapshot_of("trn2.48xlarge"), lnc)
    assert [group.index for group in groups] == list(range(count))
    assert [core.index for group in groups for core in group.cores] == list(range(128))
    assert {len(group.cores) for group in groups} == {size}
    assert all(core.device_index == group.device_index for group in groups for core in group.cores)


def test_a_group_sums_up_its_cores() -> None:
    snapshot = snapshot_of("trn2.3xlarge")
    first, second, *rest = snapshot.cores
    cores = (
        replace(
            first,
            owner_pid=9,
            utilization_ratio=0.5,
            flops_per_second=3.0,
            memory=DeviceMemory(tensors_bytes=5, constants_bytes=None),
        ),
        replace(
            second,
            owner_pid=7,
            utilization_ratio=None,
            flops_per_second=4.0,
            memory=DeviceMemory(tensors_bytes=6, constants_bytes=None),
        ),
        *rest,
    )
    group, idle, *_ = logical_cores(replace(snapshot, cores=cores))
    assert group.owner_pids == (7, 9)
    assert group.utilization_ratio == 0.5, "of those that are known"
    assert group.flops_per_second == 7.0
    assert (group.memory.tensors_bytes, group.memory.constants_bytes) == (11, None)
    assert (idle.owner_pids, idle.utilization_ratio, idle.flops_per_second) == ((), None, None)


def test_a_core_that_could_not_be_read_leaves_its_group_smaller() -> None:
    snapshot = snapshot_of("trn2.3xlarge")
    groups = logical_cores(replace(snapshot, cores=snapshot.cores[1:]))
    assert [group.index for group in groups] == [0, 1, 2, 3]
    assert [len(group.cores) for group in groups] == [1, 2, 2, 2]
