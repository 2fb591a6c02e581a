from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.http.compression import Document, Part, accepts_gzip


@given(st.lists(st.binary(max_size=100_000)))
def test_parts_make_one_gzip_file(contents: list[bytes]) -> None:
    document = Document(map(Part, contents))
    assert gzip.decompress(document.gzipped) == document.content == b"".join(contents)


def test_a_part_that_stays_is_not_compressed_again() -> None:
    stays = Part(b"level 1\n" * 1000)
    first = Document([stays, Part(b"one")]).gzipped
    kept = stays.deflated
    second = Document([Part(b"two"), stays]).gzipped
    assert kept in first
    assert kept in second
    assert stays.deflated is kept


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("", False),
        ("gzip", True),
        ("GZIP; q=0.3", True),
        ("deflate, gzip;q=1.0, *;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, *", False),
        ("*", True),
        ("*;q=0", False),
        ("identity", False),
        ("br;q=x, gzip;q=x", True),
    ],
)
def test_who_accepts_gzip(header: str, wanted: bool) -> None:
    assert accepts_gzip(header) is wanted
