from __future__ import annotations

import asyncio
import threading

from neurond.ownership.ledger import Ledger
from neurond.snapshots.refresher import Refresher
from neurond.sources.simulated import SimulatedSource, shape_of
from neurond.sources.source import Reading

from neurontools import catalog
from neurontools.model import SourceKind
from neurontools.testing import idle_host

PATIENCE_SECONDS = 30.0


class _Hardware:
    """A source whose read takes as long as the test wants."""

    kind = SourceKind.SYSFS
    is_slow = True

    def __init__(self) -> None:
        self.instance = idle_host("trn1.2xlarge").instance
        self.may_answer = threading.Event()
        self.reads = 0
        self.fault: Exception | None = None

    def refresh(self) -> None:
        self.may_answer.wait()
        self.reads += 1
        if self.fault is not None:
            raise self.fault

    def read(self) -> Reading:
        return Reading((), ())


async def test_a_read_that_does_not_end_holds_nobody_up() -> None:
    hardware = _Hardware()
    refresher = Refresher(hardware)
    for _ in range(3):  # asked once, waited for thrice
        await refresher.refresh(0.001)
        assert refresher.warnings[0].startswith("the driver has not answered for ")
    hardware.may_answer.set()
    await refresher.refresh(PATIENCE_SECONDS)
    assert (hardware.reads, refresher.warnings) == (1, ())
    await refresher.refresh(PATIENCE_SECONDS)
    assert hardware.reads == 2


async def test_the_loop_runs_while_a_read_lasts() -> None:
    hardware = _Hardware()
    reading = asyncio.create_task(Refresher(hardware).refresh(PATIENCE_SECONDS))
    await asyncio.sleep(0)
    assert not reading.done()
    hardware.may_answer.set()
    await reading
    assert hardware.reads == 1


async def test_a_fault_is_told_and_the_next_read_made() -> None:
    hardware = _Hardware()
    hardware.may_answer.set()
    hardware.fault = RuntimeError("the moon")
    refresher = Refresher(hardware)
    await refresher.refresh(PATIENCE_SECONDS)
    assert refresher.warnings == ("the devices could not be read: the moon",)
    hardware.fault = None
    await refresher.refresh(PATIENCE_SECONDS)
    assert not refresher.warnings


async def test_a_source_in_memory_needs_no_thread() -> None:
    kind = catalog.load("trn1.2xlarge")
    before = set(threading.enumerate())
    await Refresher(SimulatedSource(kind, Ledger(shape_of(kind)))).refresh(PATIENCE_SECONDS)
    assert set(threading.enumerate()) <= before
