"""Limits on one report of a process: more than ten times what training needs.

A BERT trained and evaluated on eight sequence lengths has 15 models, each with a subgraph on one core. The torch device
keeps at most 512 programs by default.
"""

FINAL_REPORT = b"final_report"
"""First word of the line that announces a final report on the attach socket; the size of the report in bytes follows.

The serialized Report follows the line. The process then closes the connection, so the daemon has the report before the
end of the connection, even if the process has ended by then.
"""
MOST_FINAL_REPORT_BYTES = 2**17  # less than the send buffer of a Unix socket

MOST_MODELS = 512
MOST_OPERATORS = 17  # times of 16 operators, and the sum of all other operators
LONGEST_OPERATOR_NAME = 128
LONGEST_COLLECTIVE = 32
MOST_ADVICE = 4
LONGEST_ADVICE = 400  # characters of each text
MOST_SUBGRAPHS = 1024  # subgraphs of all models together: enough for eight models on 128 cores
MOST_SERVED_MODELS = 16
LONGEST_SERVED_MODEL = 128  # characters of the name
MOST_PLACEMENTS = 256  # placements of one served model: two on each of 128 cores
