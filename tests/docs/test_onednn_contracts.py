"""docs/onednn-contracts.md has a row for every function of oneDNN and OpenMP that is called, and no others."""

import ast
import re

import pytest
from docs.test_gpu_contracts import ROOT, call_names, check_row, rows_of

from tcbench.engine.accelerators.cpu.onednn import library

PAGE = ROOT / "docs" / "onednn-contracts.md"
ROOM = ROOT / "tcbench" / "engine" / "accelerators" / "cpu" / "onednn"
MAKERS = {"_call": "", "_create": "", "describe": "_primitive_desc_create"}
"""Methods of the engine that take a function's name, and the ending that they give it."""
ROWS = rows_of(PAGE)


def called() -> set[str]:
    """Functions that the modules name: as a string for one of MAKERS, or as an attribute of the library."""
    names = set()
    for path in ROOM.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(attr=maker), args=[ast.Constant(value=str(name)), *_]) if (
                    maker in MAKERS
                ):
                    names.add(f"dnnl_{name}{MAKERS[maker]}")
                case ast.Attribute(attr=name) if re.match(r"(dnnl|omp)_", name):
                    names.add(name)
    return names


def test_every_function_that_is_called_has_a_row_and_no_other() -> None:
    assert set().union(*(call_names(row[0]) for row in ROWS)) == called()


def test_every_function_that_is_declared_is_called() -> None:
    assert {f"dnnl_{name}" for name in library._SIGNATURES} <= called()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_a_row_says_where_its_contract_stands_and_which_test_holds_it(row: list[str]) -> None:
    check_row(row)
    assert "::" in row[-1]  # nothing waits for hardware
