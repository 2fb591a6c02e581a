"""Small changes to the source of a module, and the blocks of statements that they are in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from live_code import ChangedCode, changed_code, functions_of

_OPPOSITES: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_UNCHANGED_FIELDS = frozenset({"annotation", "returns", "decorator_list", "type_params"})
_UNCHANGED_NODES = (ast.JoinedStr, ast.Import, ast.ImportFrom)
_TEXT_KEYWORDS = frozenset({"help", "description", "epilog", "metavar"})
_ASSERTIONS = frozenset({"strict"})  # zip(strict=True) asserts that the lengths are equal
_TYPE_NAMES = frozenset({"TypeVar", "ParamSpec", "NewType", "Literal"})  # only the type checker reads their texts
_MOST_BLANKS = 2  # strings with more blanks count as sentences
_FUNCTION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True, eq=False)
class Mutant:
    """One change: `replacement` replaces `original` in the field `name` of `holder`, or in element `position` of it."""

    path: str
    tree: ast.Module
    source_line: str
    line: int
    holder: ast.AST
    name: str
    position: int | None
    original: ast.AST
    replacement: ast.AST
    block: int | None
    """The index of the innermost block in `blocks_of(tree)`, or None for code that runs at import."""

    @property
    def change(self) -> str:
        """Returns the change in one line."""
        return f"{_shown(self.original)} → {_shown(self.replacement)}"

    @property
    def has_caches(self) -> bool:
        """Whether a function of the module has the decorator `cache` or `lru_cache`."""
        functions = (node for node in ast.walk(self.tree) if isinstance(node, _FUNCTION_NODES))
        return any("cache" in ast.unparse(each) for function in functions for each in function.decorator_list)

    def text(self) -> str:
        """Returns the source of the changed module, without comments."""
        with self._applied():
            return ast.unparse(self.tree)

    def changed_code(self, path: str) -> ChangedCode | None:
        """Returns the code that live functions of the module at `path` need. None if the change needs an import."""
        if self.block is None:
            return None
        original = functions_of(self.tree, path)
        with self._applied():
            return changed_code(original, functions_of(self.tree, path))

    @contextmanager
    def _applied(self) -> Iterator[None]:
        self._put(self.replacement)
        try:
            yield
        finally:
            self._put(self.original)

    def _put(self, node: ast.AST) -> None:
        if self.position is None:
            setattr(self.holder, self.name, node)
        else:
            getattr(self.holder, self.name)[self.position] = node


def blocks_of(tree: ast.Module) -> list[list[ast.stmt]]:
    """Returns all statement lists inside functions, such as bodies, branches and handlers, in source order."""
    found: list[list[ast.stmt]] = []
    _collect_blocks(tree, found, in_function=False)
    return found


def _collect_blocks(node: ast.AST, found: list[list[ast.stmt]], *, in_function: bool) -> None:
    in_function = in_function or isinstance(node, _FUNCTION_NODES)
    if in_function and not isinstance(node, ast.ClassDef):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                found.append(block)
    for child in ast.iter_child_nodes(node):
        _collect_blocks(child, found, in_function=in_function)


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Returns all mutants of a module, in source order.

    Annotations, types and their imports, docstrings, f-strings, error texts, sentences, abstract methods, `strict` of
    zip, and defaults of parameters that a function accepts but doesn't read are not changed.
    """
    tree = ast.parse(source)
    return list(_Finder(path, tree, source.splitlines()).below(tree, 1, None, in_error=False))


class _Finder:
    """Finds the mutants of one module."""

    def __init__(self, path: str, tree: ast.Module, lines: list[str]) -> None:
        self._path, self._tree, self._lines = path, tree, lines
        self._block_numbers = {id(block): number for number, block in enumerate(blocks_of(tree))}
        self._unread = _unread_defaults(tree)

    def below(self, holder: ast.AST, line: int, block: int | None, *, in_error: bool) -> Iterator[Mutant]:
        """Yields the mutants below a node. `line` and `block` are those of the node."""
        match holder:
            case ast.keyword(arg=name) if name in _TEXT_KEYWORDS | _ASSERTIONS:
                return
            case ast.Call(func=ast.Name(id=name)) | ast.Subscript(value=ast.Name(id=name)) if name in _TYPE_NAMES:
                return
        for name, value in ast.iter_fields(holder):
            if name in _UNCHANGED_FIELDS:
                continue
            inner = self._block_numbers.get(id(value), block)
            for position, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(node, ast.AST) or id(node) in self._unread or _is_unchanged(node, in_error=in_error):
                    continue
                at = getattr(node, "lineno", line)
                for replacement in _replacements(node, name):
                    source_line = self._lines[at - 1].strip()
                    yield Mutant(
                        self._path, self._tree, source_line, at, holder, name, position, node, replacement, inner
                    )
                yield from self.below(node, at, inner, in_error=in_error or isinstance(node, ast.Raise))


def _unread_defaults(tree: ast.Module) -> set[int]:
    found: set[int] = set()
    for function in (node for node in ast.walk(tree) if isinstance(node, _FUNCTION_NODES)):
        read = {node.id for each in function.body for node in ast.walk(each) if isinstance(node, ast.Name)}
        given = function.args
        positional = zip(reversed([*given.posonlyargs, *given.args]), reversed(given.defaults), strict=False)
        for parameter, default in (*positional, *zip(given.kwonlyargs, given.kw_defaults, strict=True)):
            if not {parameter.arg, "locals"} & read:
                found.add(id(default))
    return found


def _is_unchanged(node: ast.AST, *, in_error: bool) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Assign(targets=[ast.Name(id="__slots__")]):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Raise(exc=ast.Name(id="NotImplementedError")):
            return True  # imports of types, and abstract methods
        case ast.Constant(value=str(text)):
            return in_error or text.count(" ") > _MOST_BLANKS
    return isinstance(node, _UNCHANGED_NODES)


def _replacements(node: ast.AST, name: str) -> Iterator[ast.AST]:
    match node:
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) | ast.BoolOp(op=operator) if (
            type(operator) in _OPPOSITES
        ):
            yield _with(node, op=_OPPOSITES[type(operator)]())
        case ast.Compare(ops=operators):
            for position, comparison in enumerate(operators):
                changed = _OPPOSITES[type(comparison)]()
                yield _with(node, ops=[*operators[:position], changed, *operators[position + 1 :]])
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as number):
            yield ast.Constant(number + 1)
        case ast.Constant(value=str(text)):
            yield ast.Constant(text + "x")
        case ast.Call(func=ast.Name(id=function)) if function in _FUNCTIONS:
            yield _with(node, func=ast.Name(_FUNCTIONS[function], ast.Load()))
        case ast.Return(value=ast.expr() as returned) if ast.unparse(returned) not in ("None", "False"):
            yield ast.Return(ast.Constant(None))
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()
    match node:
        case (
            ast.Expr(value=ast.Call())
            | ast.Raise()
            | ast.Delete()
            | ast.AugAssign()
            | ast.Assign(targets=[ast.Attribute() | ast.Subscript()])
        ):
            yield ast.Pass()
        case ast.Name() | ast.Attribute() | ast.Call() | ast.NamedExpr() if name in ("test", "ifs"):
            yield ast.UnaryOp(ast.Not(), node)


def _with(node: ast.AST, **changes: object) -> ast.AST:
    fields = {name: getattr(node, name, None) for name in node._fields}
    return type(node)(**fields | changes)


def _shown(node: ast.AST) -> str:
    first, *rest = ast.unparse(node).splitlines()
    return first + (" ..." if rest else "")
