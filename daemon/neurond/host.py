"""The host that a daemon monitors: the source of its devices, the core allocator, and a synthetic load."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from neurond.allocator import CoreAllocator, HostShape
from neurond.faults import FaultEffects, FaultInjector
from neurond.settings import Settings
from neurond.sources import DeviceSource
from neurond.sources.simulated import SimulatedSource, SyntheticLoad, simulated_shape
from neurond.sources.simulated_power import SimulatedPower
from neurond.system.clocks import SteadyClock
from neurond.system.kernel_log import KernelLogReader
from neurontools import catalog
from neurontools.catalog.facts import check_ultraserver_place
from neurontools.model import Instance
from neurontools.util.errors import EXIT_USAGE, UserError

_PATIENCE_SECONDS = 5.0

_log = logging.getLogger(__name__)

FIRST_WITH_HEALTH = 3  # Trainium2: the first device generation whose driver reports component health


@dataclass(frozen=True, slots=True)
class WatchedHost:
    """A monitored host. `load` is None without a synthetic load; `faults` is None for real devices."""

    source: DeviceSource
    allocator: CoreAllocator
    load: SyntheticLoad | None
    faults: FaultInjector | None = None


def open_host(settings: Settings, on_ownership_change: Callable[[], None], clock: SteadyClock) -> WatchedHost:
    """Opens the simulated instance of the settings, or this host's devices. Raises UserError if that fails."""
    if settings.simulate is None:
        return _own_devices(settings, on_ownership_change)
    try:
        instance_type = catalog.load(settings.simulate)
        shape = simulated_shape(instance_type, settings.lnc)
        place = None if settings.ultraserver is None else check_ultraserver_place(settings.ultraserver, instance_type)
    except catalog.UnknownInstanceType as error:
        raise UserError(f"--simulate: {error}", EXIT_USAGE) from None
    except ValueError as error:
        raise UserError(str(error), EXIT_USAGE) from None
    allocator = CoreAllocator(shape, on_ownership_change, time.monotonic())
    load = _load(settings, allocator, instance_type) if settings.load else None
    reports_health = instance_type.family.generation >= FIRST_WITH_HEALTH
    faults = FaultInjector(allocator, FaultEffects(time.monotonic, clock.at), reports_health=reports_health)
    power = None
    if settings.device_max_watts is not None:
        power = SimulatedPower(shape, lambda: clock.at(time.monotonic()))
    source = SimulatedSource(instance_type, allocator, load.ecc if load else None, place, faults, power)
    return WatchedHost(source, allocator, load, faults)


def _own_devices(settings: Settings, on_ownership_change: Callable[[], None]) -> WatchedHost:
    # Imported here because a daemon that simulates its devices doesn't need these modules.
    from neurond.sources.sysfs import SysfsSource
    from neurontools.driver.devices import list_device_directories
    from neurontools.driver.environment import Roots

    roots = Roots(settings.sysfs_root, settings.proc_root, settings.dev_root)
    with _warning_if_slow():
        if not list_device_directories(roots):
            where = "on this host" if roots.sys == "/sys" else f"under {roots.devices}"
            raise UserError(
                f"no Neuron devices found {where}; simulate some with --simulate trn1.32xlarge "
                "(all types: --list-instance-types)"
            )
        source = SysfsSource(
            roots, lnc=settings.lnc, time_in_use_unit=settings.time_in_use_unit, use_metadata_service=settings.imds
        )
    possible = source.instance.logical_neuroncore_configs
    if settings.lnc is not None and settings.lnc not in possible:
        source.close()
        raise UserError(
            f"logical NeuronCore configuration {settings.lnc} is not possible on "
            f"{source.instance.instance_type}: use {' or '.join(map(str, possible))}",
            EXIT_USAGE,
        )
    return WatchedHost(source, CoreAllocator(_shape(source.instance), on_ownership_change, time.monotonic()), None)


@contextmanager
def _warning_if_slow() -> Iterator[None]:
    """Logs a warning if the body takes long, because a read of a broken driver may hang for ever."""
    warning = "the driver has not answered for %g s; neurond serves once it does"
    timer = threading.Timer(_PATIENCE_SECONDS, _log.warning, (warning, _PATIENCE_SECONDS))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _shape(instance: Instance) -> HostShape:
    return HostShape(
        device_count=instance.device_count,
        cores_per_device=instance.physical_cores_per_device,
        stacks_per_device=instance.device_memory_bytes // instance.hbm_stack_bytes,
        stack_bytes=instance.hbm_stack_bytes,
        default_lnc=instance.logical_neuroncore_config,
        supported_lncs=instance.logical_neuroncore_configs,
    )


def _load(settings: Settings, allocator: CoreAllocator, instance_type: catalog.InstanceType) -> SyntheticLoad:
    peak_flops = catalog.peak_flops_per_core(instance_type.name) or 0.0
    return SyntheticLoad(
        allocator,
        settings.load or "idle",
        seed=settings.load_seed,
        neuroncores=settings.load_neuroncores,
        peak_flops_per_core=peak_flops,
        interval_seconds=settings.interval_seconds,
    )


def open_kernel_log(settings: Settings) -> KernelLogReader | None:
    """Opens the kernel log that has the errors of the devices.

    Returns None if the settings disable the log; for simulated devices, also if the settings name no file.
    """
    if settings.kmsg is not None:
        return KernelLogReader(settings.kmsg) if settings.kmsg else None
    return None if settings.simulate else KernelLogReader(f"{settings.dev_root}/kmsg", is_named=False)
