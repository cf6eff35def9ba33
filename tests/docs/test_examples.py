"""The committed examples show what commands draw and print now. `uv run python tools/examples.py` makes them anew."""

import contextlib
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import examples
import numpy as np
import pytest
from command import ended
from PIL import Image

from tcbench.analysis.summary import speedups, summarise
from tcbench.commands.run.table import results_table
from tcbench.core import store
from tcbench.show.tables import Screen

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
REMEDY = "out of date; make it anew: uv run python tools/examples.py"


class PageText(HTMLParser):
    """The text of a page, with its style sheet and scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.texts += data.split()


def page_text(path: Path) -> list[str]:
    parser = PageText()
    parser.feed(path.read_text("utf-8"))
    return parser.texts


def changed_pixels(old: Path, new: Path) -> float:
    """The share of pixels that clearly differ. Pictures of different sizes differ in all."""
    with Image.open(old) as before, Image.open(new) as after:
        if before.size != after.size:
            return 1.0
        pixels = [np.asarray(image.convert("RGB"), np.int16) for image in (before, after)]
    return float(np.mean(np.abs(pixels[0] - pixels[1]).max(axis=2) > 64))


def same_matplotlib(old: Path, new: Path) -> bool:
    with Image.open(old) as before, Image.open(new) as after:
        return before.info.get("Software") == after.info.get("Software")


@pytest.mark.long
@pytest.mark.parametrize("example", examples.EXAMPLES)
def test_an_example_is_what_its_command_writes_now(tmp_path, example):
    committed, drawn = RESULTS / example, tmp_path / Path(example).name
    if example in examples.NUMERICS:
        examples.numerics_chart(example, drawn)
    else:
        ended(RESULTS, *examples.COMMANDS[example], "-o", str(drawn))
    if drawn.suffix == ".html":
        assert page_text(committed) == page_text(drawn), REMEDY
    else:  # another matplotlib may draw letters otherwise
        allowed = 1e-5 if same_matplotlib(committed, drawn) else 0.01
        assert changed_pixels(committed, drawn) <= allowed, REMEDY


def test_every_committed_picture_and_page_is_an_example_or_says_why_it_cannot_be():
    committed = {str(path.relative_to(RESULTS)) for path in RESULTS.glob("*/*") if path.suffix in (".png", ".html")}
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
    shown = {name for name in committed if f"results/{name}" in pages}
    assert shown <= {*examples.EXAMPLES, *examples.NOT_REMADE}
    assert {*examples.EXAMPLES, *examples.NOT_REMADE} <= committed


def test_a_changed_word_in_a_picture_is_noticed(tmp_path):
    with Image.open(RESULTS / examples.EXAMPLES[0]) as image:
        pixels = np.array(image.convert("RGB"))
    pixels[100:108, 100:130] = 255 - pixels[100:108, 100:130]
    Image.fromarray(pixels).save(tmp_path / "changed.png")
    assert changed_pixels(RESULTS / examples.EXAMPLES[0], tmp_path / "changed.png") > 1e-5


def test_the_readmes_table_is_what_run_prints_without_a_gap():
    """The heading, then consecutive rows: a row that begins with `+` reads on from the row above."""
    records = store.read([RESULTS / "amd-epyc-2cpu" / "cpu-20261124-132901.jsonl"]).records
    summaries = summarise(records)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        Screen(columns=100).table(results_table(summaries, speedups(summaries)))
    lines = [line.rstrip() for line in printed.getvalue().splitlines()]
    shown = re.findall(r"```text\n(batch.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)[0].splitlines()
    first = lines.index(shown[1])
    assert shown == [lines[0], *lines[first : first + len(shown) - 1]]
    assert "+" not in shown[1]


CLAIMS = ("claims", "amd-epyc-2cpu/cpu-20261124-132901.jsonl", "amd-epyc-2cpu/numerics-20261121-145202.json")


@pytest.mark.parametrize(
    ("page", "number", "words"),
    [
        ("diff", 0, examples.COMMANDS["amd-epyc-2cpu/diff-fp32-fused.png"]),
        ("report", 0, CLAIMS),
        ("traces", 0, ("explain", "pytorch/adamw.json.gz")),
        ("traces", 1, ("diff", "pytorch/adamw.json.gz", "pytorch/adamw-fused.json.gz")),
    ],
)
def test_the_extract_on_a_page_is_what_the_command_prints(page, number, words):
    lines = [line.strip() for line in ended(RESULTS, *words).out.splitlines()]
    extract = re.findall(r"```text\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text("utf-8"), re.DOTALL)[number]
    assert [line for line in extract.splitlines() if line.strip() not in lines] == []
