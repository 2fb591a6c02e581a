"""Who may stay connected: so many in all, of each peer its share; who waits longest makes room for who comes.

A peer is whatever tells one from the other: an address, a user. Pure: no sockets, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable


class Place:
    """The place of one connection; it is waiting, that is idle or not yet understood, until it is `busy`."""

    __slots__ = ("_places", "make_room", "peer")

    def __init__(self, places: Places, peer: Hashable, make_room: Callable[[], None]) -> None:
        self._places = places
        self.peer = peer
        self.make_room = make_room

    def busy(self) -> None:
        """It is being served: nobody takes its place."""
        self._places.mark(self, waiting=False)

    def wait(self) -> None:
        """It waits, from now on."""
        self._places.mark(self, waiting=True)

    def leave(self) -> None:
        """Gives the place up; nothing happens if it was taken away."""
        self._places.leave(self)


class Places:
    """`most` places, of which one peer has at most `share`."""

    def __init__(self, most: int, share: int) -> None:
        self._most = most
        self._share = share
        self._count = 0
        self._of_peer: dict[Hashable, dict[Place, bool]] = {}  # whether it waits, who has waited longest first

    def __len__(self) -> int:
        return self._count

    def enter(self, peer: Hashable, make_room: Callable[[], None]) -> Place | None:
        """A place for a connection of a peer; None when all those that count against it are busy.

        Where there is none free, the connection that has waited longest loses its place, and its `make_room` is called:
        of the same peer if that has its share, else of the peer that has the most.
        """
        own = self._of_peer.get(peer, {})
        if len(own) >= self._share:
            loser = _longest_waiting(own)
        elif self._count >= self._most:
            crowds = sorted(self._of_peer.values(), key=len, reverse=True)
            loser = next((place for crowd in crowds if (place := _longest_waiting(crowd)) is not None), None)
        else:
            return self._entered(peer, make_room)
        if loser is None:
            return None
        self.leave(loser)
        loser.make_room()
        return self._entered(peer, make_room)

    def mark(self, place: Place, *, waiting: bool) -> None:
        """Notes that a connection waits, from now on, or doesn't."""
        crowd = self._of_peer.get(place.peer, {})
        if crowd.pop(place, None) is not None:
            crowd[place] = waiting

    def leave(self, place: Place) -> None:
        """Takes a connection out, if it is still in."""
        crowd = self._of_peer.get(place.peer, {})
        if crowd.pop(place, None) is not None:
            self._count -= 1
        if not crowd:
            self._of_peer.pop(place.peer, None)

    def _entered(self, peer: Hashable, make_room: Callable[[], None]) -> Place:
        place = Place(self, peer, make_room)
        self._of_peer.setdefault(peer, {})[place] = True
        self._count += 1
        return place


def _longest_waiting(crowd: dict[Place, bool]) -> Place | None:
    return next((place for place, waiting in crowd.items() if waiting), None)
