"""The shape of a host: how many cores and HBM stacks it has, and which core belongs where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """Cores and HBM of a host. Cores are physical and numbered across devices, in the logical order of each device."""

    device_count: int
    cores_per_device: int
    stacks_per_device: int
    stack_bytes: int
    default_lnc: int
    supported_lncs: tuple[int, ...]

    @property
    def core_count(self) -> int:
        """Physical cores of the host."""
        return self.device_count * self.cores_per_device

    def logical_core_count(self, lnc: int) -> int:
        """Logical cores of the host when `lnc` physical ones make one."""
        return self.core_count // lnc

    def device_of(self, core_index: int) -> int:
        """The device of a physical core."""
        return core_index // self.cores_per_device

    @property
    def cores_per_stack(self) -> int:
        """Physical cores that allocate from one HBM stack."""
        return self.cores_per_device // self.stacks_per_device

    def stack_of(self, core_index: int) -> int:
        """The HBM stack of a physical core, numbered across devices."""
        return core_index // self.cores_per_stack

    def cores_of_stack(self, stack: int) -> range:
        """The physical cores that allocate from a stack."""
        return range(stack * self.cores_per_stack, (stack + 1) * self.cores_per_stack)

    def physical_cores(self, logical_index: int, lnc: int) -> tuple[int, ...]:
        """The physical cores behind a logical one."""
        return tuple(range(logical_index * lnc, (logical_index + 1) * lnc))
