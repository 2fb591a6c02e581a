"""What one end says, the other end understands; what nobody means is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.rpc import profile_words
from neurontools.rpc.profile_words import LONGEST_SECONDS, MOST_STEPS, Wanted

wanted = st.builds(
    Wanted,
    st.integers(1, int(LONGEST_SECONDS * 1e6)).map(lambda microseconds: microseconds / 1e6),
    st.none() | st.integers(1, MOST_STEPS),
)


@given(st.integers(1, 2**31 - 1), wanted)
def test_a_request_arrives_as_it_was_meant(pid: int, meant: Wanted) -> None:
    line = profile_words.request_of(pid, meant)
    assert line.endswith(b"\n")
    assert profile_words.is_request(line)
    assert profile_words.read_request(line[:-1]) == (pid, meant)
    word, _, value = profile_words.passed_on(meant)[:-1].partition(b" ")
    assert (word, profile_words.read_passed_on(value)) == (profile_words.PROFILE, meant)


@pytest.mark.parametrize(
    "line",
    [
        b"profile 1",
        b"profile 0 1 1",
        b"profile -1 1 1",
        b"profile 2147483648 1 1",
        b"profile 1 0 1",
        b"profile 1 nan 1",
        b"profile 1 inf 1",
        b"profile 1 3600.1 1",
        b"profile 1 1 -1",
        b"profile 1 1 1000001",
        b"profile 1 1 1 1",
        b"profiles 1 1 1",
        b"profile 1 1 " + b"0" * 64,
        b"\xff \xff \xff \xff",
        b"",
    ],
)
def test_rubbish_is_refused(line: bytes) -> None:
    assert not is_read(profile_words.read_request, line)


def is_read(read: Callable[[bytes], object], line: bytes) -> bool:
    """Whether it is understood; ValueError is the only other outcome."""
    try:
        read(line)
    except ValueError:
        return False
    return True


@given(st.binary(max_size=100))
def test_whatever_comes_is_read_or_refused(line: bytes) -> None:
    for read in (profile_words.read_request, profile_words.read_passed_on):
        is_read(read, line)


def test_refusals_and_failures_arrive_with_their_reasons() -> None:
    line = profile_words.refusal_of(profile_words.DENIED, "PID 1 is of user 0; ask it")
    assert profile_words.read_refusal(line[:-1]) == ("denied", "PID 1 is of user 0; ask it")
    assert profile_words.read_refusal(b"what now") == ("now", "what now"), "of a newer daemon"
    said = profile_words.failure_of("it rests")
    assert profile_words.is_failure(said)
    assert profile_words.read_failure(said[:-1]) == "it rests"
    assert not profile_words.is_failure(profile_words.ASKED + b"\nfailed ")
