"""Where in a script something happens, and what made a graph a new one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from neurontools.runtime.counting.places import Places
from neurontools.runtime.execution.graph_changes import GraphChanges


def test_the_line_is_the_script_s_and_not_a_library_s() -> None:
    found = Places()
    before = sys._getframe().f_lineno
    found.note("read")
    json.loads("{}", object_hook=lambda _: found.note("read"))
    assert {(what, Path(file).name, line - before): n for (what, file, line), n in found.counts.items()} == {
        ("read", "test_places.py", 1): 1,
        ("read", "test_places.py", 2): 1,
    }


def test_what_no_script_does_has_no_place() -> None:
    found = Places()
    source = "note('read')"
    exec(compile(source, json.__file__, "exec"), {"note": found.note, "__name__": "json"})
    assert Path(next(iter(found.counts))[1]).name == "test_places.py"  # who called the library


def test_what_happens_often_in_one_step_is_in_one_step() -> None:
    found = Places()
    for found.step in range(3):
        for _ in range(4 if found.step == 1 else 1):
            found.note("read")
    (place,) = found.counts
    assert (found.counts[place], found.steps[place]) == (6, 3)


def test_places_are_bounded() -> None:
    found = Places()
    for number in range(1000):
        found.note(f"fallback {number}")
    assert len(found.counts) == 256
    found.note("fallback 0")


def graph(*shapes: str, operators: int = 1) -> str:
    inputs = [f"%{number} = input {shape}" for number, shape in enumerate(shapes)]
    calls = [f"%{number + 9} = aten::relu(%0) -> (x) of %0" for number in range(operators)]
    return "\n".join([*inputs, *calls, "alive %9"])


def test_what_changed_is_the_first_input_that_differs() -> None:
    changes = GraphChanges()
    changes.note(graph("float32[4,8]{8,1}", "float32[8]{1}"))
    assert list(changes.latest) == []
    changes.note(graph("float32[5,8]{8,1}", "float32[8]{1}"))
    changes.note(graph("float32[5,8]{1,5}", "float32[8]{1}"))
    changes.note(graph("float32[5,8]{1,5}", "float32[8]{1}", "float32[8]{1}"))
    changes.note(graph("float32[5,8]{1,5}", "float32[8]{1}", operators=3))
    changes.note(graph("float32[5,8]{1,5}", "float32[8]{1}", operators=3))
    assert list(changes.latest) == [
        "an input is float32[5,8] where it was float32[4,8]",
        "an input is float32[5,8]{1,5} where it was float32[5,8]{8,1}",
        "it has 3 inputs where it had 2",
        "it has 4 operators, the one before has 2",
        "a number in it, or what of it is needed later, is another one",
    ]
