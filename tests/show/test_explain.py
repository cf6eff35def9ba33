"""`tcbench explain`'s table, wide and narrow."""

from __future__ import annotations

import io

import factories
import pytest
from rich.console import Console

from tcbench.analysis.explanation import explain
from tcbench.show import explain as view

CONFIGS = ("fp32", "fp32+dali", "fp32+dali+batched+nhwc+fused+static_graph")


@pytest.mark.parametrize(("width", "with_needs"), [(80, False), (view.WIDE - 1, False), (view.WIDE, True), (160, True)])
def test_a_narrow_table_keeps_its_words_whole(width: int, with_needs: bool) -> None:
    records = [
        factories.make_record(config, 8, images_per_s=10.0 * (i + 1), trial=trial)
        for i, config in enumerate(CONFIGS)
        for trial in range(3)
    ]
    explained = explain(records)
    out = Console(file=io.StringIO(), width=width)
    out.print(view.table(explained, width))
    lines = out.file.getvalue().splitlines()
    assert ("host" in lines[0]) == with_needs
    assert all(len(line) <= width for line in lines)
    text = " ".join(" ".join(lines).split())
    for word in ("batch", "verdict", "next", "static_graph"):
        assert f" {word} " in f" {text} "
    assert len(lines) <= 1 + 3 * len(CONFIGS)
    assert ("A terminal of" in view.notes(explained, None, width)[0]) != with_needs
