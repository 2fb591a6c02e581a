from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.nrt.core_request import HIGHEST_CORE, CoreRequest, parse_visible_cores
from neurontools.nrt.environment import InvalidCoreRequest

VISIBLE = "NEURON_RT_VISIBLE_CORES"
NUMBER = "NEURON_RT_NUM_CORES"
LNC = "NEURON_LOGICAL_NC_CONFIG"
ALIAS = "NEURON_RT_VIRTUAL_CORE_SIZE"


@pytest.mark.parametrize(
    ("text", "first", "count"),
    [
        ("3", 3, 1),
        ("0", 0, 1),
        ("3-6", 3, 4),
        ("3-3", 3, 1),
        ("3,4,5", 3, 3),
        ("3-5,6", 3, 4),
        ("0-1,2,3-7", 0, 8),
        (" 3 - 5 , 6 ", 3, 4),
        ("65535", 65535, 1),
    ],
)
def test_every_form_of_visible_cores(text: str, first: int, count: int) -> None:
    assert CoreRequest.from_environment({VISIBLE: text}) == CoreRequest(first, count)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("3,5,6", "Neuron cores are not contiguous"),  # the example of the runtime's documentation
        ("3,3", "Neuron cores are not contiguous"),
        ("4,3", "Neuron cores are not contiguous"),
        ("0-3,3-5", "Neuron cores are not contiguous"),
        ("6-3", "the range 6-3 runs backwards; write 3-6"),
        ("all", "'all' is not a core index"),
        ("3,", "'' is not a core index"),
        ("-3", "'' is not a core index"),
        ("3-4-5", "'4-5' is not a core index"),
        ("1.5", "'1.5' is not a core index"),
        ("+1", "'+1' is not a core index"),
        ("\u0663", "is not a core index"),  # a digit, but not an ASCII one
        ("65536", "is not a core index"),
        ("9" * 10_000, "is not a core index"),
    ],
)
def test_visible_cores_that_cannot_be_meant(text: str, cause: str) -> None:
    with pytest.raises(InvalidCoreRequest) as refused:
        CoreRequest.from_environment({VISIBLE: text})
    said = str(refused.value)
    assert cause in said
    assert VISIBLE in said
    assert "give" in said or "write" in said
    assert len(said) < 300
    assert "\n" not in said


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("32", 32), (" 4 ", 4), ("0", None), ("00", None)])
def test_number_of_cores(text: str, count: int | None) -> None:
    assert CoreRequest.from_environment({NUMBER: text}) == CoreRequest(count=count)


@pytest.mark.parametrize("text", ["-1", "two", "1.0", "65536", "1 2", "\u00b2", "9" * 5000])
def test_a_number_of_cores_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(InvalidCoreRequest, match=rf"^{NUMBER}=.*: not a number of cores; give a whole number"):
        CoreRequest.from_environment({NUMBER: text})


def test_nothing_set_asks_for_all_cores() -> None:
    assert CoreRequest.from_environment({}) == CoreRequest(None, None, None)
    assert CoreRequest.from_environment({VISIBLE: "", NUMBER: " ", LNC: ""}) == CoreRequest(None, None, None)


def test_visible_cores_beat_the_number_of_cores() -> None:
    assert CoreRequest.from_environment({VISIBLE: "2-3", NUMBER: "8"}) == CoreRequest(2, 2)
    assert CoreRequest.from_environment({VISIBLE: "2-3", NUMBER: "nonsense"}) == CoreRequest(2, 2)


@pytest.mark.parametrize("name", [LNC, ALIAS])
@pytest.mark.parametrize("lnc", [1, 2])
def test_the_lnc_by_either_name(name: str, lnc: int) -> None:
    expected = CoreRequest(count=4, logical_neuroncore_config=lnc)
    assert CoreRequest.from_environment({name: str(lnc), NUMBER: "4"}) == expected


def test_the_newer_name_of_the_lnc_beats_its_alias() -> None:
    assert CoreRequest.from_environment({LNC: "1", ALIAS: "2"}).logical_neuroncore_config == 1


@pytest.mark.parametrize("name", [LNC, ALIAS])
@pytest.mark.parametrize("text", ["0", "3", "-1", "one", "1.0", "9" * 5000])
def test_an_lnc_that_cannot_be_meant(name: str, text: str) -> None:
    with pytest.raises(InvalidCoreRequest, match=rf"^{name}=.*: not a logical NeuronCore configuration; set it to 1"):
        CoreRequest.from_environment({name: text})


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({VISIBLE: "3,5"}, f"Neuron cores are not contiguous: {VISIBLE}='3,5' continues with 5 where 4 was due; give"),
        ({VISIBLE: "1-2,2"}, f"Neuron cores are not contiguous: {VISIBLE}='1-2,2' continues with 2 where 3 was due;"),
        ({VISIBLE: "6-3"}, f"{VISIBLE}='6-3': the range 6-3 runs backwards; write 3-6"),
        ({VISIBLE: "x" * 60}, f"{VISIBLE}='{'x' * 60}': '{'x' * 60}' is not a core index; give cores such as 3, 3-6"),
        ({NUMBER: "x" * 61}, f"{NUMBER}='{'x' * 57}...': not a number of cores; give a whole number from 1"),
        ({NUMBER: "000001"}, f"{NUMBER}='000001': not a number of cores"),
    ],
)
def test_the_words_of_a_refusal(environment: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidCoreRequest) as refused:
        CoreRequest.from_environment(environment)
    assert str(refused.value).startswith(text)


def test_the_highest_core_can_be_asked_for_and_none_above() -> None:
    assert HIGHEST_CORE == 65535
    assert CoreRequest.from_environment({NUMBER: "65535"}) == CoreRequest(count=65535)
    assert CoreRequest.from_environment({VISIBLE: "00003"}) == CoreRequest(3, 1)


core_lists = st.lists(st.text("0123456789-, ", max_size=12), max_size=6).map(",".join)


@given(text=st.text() | core_lists, number=st.text() | st.text("0123456789"), lnc=st.text() | st.sampled_from("12"))
def test_any_text_is_a_request_or_refused_in_one_line(text: str, number: str, lnc: str) -> None:
    for environment in ({VISIBLE: text}, {NUMBER: number}, {LNC: lnc}, {ALIAS: lnc}):
        try:
            request = CoreRequest.from_environment(environment)
        except InvalidCoreRequest as refused:
            assert next(iter(environment)) in str(refused)
            assert len(str(refused).splitlines()) == 1
        else:
            assert request.first is None or 0 <= request.first <= HIGHEST_CORE
            assert request.count is None or 1 <= request.count <= HIGHEST_CORE + 1


@given(first=st.integers(0, 1000), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8), spread=st.booleans())
def test_a_range_cut_into_pieces_is_the_range(first: int, sizes: list[int], spread: bool) -> None:
    pieces = []
    start = first
    for size in sizes:
        end = start + size - 1
        pieces.append(",".join(map(str, range(start, end + 1))) if spread or size == 1 else f"{start}-{end}")
        start = end + 1
    assert parse_visible_cores(",".join(pieces)) == (first, sum(sizes))
