"""Names and docstrings that only make sense beside the code: how many each file still has.

`uv run python tests/plain_english.py >tests/plain_english.tsv` records the counts after some are gone.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

NAMES = frozenset(
    re.findall(
        r"\w+",
        "apart asked at beside by every found given here its kept known made named of one others ours own said so such "
        "taken theirs there those told wanted what which whole whose",
    )
)
"""Pronouns, prepositions and participles, which say nothing of the value that they name."""

OPENINGS = frozenset(
    re.findall(
        r"\w+",
        "As Asked At Behind Beside Between By For Found From Given In Its Of On That Those Told Under What Where Which "
        "Whose With Without",
    )
)
"""First words of a docstring that reads on from the name above it."""


def names(tree: ast.AST) -> Iterator[str]:
    """Yield every name that a module binds."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(asname=str(name)):
                yield name


def docstrings(tree: ast.AST) -> Iterator[str]:
    """Yield the docstrings of a module, its classes, functions and constants."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        for before, statement in zip([None, *body], body, strict=False):
            is_docstring = (before is None and isinstance(node, documented)) or isinstance(
                before, ast.Assign | ast.AnnAssign
            )
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))) if is_docstring:
                    yield text


def counts(source: str) -> tuple[int, int]:
    """Return how many names and how many docstrings of a module break the rules."""
    tree = ast.parse(source)
    openings = (re.match(r"\W*(\w+)", text) for text in docstrings(tree))
    return (
        sum(name.strip("_") in NAMES for name in names(tree)),
        sum(word is not None and word[1] in OPENINGS for word in openings),
    )


def undocumented(source: str) -> list[str]:
    """Return the public classes and module-level functions without a docstring, and "module" for the module itself."""
    tree = ast.parse(source)
    definitions = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    public = [node for node in tree.body if isinstance(node, definitions) and not node.name.startswith("_")]
    missing = [] if ast.get_docstring(tree) or not tree.body else ["module"]
    return missing + [node.name for node in public if not ast.get_docstring(node)]


def every_undocumented() -> list[str]:
    """Return the places in tcbench that lack a docstring, as `file: name`."""
    return [
        f"{path.relative_to(ROOT).as_posix()}: {name}"
        for path in sorted((ROOT / "tcbench").rglob("*.py"))
        for name in undocumented(path.read_text("utf-8"))
    ]


def classes_with_two_meanings() -> list[str]:
    """Return the names that several classes of tcbench have, private ones left out."""
    defined: Counter[str] = Counter()
    for path in sorted((ROOT / "tcbench").rglob("*.py")):
        defined.update(node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.ClassDef))
    return sorted(name for name, times in defined.items() if times > 1 and not name.startswith("_"))


def every_count() -> dict[str, tuple[int, int]]:
    """Return the counts of each file of tcbench/ and tests/ that has any."""
    files = sorted(path for folder in ("tcbench", "tests") for path in (ROOT / folder).rglob("*.py"))
    by_file = {path.relative_to(ROOT).as_posix(): counts(path.read_text("utf-8")) for path in files}
    return {name: both for name, both in by_file.items() if any(both)}


if __name__ == "__main__":
    for file, (bad_names, bad_docstrings) in every_count().items():
        print(file, bad_names, bad_docstrings, sep="\t")
