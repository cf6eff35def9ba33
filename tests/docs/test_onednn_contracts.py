"""docs/onednn-contracts.md has a row for every function of oneDNN and OpenMP that is called, and no others."""

from __future__ import annotations

import ast
import re

import pytest
from docs.test_gpu_contracts import HEADER, ROOT, named

from tcbench.engine.accelerators.cpu.onednn import library

PAGE = ROOT / "docs" / "onednn-contracts.md"
ROOM = ROOT / "tcbench" / "engine" / "accelerators" / "cpu" / "onednn"
MAKERS = {"_call": "", "_create": "", "describe": "_primitive_desc_create"}
"""Methods of the engine that take a function's name, and the ending that they give it."""


def rows() -> list[list[str]]:
    table = PAGE.read_text("utf-8").partition(HEADER)[2].strip().splitlines()[1:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]


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
    assert set().union(*(named(row[0]) for row in rows())) == called()


def test_every_function_that_is_declared_is_called() -> None:
    assert {f"dnnl_{name}" for name in library._SIGNATURES} <= called()


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:60])
def test_a_row_says_where_its_contract_stands_and_which_test_holds_it(row: list[str]) -> None:
    _, contract, requires, held_by = row
    assert contract
    assert requires
    ((path, name),) = re.findall(r"`(tests/[\w/.]+)::(\w+)`", held_by)
    assert f"def {name}(" in (ROOT / path).read_text("utf-8")
