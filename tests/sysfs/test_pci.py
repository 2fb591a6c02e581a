from __future__ import annotations

from pathlib import Path

from neurontools import catalog
from neurontools.sysfs.pci import Placement, placements
from neurontools.sysfs.roots import Roots


def _device(root: Path, bdf: str, *, device: str = "0x7064", numa: str = "0\n", cpus: str = "0-7\n") -> None:
    directory = root / "bus/pci/devices" / bdf
    directory.mkdir(parents=True)
    (directory / "vendor").write_text("0x1d0f\n")
    (directory / "device").write_text(f"{device}\n")
    (directory / "numa_node").write_text(numa)
    (directory / "local_cpulist").write_text(cpus)


def _shown(placement: Placement) -> tuple[object, ...]:
    return placement.bdf, placement.cpu_affinity, placement.numa_node, placement.inferred


def _ids(instance_type: str) -> str:
    return f"0x{catalog.load(instance_type).family.pci.device_ids[0]}"


ALL = ("bdf", "cpu_affinity", "numa_node")


def test_one_device_is_the_only_one_of_its_kind(tmp_path: Path) -> None:
    _device(tmp_path, "0000:aa:00.0", device=_ids("trn3pd98.3xlarge"))
    _device(tmp_path, "0000:00:05.0", device="0xec20")  # a network card of the same vendor
    kind = catalog.load("trn3pd98.3xlarge")
    assert kind.devices[0].bdf.value is None
    placed = placements(Roots(str(tmp_path)), kind.family, kind, [0])
    assert _shown(placed[0]) == ("0000:aa:00.0", "0-7", "0", ())


def test_several_of_an_unknown_order_are_marked(tmp_path: Path) -> None:
    kind = catalog.load("trn3e.24xlarge")
    for number in (3, 1, 0, 2):
        _device(tmp_path, f"0000:a{number}:00.0", device=_ids("trn3e.24xlarge"), numa=f"{number}\n")
    placed = placements(Roots(str(tmp_path)), kind.family, kind, [0, 1, 2, 3])
    assert [_shown(placed[index]) for index in range(4)] == [
        (f"0000:a{index}:00.0", "0-7", str(index), ALL) for index in range(4)
    ]


def test_an_address_of_the_catalog_that_is_there_is_read(tmp_path: Path) -> None:
    kind = catalog.load("trn1.32xlarge")
    _device(tmp_path, "0000:10:1c.0", device=_ids("trn1.32xlarge"), numa="1\n", cpus="4-5\n")
    placed = placements(Roots(str(tmp_path)), kind.family, kind, [0, 1])
    assert _shown(placed[0]) == ("0000:10:1c.0", "4-5", "1", ())
    # The others of the catalog are contradicted: nothing is known of them.
    assert _shown(placed[1]) == (None, None, None, ())


def test_without_pci_devices_the_catalog_is_a_conclusion(tmp_path: Path) -> None:
    kind = catalog.load("trn1.32xlarge")
    placed = placements(Roots(str(tmp_path)), kind.family, kind, [0])
    assert _shown(placed[0]) == ("0000:10:1c.0", "0-31,64-95", "0", ALL)
    assert _shown(placements(Roots(str(tmp_path)), kind.family, None, [0])[0]) == (None, None, None, ())


def test_files_that_hold_anything_else_are_unknown(tmp_path: Path) -> None:
    kind = catalog.load("trn1.2xlarge")
    _device(tmp_path, "0000:00:1e.0", device=_ids("trn1.2xlarge"), numa="\x1b[31m\n", cpus="")
    placed = placements(Roots(str(tmp_path)), kind.family, kind, [0])
    assert _shown(placed[0]) == ("0000:00:1e.0", None, None, ())
