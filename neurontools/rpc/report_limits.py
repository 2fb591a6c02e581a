"""How much one report of a process may hold: more than ten times what training needs.

A BERT trained and evaluated on eight lengths of sequences has 15 models, each with a subgraph on one core; the torch
device keeps 512 programs at most unless it is told otherwise.
"""

MOST_MODELS = 512
MOST_OPERATORS = 17  # kinds, and one for the rest
LONGEST_OPERATOR_NAME = 128
LONGEST_COLLECTIVE = 32
MOST_ADVICE = 4
LONGEST_ADVICE = 400  # characters of each text
MOST_SUBGRAPHS = 1024  # of all models together: eight models on 128 cores
