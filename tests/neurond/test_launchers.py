"""What launchers tell each rank: which run it is of, on all its hosts and no other."""

from __future__ import annotations

import pytest
from neurond.system.processes import Launch, parse_launch, run_id

MACHINE, OTHER_MACHINE = "boot-1", "boot-2"


def environment(**variables: object) -> dict[bytes, bytes]:
    return {name.encode(): str(value).encode() for name, value in variables.items()}


def torchrun(
    rank: int, local_rank: int, *, store: str = "trn-1:29500", run: str = "exp1", world: int = 4
) -> dict[bytes, bytes]:
    """The environment of a worker of two hosts with two ranks each."""
    address, _, port = store.rpartition(":")
    told = environment(RANK=rank, LOCAL_RANK=local_rank, WORLD_SIZE=world, LOCAL_WORLD_SIZE=2)
    return told | environment(TORCHELASTIC_RUN_ID=run, MASTER_ADDR=address, MASTER_PORT=port)


def run_of(variables: dict[bytes, bytes], machine: str = MACHINE) -> tuple[str, ...] | None:
    return parse_launch(variables, machine).run


def test_a_worker_of_torchrun_is_told_its_run_and_the_ranks_beside_it() -> None:
    told = parse_launch(torchrun(3, 1), MACHINE)
    assert told == Launch(3, 4, 2, 2, ("torchrun", "exp1", "trn-1:29500", ""), "torchrun exp1")
    assert run_of(torchrun(0, 0), OTHER_MACHINE) == told.run
    one, two = torchrun(0, 0, run="none"), torchrun(0, 0, run="none", store="trn-9:29500")
    assert run_of(one) != run_of(two), "without an id the store tells runs apart"
    assert run_of(one) != run_of(torchrun(0, 0, run="none", store="trn-1:29501"))
    assert parse_launch(one, MACHINE).name == "torchrun at trn-1:29500"


def test_runs_of_one_host_are_of_that_host() -> None:
    for address in ("127.0.0.1", "localhost", "::1", "LOCALHOST", "127.3.2.1"):
        variables = torchrun(0, 0, run="none", store=f"{address}:29500")
        assert run_of(variables) == run_of(variables)
        assert run_of(variables) != run_of(variables, OTHER_MACHINE)
    assert parse_launch(torchrun(1, 1, world=2), MACHINE) == Launch(1, 2, 0, 2)
    assert run_of(environment(RANK=0, WORLD_SIZE=1, MASTER_ADDR="a", MASTER_PORT=1)) is None


SLURM = environment(SLURM_PROCID=5, SLURM_NTASKS=16)
MPI = environment(OMPI_COMM_WORLD_RANK=5, OMPI_COMM_WORLD_SIZE=16, OMPI_COMM_WORLD_LOCAL_SIZE=8)
PJRT = environment(NEURON_PJRT_PROCESS_INDEX=1, NEURON_PJRT_PROCESSES_NUM_DEVICES="32,32")


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        (
            SLURM | environment(MASTER_ADDR="n1", MASTER_PORT=12355),
            Launch(5, 16, None, None, ("store", "n1:12355", ""), "ranks of n1:12355"),
        ),
        (
            SLURM | environment(SLURM_JOB_ID=17, SLURM_STEP_ID=0),
            Launch(5, 16, None, None, ("Slurm", "", "17", "0"), None),
        ),
        (
            MPI | environment(PMIX_NAMESPACE="prterun-n1-77@1"),
            Launch(5, 16, None, None, ("MPI", "prterun-n1-77@1", "", ""), None),
        ),
        (
            environment(PMI_RANK=1, PMI_SIZE=2, PMI_PORT="n1:4711"),
            Launch(1, 2, None, None, ("MPI", "", "", "n1:4711"), None),
        ),
        (
            PJRT | environment(NEURON_RT_ROOT_COMM_ID="10.0.0.1:41000"),
            Launch(1, 2, None, None, ("store", "10.0.0.1:41000", ""), "ranks of 10.0.0.1:41000"),
        ),
        (environment(RANK=1, WORLD_SIZE=2), Launch(1, 2)),
        (environment(MASTER_ADDR="n1", MASTER_PORT=12355), Launch()),
        (MPI | environment(OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=8), Launch(0, 8)),
        *((environment(RANK=rank, WORLD_SIZE=rank), Launch()) for rank in ("-1", "", "x", "99999999", "²")),
    ],
)
def test_what_other_launchers_tell(variables: dict[bytes, bytes], told: Launch) -> None:
    assert parse_launch(variables, MACHINE) == told


def test_names_are_bounded_and_harmless_in_a_line() -> None:
    assert len(parse_launch(torchrun(0, 0, run="x" * 200), MACHINE).name or "") == 64
    assert parse_launch(torchrun(0, 0, run="a\x1b[2Jb"), MACHINE).name == "torchrun at trn-1:29500"
    assert run_of(torchrun(0, 0, run="x" * 200)) != run_of(torchrun(0, 0, run="x" * 199))
    assert len(run_id("a", "b")) == 12
    assert run_id("a", "b") != run_id("ab")
