"""Files that can't be read, told in a few lines however many they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from neurond.sources.sysfs.counter_files import CounterFiles

_ADVICE = {"Permission denied": "; run neurond as root", "Too many open files": "; raise LimitNOFILE"}


def file_problems(readers: Iterable[Sequence[tuple[str, CounterFiles]]]) -> list[str]:
    """A line for each cause, with an example and how many files there are of it."""
    causes: dict[str, tuple[str, int]] = {}
    for files in readers:
        for name, part in files:
            for cause, (path, count) in part.problems.items():
                example, before = causes.get(cause, (f"{name}/{path}", 0))
                causes[cause] = (example, before + count)
    return [
        f"{example}{f' and {count - 1} files more' if count > 1 else ''} can't be read: {cause}{_ADVICE.get(cause, '')}"
        for cause, (example, count) in causes.items()
    ]
