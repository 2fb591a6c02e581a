"""What launchers of ranks put into the environment of each: who it is, among how many, and which run it is.

The environment is the process's own word. So a run is told together with the user whose processes these are, and what
decides over nodes or over other people's work must not go by it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

_MOST_RANKS = 2**20
_LONGEST_ID = 256
_LONGEST_NAME = 64
_RUN_ID_BYTES = 6

_RANKS = (b"RANK", b"SLURM_PROCID", b"OMPI_COMM_WORLD_RANK", b"PMI_RANK", b"NEURON_PJRT_PROCESS_INDEX")
_WORLD_SIZES = (b"WORLD_SIZE", b"SLURM_NTASKS", b"OMPI_COMM_WORLD_SIZE", b"PMI_SIZE")
_PJRT_DEVICES = b"NEURON_PJRT_PROCESSES_NUM_DEVICES"  # of each process, with commas
_TORCHRUN = b"TORCHELASTIC_RUN_ID"
_STORE = (b"MASTER_ADDR", b"MASTER_PORT")
_ROOT = b"NEURON_RT_ROOT_COMM_ID"  # "address:port" of rank 0, for the collectives of the original runtime
_MPI = (b"PMIX_NAMESPACE", b"OMPI_MCA_orte_hnp_uri", b"PMI_PORT")  # Open MPI 5, Open MPI 4 beside it, MPICH
_SLURM = (b"SLURM_CLUSTER_NAME", b"SLURM_JOB_ID", b"SLURM_STEP_ID")
_LOCAL_RANK, _LOCAL_WORLD_SIZE = b"LOCAL_RANK", b"LOCAL_WORLD_SIZE"
_LOCAL_WORLD_SIZES = (_LOCAL_WORLD_SIZE, b"OMPI_COMM_WORLD_LOCAL_SIZE", b"MPI_LOCALNRANKS")

VARIABLES = frozenset(
    (*_RANKS, *_WORLD_SIZES, _PJRT_DEVICES, _TORCHRUN, *_STORE, _ROOT, *_MPI, *_SLURM, _LOCAL_RANK, *_LOCAL_WORLD_SIZES)
)
_NO_ID = "none"  # what torchrun calls a run that was given no id
_LOOPBACK = ("127.", "localhost", "::1", "0.0.0.0")  # noqa: S104 - as somebody may have written it


@dataclass(frozen=True, slots=True)
class Launch:
    """One rank as its launcher has it; None is what that does not tell.

    `run` names a run that is on several hosts, the same on all of them, and `name` is what to call it; None for a run
    of one host. `first_rank` and `local_world_size` are those of the ranks that were started beside it: torchrun's
    are without gaps.
    """

    rank: int | None = None
    world_size: int | None = None
    first_rank: int | None = None
    local_world_size: int | None = None
    run: tuple[str, ...] | None = None
    name: str | None = None


def launch_of(environment: Mapping[bytes, bytes], machine: str) -> Launch:
    """What the environment of a process tells. `machine` names the one that an address of the host itself is on."""
    rank, world_size = _first_number(environment, _RANKS), _first_number(environment, _WORLD_SIZES)
    if world_size is None and _PJRT_DEVICES in environment:
        world_size = environment[_PJRT_DEVICES].count(b",") + 1
    here = _first_number(environment, _LOCAL_WORLD_SIZES)
    local_rank = _first_number(environment, (_LOCAL_RANK,))
    first = None
    if _TORCHRUN in environment and rank is not None and local_rank is not None and local_rank <= rank:
        first = rank - local_rank
    told = Launch(rank, world_size, first, None if first is None else here)
    is_of_one_host = world_size is not None and here is not None and world_size <= here
    if rank is None or is_of_one_host or world_size == 1:
        return told
    run, name = _run(environment, machine)
    return replace(told, run=run, name=name)


def run_id(*parts: str) -> str:
    """The parts that together name a run, as 12 hexadecimal digits."""
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=_RUN_ID_BYTES).hexdigest()


def _run(environment: Mapping[bytes, bytes], machine: str) -> tuple[tuple[str, ...] | None, str | None]:
    """What names the run, and what to call it."""
    address, port = (_text(environment, name) for name in _STORE)
    store = f"{address}:{port}" if address and port else ""
    if _TORCHRUN in environment and store:
        # Many runs have the id "none", and a run id may be used again: where its store is tells them apart.
        told = _text(environment, _TORCHRUN)
        name = f"torchrun at {store}" if told in ("", _NO_ID) else f"torchrun {told}"
        return ("torchrun", told, store, _place(store, machine)), _cut(name)
    if any(variable in environment for variable in _MPI):
        return ("MPI", *(_text(environment, variable) for variable in _MPI)), None
    if b"SLURM_PROCID" in environment and _text(environment, b"SLURM_JOB_ID"):
        return ("Slurm", *(_text(environment, variable) for variable in _SLURM)), None
    root = store or _text(environment, _ROOT)
    return (("store", root, _place(root, machine)), _cut(f"ranks of {root}")) if root else (None, None)


def _place(store: str, machine: str) -> str:
    """The machine whose own address this is; "" for an address that all hosts know."""
    return machine if store.lower().startswith(_LOOPBACK) else ""


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _text(environment: Mapping[bytes, bytes], name: bytes) -> str:
    """A value, harmless in one line; "" where there is none or it can't be an id."""
    value = environment.get(name, b"")
    text = value.decode("utf-8", "replace")
    return text if len(value) <= _LONGEST_ID and text.isprintable() else ""


def _first_number(environment: Mapping[bytes, bytes], names: tuple[bytes, ...]) -> int | None:
    for name in names:
        text = environment.get(name, b"")
        if text.isdigit() and len(text) <= 7 and int(text) < _MOST_RANKS:
            return int(text)
    return None
