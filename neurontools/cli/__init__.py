"""The commands. Each parses options, asks the monitor daemon and prints the answer.

A command that imports fewer modules starts faster.
"""
