from __future__ import annotations

import pytest

from neurontools import catalog
from neurontools.catalog.ultraserver import asked_place, is_server_id, simulated_server_id


def test_a_place_is_a_name_and_an_index() -> None:
    assert asked_place("rack-7.b_2:3", catalog.load("trn2u.48xlarge")) == ("rack-7.b_2", 3)
    assert asked_place("a:35", catalog.load("trn3e.24xlarge")) == ("a", 35)


@pytest.mark.parametrize(
    ("text", "instance_type", "cause"),
    [
        ("us-1:0", "trn2.48xlarge", "trn2.48xlarge is in no UltraServer"),
        ("us-1:4", "trn2u.48xlarge", "there is no node 4: a Trn2 UltraServer has 4; give 0 to 3"),
        ("us-1:36", "trn3e.24xlarge", "there is no node 36: a Trn3 Gen2 UltraServer has 36; give 0 to 35"),
        *(
            (text, "trn2u.48xlarge", "write NAME:INDEX")
            for text in ("", ":", ":0", "us-1", "us-1:", "us-1:-1", "us-1:x", "us-1:٣", "a b:0", "é:0", "a" * 65 + ":0")
        ),
    ],
)
def test_what_is_no_place_is_told_in_a_line(text: str, instance_type: str, cause: str) -> None:
    with pytest.raises(ValueError, match=cause) as told:
        asked_place(text, catalog.load(instance_type))
    assert "\n" not in str(told.value)


def test_an_invented_id_is_written_as_the_driver_does_and_cannot_pass_for_real() -> None:
    made = simulated_server_id("us-1")
    assert is_server_id(made)
    assert made.startswith("ffffffff")
    assert simulated_server_id("us-2") != made
    assert simulated_server_id("00000000000000a7") == "00000000000000a7"
    assert not is_server_id("0" * 16)
    assert not is_server_id("busy")
