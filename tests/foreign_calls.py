"""The calls that tcbench makes into libraries that only a GPU can exercise, found in its syntax trees.

A call counts as foreign where its receiver comes from such a library (an imported module, something made by one, or
an argument annotated Any that nothing of ours defines the method of), and where a C function is named in a string.
"""

import ast
import builtins
import collections
import contextlib
import functools
import logging
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
LIBRARIES = frozenset({"cupy", "cudnn", "cupti", "nvidia", "pynvml", "torch"})
ROOMS = ("tcbench/engine/accelerators/cuda", "tcbench/engine/feeds/dali.py", "tcbench/engine/backends/torch")
"""Modules that may contain such calls. The linter refuses imports of these libraries elsewhere."""
HOLDERS = frozenset({"array", "event", "graph", "module", "pipeline", "_pipeline", "stream", "_stream"})
"""Names that hold a library's object wherever they stand: as arguments, which nothing in a file gives away."""
C_FUNCTION = re.compile(r"(cudnn|nvml|cu|cuda|nvrtc)[A-Z][a-z]\w+")

_TEXT = frozenset(dir(str)) | {"decode", "data_as"}
_SUBMODULES = frozenset({"cuda", "dali", "fn", "runtime", "types"})
_ORDINARY = _TEXT | frozenset(
    name
    for kind in (
        *(bytes, int, float, list, dict, tuple, set, frozenset, Exception, Path, re.Pattern, re.Match),
        *(collections.deque, contextlib.ExitStack, threading.Event, logging.Logger),
        *(Connection, BaseProcess, BaseContext),
        *(np.ndarray, np.dtype, np.random.Generator, np.random.RandomState),
    )
    for name in dir(kind)
)
"""Methods of Python's and NumPy's own objects."""


@dataclass(frozen=True)
class ForeignCall:
    """A call as it is written, by its last name, and where."""

    name: str
    written: str
    place: str


@functools.cache
def foreign_calls() -> tuple[ForeignCall, ...]:
    """Every one of them, in the order of files and lines."""
    defined = _defined_names()
    files = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")) or [ROOT / room])
    return tuple(call for path in files for call in _calls_of(path, defined))


def _defined_names() -> frozenset[str]:
    """Functions, classes, methods and fields that tcbench itself defines."""
    names = set()
    for path in (ROOT / "tcbench").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    names.add(name)
                case ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name)):
                    names.add(name)
    return frozenset(names)


def _calls_of(path: Path, defined: frozenset[str]) -> Iterator[ForeignCall]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules = _imported(tree)
    libraries = _grown(tree, _library_names(modules), _is_module)
    foreign = _grown(tree, HOLDERS | _library_names(modules), _is_foreign)
    defined = defined | _own_attributes(tree)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    within = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    file = path.relative_to(ROOT)
    for node in ast.walk(tree):
        place = f"{file}:{getattr(node, 'lineno', 0)}"
        match node:
            case ast.Constant(value=str(text)) if C_FUNCTION.fullmatch(text):
                yield ForeignCall(text, text, place)
            case ast.Name(id=name) if id(node) in called and modules.get(name, "").split(".")[0] in LIBRARIES:
                yield ForeignCall(modules[name].rpartition(".")[2], name, place)
            case ast.Attribute(attr=name, value=receiver) if id(node) in called:
                of_a_library = C_FUNCTION.fullmatch(name) or (_is_foreign(receiver, foreign) and name not in _TEXT)
                if of_a_library or not _is_known(node, modules, defined):
                    yield ForeignCall(name, ast.unparse(node), place)
            case ast.Attribute(attr=name, value=receiver) if id(node) not in within and _is_foreign(receiver, foreign):
                # Handed on as it is: a function, a constant, a private name.
                if name.startswith("_") or (_is_module(receiver, libraries) and name not in _SUBMODULES):
                    yield ForeignCall(name, ast.unparse(node), place)


def _own_attributes(tree: ast.AST) -> frozenset[str]:
    """Return the names that the file's classes assign on `self`, and so may call."""
    return frozenset(
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def _imported(tree: ast.AST) -> dict[str, str]:
    """Return the dotted name that each imported name stands for."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _library_names(modules: dict[str, str]) -> frozenset[str]:
    return frozenset(name for name, module in modules.items() if module.split(".")[0] in LIBRARIES)


def _grown(tree: ast.AST, names: frozenset[str], belongs: Callable[[ast.expr, frozenset[str]], bool]) -> frozenset[str]:
    """The names, and those that are given what belongs to one of them, to a fixed point."""
    assignments = list(_assignments(tree))
    while True:
        more = {leaf for target, value in assignments if belongs(value, names) for leaf in _leaves(target)}
        if more <= names:
            return names
        names |= more


def _assignments(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets and what they are given; of a tuple one by one."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                yield from zip(targets, values, strict=True)
            case ast.Assign(targets=targets, value=value):
                yield from ((target, value) for target in targets)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield target, value
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                yield target, value


def _leaves(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Tuple):
        for part in target.elts:
            yield from _leaves(part)
    elif isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Attribute):
        yield target.attr


def _is_foreign(expression: ast.expr, foreign: frozenset[str]) -> bool:
    """Whether it is reached through a foreign name: `cupy.cuda`, `self._stream`, `graph.tensor(...)`."""
    match expression:
        case ast.Name(id=name):
            return name in foreign
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name in foreign
        case ast.Attribute(value=value, attr=name):
            return name in foreign or _is_foreign(value, foreign)
        case ast.Call(func=ast.Attribute() | ast.Name() as func):
            return _is_foreign(func, foreign)
        case ast.Subscript(value=value):
            return _is_foreign(value, foreign)
    return False


def _is_module(expression: ast.expr, names: frozenset[str]) -> bool:
    """Whether it is a library or a part of one, such as `self._cupy.cuda.runtime`, not what one of them made."""
    match expression:
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name in names
        case ast.Attribute(value=value):
            return _is_module(value, names)
    return False


def _is_known(function: ast.Attribute, modules: dict[str, str], defined: frozenset[str]) -> bool:
    """Whether the method is ours, Python's, or of a module that needs no GPU."""
    root = _root(function)
    if root is not None:
        if root in modules and modules[root].split(".")[0] not in LIBRARIES:
            return True
        if hasattr(builtins, root):
            return True
    return function.attr in defined or function.attr in _ORDINARY


def _root(expression: ast.expr) -> str | None:
    """The name that an expression starts from."""
    while isinstance(expression, ast.Attribute | ast.Subscript | ast.Call):
        expression = expression.func if isinstance(expression, ast.Call) else expression.value
    return expression.id if isinstance(expression, ast.Name) else None
