"""The commands. Each parses options, asks the monitor daemon and prints the answer.

A command starts faster the fewer modules it imports.
"""
