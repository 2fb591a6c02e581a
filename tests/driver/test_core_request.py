from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.driver.environment import InvalidCoreRequest
from neurontools.driver.neuron_runtime import HIGHEST_CORE, CoreRequest, parse_visible_cores

VISIBLE = "NEURON_RT_VISIBLE_CORES"
NUMBER = "NEURON_RT_NUM_CORES"
LNC = "NEURON_LOGICAL_NC_CONFIG"
ALIAS = "NEURON_RT_VIRTUAL_CORE_SIZE"


ASKED: list[tuple[dict[str, str], CoreRequest]] = [
    ({}, CoreRequest()),
    ({VISIBLE: "", NUMBER: " ", LNC: ""}, CoreRequest()),
    ({VISIBLE: "2-3", NUMBER: "8"}, CoreRequest(2, 2)),
    ({VISIBLE: "2-3", NUMBER: "nonsense"}, CoreRequest(2, 2)),
    ({LNC: "1", ALIAS: "2"}, CoreRequest(logical_neuroncore_config=1)),  # the newer name wins
    ({LNC: "2", NUMBER: "4"}, CoreRequest(count=4, logical_neuroncore_config=2)),
    ({ALIAS: "1", NUMBER: "4"}, CoreRequest(count=4, logical_neuroncore_config=1)),
]
COUNTS = {"1": 1, "32": 32, " 4 ": 4, "0": None, "00": None, "65535": HIGHEST_CORE}
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


def test_what_is_asked_for() -> None:
    for environment, request in ASKED:
        assert CoreRequest.from_environment(environment) == request
    for text, count in COUNTS.items():
        assert CoreRequest.from_environment({NUMBER: text}) == CoreRequest(count=count)
    for text, (first, count) in FORMS.items():
        assert CoreRequest.from_environment({VISIBLE: text}) == CoreRequest(first, count)


LONG = "x" * 60
APART = "Neuron cores are not contiguous: NEURON_RT_VISIBLE_CORES="
# A variable, a value of it that can't be meant, and how the refusal begins behind the two.
REFUSED = [
    (VISIBLE, "6-3", ": the range 6-3 runs backwards; write 3-6"),
    *((VISIBLE, text, ": '' is not a core index; give cores such as 3, 3-6") for text in ("3,", "-3")),
    (VISIBLE, "3-4-5", ": '4-5' is not a core index; give cores"),
    # A digit that is not an ASCII one, and a core that can't be.
    *(
        (VISIBLE, text, f": '{text}' is not a core index; give")
        for text in ("all", "1.5", "+1", LONG, "\u0663", "65536")
    ),
    *((NUMBER, text, ": not a number of cores; give a whole number from 1") for text in ("-1", "two", "1.0", "65536")),
    *((NUMBER, text, ": not a number of cores; give") for text in ("1 2", "\u00b2", "000001")),
    *((LNC, text, ": not a logical NeuronCore configuration; set it to") for text in ("0", "3", "-1", "one", "1.0")),
    (ALIAS, "3", ": not a logical NeuronCore configuration; set it to"),
]


def refusal(name: str, text: str) -> str:
    with pytest.raises(InvalidCoreRequest) as refused:
        CoreRequest.from_environment({name: text})
    assert len(str(refused.value)) < 300
    return str(refused.value)


def test_what_is_refused() -> None:
    for name, text, said in REFUSED:
        assert refusal(name, text).startswith(f"{name}='{text}'{said}")
    # The first one is the example of the runtime's documentation.
    for text, found, due in (("3,5,6", 5, 4), ("3,3", 3, 4), ("4,3", 3, 5), ("0-3,3-5", 3, 4), ("1-2,2", 2, 3)):
        assert refusal(VISIBLE, text).startswith(f"{APART}'{text}' continues with {found} instead of {due}; give")
    for name in (VISIBLE, NUMBER, LNC, ALIAS):
        assert refusal(name, "9" * 10_000).startswith(f"{name}='{'9' * 57}...': ")


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
