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


FORMS = {
    "3": (3, 1),
    "0": (0, 1),
    "3-6": (3, 4),
    "3-3": (3, 1),
    "3,4,5": (3, 3),
    "3-5,6": (3, 4),
    "00003": (3, 1),
    "0-1,2,3-7": (0, 8),
    " 3 - 5 , 6 ": (3, 4),
    "65535": (HIGHEST_CORE, 1),
}


def test_every_form_of_visible_cores() -> None:
    for text, (first, count) in FORMS.items():
        assert CoreRequest.from_environment({VISIBLE: text}) == CoreRequest(first, count)


REFUSED = {
    "3,5,6": "Neuron cores are not contiguous",  # the example of the runtime's documentation
    **dict.fromkeys(("3,3", "4,3", "0-3,3-5"), "Neuron cores are not contiguous"),
    "6-3": "the range 6-3 runs backwards; write 3-6",
    **dict.fromkeys(("3,", "-3"), "'' is not a core index"),
    "3-4-5": "'4-5' is not a core index",
    **{text: f"'{text}' is not a core index" for text in ("all", "1.5", "+1")},
    # A digit that is not an ASCII one, a core that can't be, and a number without end.
    **dict.fromkeys(("\u0663", "65536", "9" * 10_000), "is not a core index"),
}


def test_visible_cores_that_cannot_be_meant() -> None:
    for text, cause in REFUSED.items():
        with pytest.raises(InvalidCoreRequest) as refused:
            CoreRequest.from_environment({VISIBLE: text})
        said = str(refused.value)
        assert all(part in said for part in (cause, VISIBLE))
        assert "give" in said or "write" in said
        assert (len(said) < 300, "\n" in said) == (True, False)


def test_number_of_cores() -> None:
    for text, count in {"1": 1, "32": 32, " 4 ": 4, "0": None, "00": None, "65535": HIGHEST_CORE}.items():
        assert CoreRequest.from_environment({NUMBER: text}) == CoreRequest(count=count)
    for text in ("-1", "two", "1.0", "65536", "1 2", "\u00b2", "9" * 5000):
        with pytest.raises(InvalidCoreRequest, match=rf"^{NUMBER}=.*: not a number of cores; give a whole number"):
            CoreRequest.from_environment({NUMBER: text})


def test_nothing_set_asks_for_all_cores() -> None:
    assert CoreRequest.from_environment({}) == CoreRequest(None, None, None)
    assert CoreRequest.from_environment({VISIBLE: "", NUMBER: " ", LNC: ""}) == CoreRequest(None, None, None)


def test_visible_cores_beat_the_number_of_cores() -> None:
    assert CoreRequest.from_environment({VISIBLE: "2-3", NUMBER: "8"}) == CoreRequest(2, 2)
    assert CoreRequest.from_environment({VISIBLE: "2-3", NUMBER: "nonsense"}) == CoreRequest(2, 2)


@pytest.mark.parametrize("name", [LNC, ALIAS])
def test_the_lnc_by_either_name(name: str) -> None:
    for lnc in (1, 2):
        expected = CoreRequest(count=4, logical_neuroncore_config=lnc)
        assert CoreRequest.from_environment({name: str(lnc), NUMBER: "4"}) == expected
    for text in ("0", "3", "-1", "one", "1.0", "9" * 5000):
        with pytest.raises(InvalidCoreRequest, match=rf"^{name}=.*: not a logical NeuronCore configuration; set it to"):
            CoreRequest.from_environment({name: text})
    assert CoreRequest.from_environment({LNC: "1", ALIAS: "2"}).logical_neuroncore_config == 1, "the newer name wins"


LONG = "x" * 60
WORDS = [
    ({VISIBLE: "3,5"}, f"Neuron cores are not contiguous: {VISIBLE}='3,5' continues with 5 where 4 was due; give"),
    ({VISIBLE: "1-2,2"}, f"Neuron cores are not contiguous: {VISIBLE}='1-2,2' continues with 2 where 3 was due;"),
    ({VISIBLE: "6-3"}, f"{VISIBLE}='6-3': the range 6-3 runs backwards; write 3-6"),
    ({VISIBLE: LONG}, f"{VISIBLE}='{LONG}': '{LONG}' is not a core index; give cores such as 3, 3-6"),
    ({NUMBER: LONG + "x"}, f"{NUMBER}='{LONG[:57]}...': not a number of cores; give a whole number from 1"),
    ({NUMBER: "000001"}, f"{NUMBER}='000001': not a number of cores"),
]


def test_the_words_of_a_refusal() -> None:
    for environment, text in WORDS:
        with pytest.raises(InvalidCoreRequest) as refused:
            CoreRequest.from_environment(environment)
        assert str(refused.value).startswith(text)


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
