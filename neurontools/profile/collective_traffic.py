"""The bytes that a rank sends to other ranks in a collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_RING_SHARES: Mapping[str, tuple[int, bool]] = {
    # kind: rounds of the ring, and whether a round moves a part of the tensor (else the whole tensor)
    "all_reduce": (2, True),
    "reduce_scatter": (1, True),
    "all_gather": (1, False),
}


def sent_bytes(kind: str, ranks: Sequence[int], own: int, size: int, root: int = 0, routes: str = "") -> dict[int, int]:
    """Maps each rank that receives data from rank `own` in one collective to the bytes that it receives.

    `ranks` lists the ranks of the group in its order. `size` is the number of bytes that `own` contributes.
    All-reduce, all-gather and reduce-scatter use a ring in the order of the group, and a broadcast uses a chain. The
    AWS runtime may choose other algorithms. `root` is a position in the group; for a send, that of the receiver.
    `routes` has the routes of a permutation, such as "0>1 1>0". Returns {} if `own` sends nothing.
    """
    count = len(ranks)
    if own not in ranks or count < 2 or size <= 0:
        return {}
    place = list(ranks).index(own)
    following = ranks[(place + 1) % count]
    if kind in _RING_SHARES:
        rounds, is_divided = _RING_SHARES[kind]
        moved = rounds * (count - 1) * size
        return {following: moved // count if is_divided else moved}
    root_rank = ranks[root] if 0 <= root < count else None
    if kind == "broadcast":
        return {} if following == root_rank else {following: size}
    if kind == "all_to_all" or (kind == "scatter" and own == root_rank):
        return {rank: size // count for rank in ranks if rank != own}
    if kind in ("send", "gather"):
        return {} if root_rank in (None, own) else {ranks[root]: size}
    if kind == "permute":
        pairs = [route.split(">") for route in routes.split()]
        return {int(target): size for source, target in pairs if int(source) == own != int(target)}
    return {}
