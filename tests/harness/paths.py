"""Where things are that tests start."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
NEURON_LS = ROOT / "scripts" / "neuron-ls"
NEURON_TOP = ROOT / "scripts" / "neuron-top"
ATTACHED_CHILD = Path(__file__).with_name("attached_child.py")
PYTHONPATH = f"{ROOT}:{ROOT / 'daemon'}"
