"""What of an environment is shown, and what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.text.secrets import HIDDEN, shown_value


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_SESSION_TOKEN",
        "PGPASSWORD",
        "db_password",
        "MYSQL_PWD",
        "SSH_KEY_PASSPHRASE",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "SENTRY_DSN",
        "AZURE_STORAGE_CONNECTION_STRING",
        "SLACK_WEBHOOK",
        "GITHUB_PAT",
        "HTTP_AUTHORIZATION",
        "COOKIE",
    ],
)
def test_a_name_that_says_so_is_enough(name: str) -> None:
    assert shown_value(name, "x") == HIDDEN


@pytest.mark.parametrize(
    "value",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "github_pat_11ABC",
        "hf_abcdefghijklmnopqrstuvwxyz",
        "sk-proj-abcdefghijkl",
        "xoxb-123",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
        "-----BEGIN PRIVATE KEY-----",
        "postgres://user:hunter2@db/train",
        "Bearer abc",
        "--endpoint x --api-key=abc",
        "wJalrXUtnFEMI/K7MDENGbPxRfiCYEXAMPLEKEY",
        "0123456789abcdef0123456789abcdef",
        "https://s3.example.org/a?X-Amz-Signature=0123",
        '{"token": "x"}',
    ],
)
def test_a_value_that_looks_like_one_is_enough(value: str) -> None:
    assert shown_value("SOMETHING", value) == HIDDEN


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/bin"),
        ("PWD", "/home/me/project-2026-11-22/run_0001"),
        ("SSH_AUTH_SOCK", "/run/user/1000/keyring/ssh"),
        ("NEURON_RT_VISIBLE_CORES", "0-31"),
        ("NEURON_CC_FLAGS", "--model-type=transformer --distribution-strategy=llm-training -O1"),
        ("PYTHONPATH", "/opt/aws/neuronx/lib/python3.10/site-packages"),
        ("TORCHELASTIC_RUN_ID", "none"),
        ("MASTER_ADDR", "ip-10-0-0-12.us-east-1.compute.internal"),
        ("KEYBOARD", "us"),
        ("MONKEY", "business"),
        ("EMPTY_TOKEN", ""),
    ],
)
def test_what_people_look_for_is_shown(name: str, value: str) -> None:
    assert shown_value(name, value) == value


@given(st.text(max_size=200), st.text(max_size=2000))
def test_any_text_is_shown_or_hidden(name: str, value: str) -> None:
    assert shown_value(name, value) in (value, HIDDEN)
