"""What to change in a training script first: rules over what a run counted. No torch, no clock, no I/O."""

IGNORED_RULES = "NEURONTOOLS_IGNORE_ADVICE"
"""The variable with the rules that are to say nothing while a script runs: names with commas between, or `all`."""

EVERY_RULE = "all"
