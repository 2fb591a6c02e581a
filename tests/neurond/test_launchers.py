"""What launchers tell each rank: which run it is of, on all its hosts and no other."""

from __future__ import annotations

import pytest
from neurond.system.launchers import Launch, launch_of, run_id

MACHINE, OTHER_MACHINE = "boot-1", "boot-2"


def torchrun(
    rank: int, local_rank: int, *, store: str = "trn-1:29500", run: str = "exp1", world: int = 4
) -> dict[bytes, bytes]:
    """The environment of a worker of two hosts with two ranks each."""
    address, _, port = store.rpartition(":")
    told = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": 2,
        "TORCHELASTIC_RUN_ID": run,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }
    return {name.encode(): str(value).encode() for name, value in told.items()}


def run_of(environment: dict[bytes, bytes], machine: str = MACHINE) -> tuple[str, ...] | None:
    return launch_of(environment, machine).run


def test_a_worker_of_torchrun_is_told_its_run_and_the_ranks_beside_it() -> None:
    told = launch_of(torchrun(3, 1), MACHINE)
    assert told == Launch(3, 4, 2, 2, ("torchrun", "exp1", "trn-1:29500", ""), "torchrun exp1")
    assert run_of(torchrun(0, 0), OTHER_MACHINE) == told.run


def test_runs_without_an_id_are_told_apart_by_their_store() -> None:
    one, two = torchrun(0, 0, run="none"), torchrun(0, 0, run="none", store="trn-9:29500")
    assert run_of(one) != run_of(two)
    assert run_of(one) != run_of(torchrun(0, 0, run="none", store="trn-1:29501"))
    assert launch_of(one, MACHINE).name == "torchrun at trn-1:29500"


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1", "LOCALHOST", "127.3.2.1"])
def test_an_address_of_the_machine_itself_is_of_that_machine_alone(address: str) -> None:
    environment = torchrun(0, 0, run="none", store=f"{address}:29500")
    assert run_of(environment) == run_of(environment)
    assert run_of(environment) != run_of(environment, OTHER_MACHINE)


def test_a_run_of_one_host_is_of_that_host() -> None:
    told = launch_of(torchrun(1, 1, world=2), MACHINE)
    assert told == Launch(1, 2, 0, 2)
    assert run_of({b"RANK": b"0", b"WORLD_SIZE": b"1", b"MASTER_ADDR": b"a", b"MASTER_PORT": b"1"}) is None


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        (
            {b"SLURM_PROCID": b"5", b"SLURM_NTASKS": b"16", b"MASTER_ADDR": b"n1", b"MASTER_PORT": b"12355"},
            Launch(5, 16, None, None, ("store", "n1:12355", ""), "ranks of n1:12355"),
        ),
        (
            {
                b"OMPI_COMM_WORLD_RANK": b"5",
                b"OMPI_COMM_WORLD_SIZE": b"16",
                b"OMPI_COMM_WORLD_LOCAL_SIZE": b"8",
                b"PMIX_NAMESPACE": b"prterun-n1-77@1",
            },
            Launch(5, 16, None, None, ("MPI", "prterun-n1-77@1", "", ""), None),
        ),
        (
            {b"SLURM_PROCID": b"5", b"SLURM_NTASKS": b"16", b"SLURM_JOB_ID": b"17", b"SLURM_STEP_ID": b"0"},
            Launch(5, 16, None, None, ("Slurm", "", "17", "0"), None),
        ),
        (
            {b"PMI_RANK": b"1", b"PMI_SIZE": b"2", b"PMI_PORT": b"n1:4711"},
            Launch(1, 2, None, None, ("MPI", "", "", "n1:4711"), None),
        ),
        (
            {
                b"NEURON_PJRT_PROCESS_INDEX": b"1",
                b"NEURON_PJRT_PROCESSES_NUM_DEVICES": b"32,32",
                b"NEURON_RT_ROOT_COMM_ID": b"10.0.0.1:41000",
            },
            Launch(1, 2, None, None, ("store", "10.0.0.1:41000", ""), "ranks of 10.0.0.1:41000"),
        ),
        ({b"RANK": b"1", b"WORLD_SIZE": b"2"}, Launch(1, 2)),
        ({b"MASTER_ADDR": b"n1", b"MASTER_PORT": b"12355"}, Launch()),
        (
            {b"OMPI_COMM_WORLD_RANK": b"0", b"OMPI_COMM_WORLD_SIZE": b"2", b"OMPI_COMM_WORLD_LOCAL_SIZE": b"2"},
            Launch(0, 2),
        ),
    ],
)
def test_what_other_launchers_tell(environment: dict[bytes, bytes], told: Launch) -> None:
    assert launch_of(environment, MACHINE) == told


@pytest.mark.parametrize("value", [b"-1", b"", b"x", b"99999999", "²".encode()])
def test_a_rank_that_can_be_none_is_none(value: bytes) -> None:
    assert launch_of({b"RANK": value, b"WORLD_SIZE": value}, MACHINE) == Launch()


def test_names_are_bounded_and_harmless_in_a_line() -> None:
    assert len(launch_of(torchrun(0, 0, run="x" * 200), MACHINE).name or "") == 64
    assert launch_of(torchrun(0, 0, run="a\x1b[2Jb"), MACHINE).name == "torchrun at trn-1:29500"
    assert run_of(torchrun(0, 0, run="x" * 200)) != run_of(torchrun(0, 0, run="x" * 199))
    assert len(run_id("a", "b")) == 12
    assert run_id("a", "b") != run_id("ab")
