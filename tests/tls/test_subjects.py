"""Whose certificate it is, and what that one may see."""

from __future__ import annotations

import pytest

from neurontools.tls.subjects import Role, Subjects, checked_name, subject_names


def test_names_are_uris_and_dns_names_alone() -> None:
    certificate = {
        "subject": ((("commonName", "admin.example.org"),),),
        "subjectAltName": (
            ("DNS", "Viewer.Example.org"),
            ("URI", "spiffe://example.org/Viewer"),
            ("IP Address", "10.0.0.1"),
            ("email", "a@example.org"),
        ),
    }
    assert subject_names(certificate) == ("viewer.example.org", "spiffe://example.org/Viewer")
    assert subject_names({}) == ()


def test_the_most_that_a_name_has_counts() -> None:
    subjects = Subjects([checked_name("Viewer.example.org")], ["spiffe://example.org/admin"])
    assert subjects.known(["other", "viewer.example.org"]) == ("viewer.example.org", Role.SUMMARY)
    admin = "spiffe://example.org/admin"
    assert subjects.known(["viewer.example.org", admin]) == (admin, Role.FULL)
    assert subjects.known(["spiffe://example.org/Admin"]) is None
    assert subjects.known(["x.viewer.example.org", "viewer.example.org.evil.org"]) is None
    assert subjects.known([]) is None


@pytest.mark.parametrize(
    "text", ["", "*.example.org", "a b", "a..b", ".", "spiffe://", "://x", "spiffe://a b", "x" * 64, "a." * 127 + "ab"]
)
def test_what_can_be_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no (DNS name|URI); write one such as"):
        checked_name(text)
