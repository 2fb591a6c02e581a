"""What profiles of a training run tell: where the time went, what was computed, compiled and kept in memory, and where.

Pure functions of the profiles of a run's workers (`neurontools.profile`). Times are in seconds and of whatever the
profile says they are of; FLOPs and bytes are whole numbers and exact. None is unknown.
"""

from neurontools.profile.analysis.report import RunReport as RunReport
from neurontools.profile.analysis.report import build_report as build_report
