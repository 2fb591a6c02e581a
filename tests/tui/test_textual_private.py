"""Private parts of Textual: all exist in the installed version, and neuron-top works without them."""

from __future__ import annotations

import string

import pytest
from textual.widget import Widget

from neurontools.tui import textual_private
from neurontools.tui.textual_private import PRIVATE_PARTS, PrivatePart, character_to_key, driver_class, missing_parts


def test_the_installed_textual_has_every_private_part() -> None:
    assert missing_parts() == []


@pytest.mark.parametrize("part", [part for part in PRIVATE_PARTS if part.is_of_driver], ids=lambda part: part.name)
def test_without_a_part_of_the_driver_textual_uses_its_own(part: PrivatePart, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = PrivatePart(part.name, lambda: False, part.fallback)
    others = tuple(absent if each is part else each for each in PRIVATE_PARTS)
    monkeypatch.setattr(textual_private, "PRIVATE_PARTS", others)
    assert missing_parts() == [part.name]
    assert driver_class(continues=True) is None
    assert driver_class(continues=False) is None


def test_an_absent_name_is_found_missing() -> None:
    assert not textual_private.uses_attribute(Widget, "_no_such_attribute")()
    assert textual_private.import_optional("textual._no_such_module", "Parser") is None


def test_key_names_without_the_private_function(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = string.ascii_letters + string.digits + "[]{}/?<>\\é"
    expected = {character: character_to_key(character) for character in typed}
    monkeypatch.setattr(textual_private, "textual_character_to_key", None)
    assert {character: character_to_key(character) for character in typed} == expected
