"""Following a step that came before instead of recording it anew; what is a surprise goes back to recording.

After a graph was executed that is known, the one that came after it the last time is expected again. The first time its
calls are observed while they are recorded, and become a Course; from then on they are compared with it, one by one. The
graph of the core stays empty meanwhile: who asks for it, or does something else than expected, makes it be written down
as if it had been recorded, and recording goes on from there.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from neurontools.runtime.capture.course import Course, Expected, NotFollowable, Observed, observe
from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.operators.operator import DeviceOperator, OperatorSignature
from neurontools.runtime.tensors.buffer_table import buffers
from neurontools.runtime.tensors.core import Buffer, Core, Graph, Tensor
from neurontools.runtime.tensors.device import device

_MOST_COURSES = 32
_LONGEST_REST = 6
_SHORTEST = 4


class Place:
    """What is known of a program for following: its course, and the place of the program that ran after it."""

    __slots__ = ("after", "course", "is_followable")

    def __init__(self) -> None:
        self.after: Place | None = None
        self.course: Course | None = None
        self.is_followable = True


class Following:
    """Where the process stands in a step that came before. Everything happens under the lock of the buffers.

    `ahead` is the call that is expected next, None when none is. `observed` are the calls of a step that will be
    followed later, None when nobody watches.
    """

    __slots__ = ("_known_count", "_last", "_observed_core", "_places", "ahead", "course", "observed")

    def __init__(self) -> None:
        self.ahead: Expected | None = None
        self.observed: list[Observed] | None = None
        self.course: Course | None = None
        self._observed_core: Core | None = None
        self._known_count = 0
        self._last: dict[int, Place] = {}
        self._places: deque[Place] = deque()

    def bind(self, course: Course, number: int, address: int) -> bool:
        """Takes the storage at an address as an input of the graph, if it is one that can be this input."""
        buffer = buffers.by_address.get(address)
        core = course.core
        if (
            buffer is None
            or buffer.layout is not course.layouts[number]
            or buffer.value is None
            or buffer.core is not core
            or buffer.graph is not None
        ):
            return False
        buffer.index = number
        course.addresses[number] = address
        course.buffers[number] = buffer
        buffer.graph = core.pending  # last: whoever writes the graph looks for it among the course's buffers
        return True

    def output(self, course: Course, number: int) -> Tensor:
        """A result that somebody will have when the step ends."""
        core = course.core
        tensor, buffer = buffers.create(course.layouts[number], None, core)
        buffer.index = number
        course.addresses[number] = buffer.address
        course.buffers[number] = buffer
        buffer.graph = core.pending
        return tensor

    def observe(
        self,
        core: Core,
        operator: DeviceOperator,
        signature: OperatorSignature,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> None:
        """After a call was recorded: takes it down, unless it is one that can't be compared."""
        observed = self.observed
        graph = core.pending
        if observed is None or core is not self._observed_core:
            return
        count = signature.tensor_count
        first_result = len(graph.buffers) - signature.result_count
        indices = graph.key[len(graph.key) - count :]
        try:
            observed.append(observe(operator, signature, arguments, keywords, indices, self._known_count, first_result))
        except NotFollowable:
            self.observed = None
        self._known_count = len(graph.buffers)

    def is_under_way(self, core: Core) -> bool:
        """Whether a part of a step has been followed on a core."""
        course, ahead = self.course, self.ahead
        return course is not None and course.core is core and ahead is not None and ahead.position > 0

    def break_off(self) -> None:
        """Writes the graph of what came so far, as if it had been recorded; nothing is expected any more."""
        with buffers.lock:
            if self.course is not None and self.ahead is not None:
                self._write(self.course, self.ahead.position)

    def _write(self, course: Course, position: int) -> None:
        core, graph, count = course.core, course.core.pending, course.buffer_counts[position]
        for buffer in course.buffers[count:]:
            if buffer is not None:  # of a call that was not made to its end
                buffer.graph = None
        listed = [
            self._temporary(course, number) if buffer is None else buffer
            for number, buffer in enumerate(course.buffers[:count])
        ]
        graph.key[:] = course.key[: course.key_ends[position]]
        graph.signatures[:] = course.signatures[:position]
        graph.scalars[:] = course.scalars[: course.scalar_counts[position]]
        graph.buffers[:] = listed
        self.ahead = self.course = None
        core.break_off = None
        if position:
            course.misses += 1
            course.skips = 1 << min(course.misses, _LONGEST_REST)
            course.give_up_range()

    def _temporary(self, course: Course, number: int) -> Buffer:
        """The buffer of a result for which there was none."""
        buffer = Buffer()
        buffer.slot, buffer.address = course.slots[number], course.addresses[number]
        buffer.layout, buffer.core = course.layouts[number], course.core
        buffer.graph, buffer.index = course.core.pending, number
        buffers.know(buffer)
        return buffer

    def finished(self, core: Core) -> Course | None:
        """The course that came again to its end, with all that lives then; None for anything else."""
        course = self.course
        if course is None or course.core is not core or self.ahead is course.first:
            return None
        if self.ahead is not course.end or not course.ends_as_before():
            self.break_off()
            return None
        self.ahead = self.course = None
        core.break_off = None
        course.misses = max(0, course.misses - 1)
        metrics.increment("FollowedGraph")
        return course

    def seen(self, core: Core) -> list[Observed] | None:
        """What was observed of the graph of a core, which ends here; None where nobody watched."""
        if core is not self._observed_core:
            return None
        observed, self.observed, self._observed_core = self.observed, None, None
        return [] if observed is None else observed

    def lose_sight(self) -> None:
        """A call was not recorded to its end: what was observed is no whole graph."""
        self.break_off()
        self.observed = self._observed_core = None

    def learn(
        self, core: Core, observed: list[Observed], graph: Graph, alive: bytes, place: Place, program: Any
    ) -> None:
        """Keeps what was observed of a graph that has come again, to follow it."""
        if len(observed) != len(graph.signatures):
            place.is_followable = False  # some call was none that can be compared
        elif len(observed) >= _SHORTEST:
            self.forget(place)
            place.course = Course(core, observed, graph.key, graph.buffers, alive, program, self.output, self)
            if place not in self._places:
                self._places.append(place)
            if len(self._places) > _MOST_COURSES:
                self.forget(self._places.popleft())

    def expect_after(self, core: Core, place: Place) -> None:
        """After a program was executed: expects what came after it the last time."""
        last = self._last.get(core.local_index)
        if last is not None:
            last.after = place
        self._last[core.local_index] = place
        after = place.after
        if after is None or device.eager or self.course is not None:
            return
        course = after.course
        if course is None:
            if after.is_followable:
                self.observed, self._observed_core, self._known_count = [], core, 0
        elif course.core is core and len(course.signatures) < device.pending_bound:
            if course.skips:
                course.skips -= 1
                return
            course.prepare()
            self.course = course
            self.ahead = course.first
            core.break_off = self.break_off

    def forget(self, place: Place) -> None:
        """The program of a place is not there any more, or its calls do something else now."""
        course, place.course = place.course, None
        if course is not None:
            if course is self.course:
                self.break_off()
            course.give_up_range()

    def forget_all(self) -> None:
        """What calls do has changed: nothing that was observed before holds any more."""
        self.break_off()
        self.observed = None
        while self._places:
            self.forget(self._places.popleft())


following = Following()
buffers.write_graphs = following.break_off
