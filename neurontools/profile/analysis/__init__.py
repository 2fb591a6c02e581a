"""Analyses of the profiles of a run: time, operators, graphs and memory, by line of the script.

The analyses are pure functions of `Profile`s. Times are seconds on the device that the profile names. FLOPs and bytes
are exact integers. None means unknown.
"""
