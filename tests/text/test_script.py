"""What a command line runs."""

from __future__ import annotations

import pytest

from neurontools.text.script import script_text


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("/opt/venv/bin/python3 -u /home/me/train.py --lr 0.1", "train.py --lr 0.1"),
        ("/venv/bin/python -u -m neurontools.runtime /home/me/train.py --lr 0.1", "train.py --lr 0.1"),
        ("python3 -m neurontools.runtime -m package.train --lr 0.1", "package.train --lr 0.1"),
        ("python3.11 -X dev -W error -B train.py", "train.py"),
        (
            "python3 -m torch.distributed.run --nproc_per_node 2 train.py",
            "torch.distributed.run --nproc_per_node 2 train.py",
        ),
        ("python -c import time; time.sleep(9)", "-c import time; time.sleep(9)"),
        ("/usr/bin/pypy3 serve.py", "serve.py"),
        ("/opt/bin/server --port 8000 --model /models/llama", "server --port 8000 --model /models/llama"),
        ("pythonic /etc/hosts", "pythonic /etc/hosts"),
        ("/usr/bin/python3", "python3"),
        ("python3 -m", "python3"),
        ("[synthetic load steady] rank 0 of 32", "[synthetic load steady] rank 0 of 32"),
        ("", ""),
        ("   ", ""),
        ("/", "/"),
    ],
)
def test_the_script_is_shown_without_what_starts_it(command: str, script: str) -> None:
    assert script_text(command) == script


def test_a_command_without_end_costs_nothing() -> None:
    assert len(script_text("python3 train.py " + "x" * 10_000_000)) < 5000
