"""Names and docstrings say what a thing is: no vague word in an identifier, no docstring that opens with a question."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tcbench

PACKAGE = Path(tcbench.__file__).parent

VAGUE = {"found", "told", "mend", "mends", "hollow", "sheet", "sheets", "attack", "attacks", "elsewhere", "sides"}
VAGUE |= {"wavers", "exhausted", "look", "looks"}
NOT_OURS = frozenset({"DistributionNotFound", "FileNotFoundError", "ModuleNotFoundError", "PackageNotFoundError"})
"""Exceptions of the standard library and of packages."""
RIDDLES = frozenset({"What", "Where", "How", "Which", "Who"})


def names(tree: ast.AST) -> Iterator[str]:
    """Every identifier of a module, with those that its imports bring and rename."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname", "rest"):
            if isinstance(name := getattr(node, field, None), str):
                yield name
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        if isinstance(node, ast.Global | ast.Nonlocal):
            yield from node.names


def words(name: str) -> set[str]:
    """The words of a name in snake or camel case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def vague_names(tree: ast.AST) -> set[str]:
    return {name for name in names(tree) if words(name) & VAGUE and name not in NOT_OURS}


def riddles(tree: ast.AST) -> list[str]:
    """First lines of docstrings that open with a question word, those under constants and fields too."""
    alone = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    texts = (node.value.strip() for node in alone if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [text.splitlines()[0] for text in texts if re.split(r"\W", text, maxsplit=1)[0] in RIDDLES]


def test_no_name_holds_a_word_that_says_nothing_of_what_it_names():
    assert {str(path.relative_to(PACKAGE)): vague for path, tree in modules() if (vague := vague_names(tree))} == {}


def test_no_docstring_opens_with_a_question_word():
    assert {str(path.relative_to(PACKAGE)): opens for path, tree in modules() if (opens := riddles(tree))} == {}


def test_no_file_is_named_so():
    assert [str(path) for path in PACKAGE.rglob("*") if words(path.stem) & VAGUE and path.suffix != ".pyc"] == []


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, ast.parse(path.read_text("utf-8"))


@pytest.mark.parametrize(
    "code",
    [
        *("found = 1", "x.told = 1", "def f(sides): ...", "class HollowSite: ...", "f(look=1)", "import a as mend"),
        *("from sheet import a", "class _Look: ...", "SIDES = 1", "def f():\n global looks", "best_found_yet()"),
    ],
)
def test_a_vague_name_is_seen(code):
    assert vague_names(ast.parse(code))


@pytest.mark.parametrize("code", ["foundation = outlook", "raise FileNotFoundError", "besides(stylesheet)"])
def test_other_names_are_not(code):
    assert vague_names(ast.parse(code)) == set()


@pytest.mark.parametrize(
    "code",
    [
        *('"""What it is."""', 'def f():\n """How?"""', 'class A:\n """Where it lies."""', '"""Which, then."""'),
        *('X = 1\n"""Where it begins."""', 'class A:\n x: int\n """What it holds."""', '"""\n  Who else."""'),
    ],
)
def test_a_docstring_that_opens_with_a_question_word_is_seen(code):
    assert len(riddles(ast.parse(code))) == 1
