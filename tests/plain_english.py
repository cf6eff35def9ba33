"""Names and docstrings that only make sense to the reader of the code around them.

`uv run python tests/plain_english.py` lists all of tcbench and of the tests.
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
"""First words of a docstring that cannot be read without the name above it."""

DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


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
        for before, statement in zip([None, *body], body, strict=False):
            is_docstring = (before is None and isinstance(node, (ast.Module, *DEFINITIONS))) or isinstance(
                before, ast.Assign | ast.AnnAssign
            )
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))) if is_docstring:
                    yield text


def unclear(source: str) -> set[str]:
    """Return a module's names in NAMES, and the first lines of its docstrings that begin with a word in OPENINGS."""
    tree = ast.parse(source)
    openings = {text: re.match(r"\W*(\w+)", text) for text in docstrings(tree)}
    dangling = {text.strip().split("\n")[0] for text, word in openings.items() if word and word[1] in OPENINGS}
    return {name for name in names(tree) if name.strip("_") in NAMES} | dangling


def undocumented(source: str) -> list[str]:
    """Return the public classes and module-level functions without a docstring, and "module" for the module itself."""
    tree = ast.parse(source)
    public = [node for node in tree.body if isinstance(node, DEFINITIONS) and not node.name.startswith("_")]
    missing = [] if ast.get_docstring(tree) or not tree.body else ["module"]
    return missing + [node.name for node in public if not ast.get_docstring(node)]


def modules(*folders: str) -> Iterator[tuple[str, str]]:
    """Yield the path, relative to the repository, and the source of every module in these folders."""
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8")


def classes_with_two_meanings() -> list[str]:
    """Return the names that several classes of tcbench have, except private ones."""
    defined: Counter[str] = Counter()
    for _, source in modules("tcbench"):
        defined.update(node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    return sorted(name for name, times in defined.items() if times > 1 and not name.startswith("_"))


if __name__ == "__main__":
    for file, text in modules("tcbench", "tests"):
        for place in sorted(unclear(text)):
            print(f"{file}: {place}")
