"""What the stand-in for enum must do for the one command that uses it: the same as the real one."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from types import ModuleType

import pytest

from neurontools.light import enum as light_enum


def grades(module: ModuleType) -> type:
    """Numbers with names, made by one of the two modules."""
    kind: type = type(module.IntEnum)("Grade", (module.IntEnum,), body(module.IntEnum, "Grade", {"LOW": 0, "HIGH": 3}))
    return kind


def words(module: ModuleType) -> type:
    """Texts with names."""
    kind: type = type(module.StrEnum)("Word", (module.StrEnum,), body(module.StrEnum, "Word", {"A": "a", "B_C": "b c"}))
    return kind


def body(base: type, name: str, members: dict[str, object]) -> dict[str, object]:
    """What stands in the class."""
    prepared = type(base).__prepare__(name, (base,))
    for key, value in members.items():
        prepared[key] = value
    return prepared  # type: ignore[return-value]


def told(kind: type) -> list[object]:
    """What a program can ask of it."""
    found: list[object] = []
    for member in kind:  # type: ignore[attr-defined]
        found += [member, member.name, member.value, f"{member}", str(member), hash(member), member == member.value]
        found += [kind(member.value) is member, kind[member.name] is member, kind(member) is member]  # type: ignore[index]
        found += [isinstance(member, kind), getattr(kind, member.name) is member, {member: 1}[member.value]]
    for value in (99, "z", None):
        try:
            kind(value)
        except ValueError as error:
            found.append(str(error))
    with pytest.raises(KeyError):
        kind["NONE"]  # type: ignore[index]
    return [*found, max(kind), tuple(kind)]  # type: ignore[call-overload, arg-type]


@pytest.mark.parametrize("made", [grades, words])
def test_members_are_what_the_real_ones_are(made: object) -> None:
    assert callable(made)
    assert told(made(light_enum)) == told(made(enum))


def test_the_real_one_stays_where_it_is_loaded() -> None:
    with light_enum.Importing():
        assert sys.modules["enum"] is enum
    assert sys.modules["enum"] is enum


def test_it_is_there_for_one_import_and_the_real_one_for_all_that_come_later() -> None:
    script = (
        "import sys; from neurontools.light import enum as light\n"
        "with light.Importing():\n    import enum; assert enum is not light and enum.IntEnum is light.IntEnum\n"
        "assert 'enum' not in sys.modules; import re, enum; assert enum.IntFlag"
    )
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-S", "-c", script], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
