"""Synthetic load: invented processes for demonstrations and tests, always marked synthetic and the same for a seed."""

from neurond.load.scenarios import SCENARIOS as SCENARIOS
from neurond.load.synthetic_load import SyntheticLoad as SyntheticLoad
