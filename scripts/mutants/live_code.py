"""Changes the code of live functions to that of a mutant, so that a process with imported modules can try it."""

from __future__ import annotations

import ast
import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType

ChangedCode = list[tuple[CodeType, CodeType]]
"""The original and the mutant's code of each function that differs."""
FunctionCodes = Mapping[tuple[str, int, int], list[CodeType]]
"""The code of the functions of a module by name, first line and number of arguments."""


def live_functions() -> dict[str, list[FunctionType]]:
    """Returns all Python functions of this process by source file. Freezes all objects against garbage collection."""
    gc.unfreeze()
    found: dict[str, list[FunctionType]] = defaultdict(list)
    for each in gc.get_objects():
        if type(each) is FunctionType:
            found[each.__code__.co_filename].append(each)
    gc.freeze()
    return found


def functions_of(tree: ast.Module, path: str) -> FunctionCodes:
    """Compiles the functions of a module. `path` is its source file."""
    found: dict[tuple[str, int, int], list[CodeType]] = defaultdict(list)
    for code in _below(compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)):
        found[code.co_qualname, code.co_firstlineno, code.co_argcount].append(code)
    return found


def changed_code(original: FunctionCodes, mutated: FunctionCodes) -> ChangedCode | None:
    """Returns the code of the functions that differ.

    None if live functions can't take it: they need equal numbers of closure cells, and an unambiguous position.
    """
    found: ChangedCode = []
    for position, codes in original.items():
        others = mutated.get(position, [])
        if others and len(others) != len(codes):
            return None
        for code, other in zip(codes, others, strict=False):  # a mutant may lack inner functions
            if len(code.co_freevars) != len(other.co_freevars):
                return None
            if code != other:
                found.append((code, other))
    return found


def change_code(functions: Iterable[FunctionType], changed: ChangedCode) -> None:
    """Gives live functions their new code. Code compares by value, so functions of another compilation are found."""
    found = dict(changed)
    for function in functions:
        if function.__code__ in found:
            function.__code__ = found[function.__code__]


def _below(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _below(each)
