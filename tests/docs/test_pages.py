"""README.md, CONTRIBUTING.md and docs/: links lead somewhere, commands and paths exist, every command is listed."""

import dataclasses
import functools
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from command_lines import parse
from factories import make_cell, make_record
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tcbench.analysis.summary import summarise
from tcbench.commands import app
from tcbench.engine.rung import Rung
from tcbench.show import cells, tables

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "results" / "README.md", *(ROOT / "docs").rglob("*.md")]
INDEX = ROOT / "docs" / "README.md"
FOLDERS = ("tcbench/", "tests/", "docs/", "scenarios/", "benchmarks/", "tools/", ".ci/")


@functools.cache
def tokens(page: Path) -> list[Token]:
    """All tokens of a page, those inside of paragraphs and tables too."""
    tops = MarkdownIt().enable("table").parse(page.read_text("utf-8"))
    return [token for top in tops for token in (top, *(top.children or ()))]


def links(page: Path) -> list[str]:
    targets = [token for token in tokens(page) if token.type in ("link_open", "image")]
    return [str(token.attrs.get("href") or token.attrs["src"]) for token in targets]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    inside = MarkdownIt().parse(page.read_text("utf-8"))
    headings = [after for token, after in itertools.pairwise(inside) if token.type == "heading_open"]
    texts = ("".join(child.content for child in heading.children or ()) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


def problem(page: Path, link: str) -> str | None:
    """Why a link leads nowhere; None: it leads somewhere, or to the web, which no test asks."""
    if re.match(r"https?://", link):
        return None
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return f"no file {path}"
    if target.suffix == ".py":
        return stale(page, target, anchor)
    if anchor and anchor not in anchors(target):
        return f"no heading #{anchor} in {target.name}"
    return None


def stale(page: Path, file: Path, anchor: str) -> str | None:
    """Why a link to a line of code is wrong: the line does not define the name that the link shows."""
    for name in re.findall(rf"\[`(\w+)`\]\([^)]*/{file.name}#{anchor}\)", page.read_text("utf-8")) if anchor else ():
        line = file.read_text("utf-8").splitlines()[int(anchor[1:]) - 1]
        if not re.match(rf"(def |class )?{name}\b", line):
            return f"line {anchor[1:]} of {file.name} does not define {name}"
    return None


def shell_lines(page: Path) -> Iterator[str]:
    """The lines of a page's blocks of shell, continued lines joined."""
    for token in tokens(page):
        if token.type == "fence" and token.info == "sh":
            yield from token.content.replace("\\\n", " ").splitlines()


def commands(page: Path) -> list[list[str]]:
    parts = [part for line in shell_lines(page) for part in line.split("&&")]
    matches = (re.search(r"(?:^| |/)tcbench (?!-)(.*)", part) for part in parts)
    return [shlex.split(match[1], comments=True) for match in matches if match]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page):
    assert {link: why for link in links(page) if (why := problem(page, link))} == {}


def test_a_link_to_a_line_is_stale_once_the_function_is_elsewhere(tmp_path):
    (tmp_path / "code.py").write_text("import os\n\ndef run(): ...\n")
    (tmp_path / "page.md").write_text("[`run`](../here/code.py#L3) [`run`](../here/code.py#L1)")
    problems = [stale(tmp_path / "page.md", tmp_path / "code.py", anchor) for anchor in ("L3", "L1")]
    assert problems == [None, "line 1 of code.py does not define run"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_of_ours_that_a_page_names_exists(page):
    spans = [token.content.split("::")[0] for token in tokens(page) if token.type == "code_inline"]
    spans = [span for span in spans if span.startswith(FOLDERS)]
    paths = {span.split()[0] for span in spans if not re.search(r"[A-Z]{4}", span.replace("README", ""))}
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


COMMANDS = [(page, words) for page in PAGES for words in commands(page)]


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=[f"{p.name}: {' '.join(w)}"[:60] for p, w in COMMANDS])
def test_a_command_on_a_page_is_one_of_tcbenchs_with_all_its_options(page, words):
    parse(words)


README = ROOT / "README.md"
RUN_ANYWHERE = [line for line in shell_lines(README) if line.strip() and not re.search(r"\s#\s*needs\b", line)]
"""A line whose comment begins with "needs" (a GPU, the network, Slurm, a file of one's own) is not run by a test."""


def test_the_readme_shows_every_command():
    assert {words[0] for words in commands(README)} == set(typer.main.get_command(app).commands)


def test_the_readme_runs_anew_between_a_baseline_and_its_comparison():
    lines = [" ".join(words[:2]) for words in commands(README)]
    assert lines[lines.index("baseline set") + 1 :][:2] == ["run --model", "compare --baseline"]


def test_at_least_twenty_of_the_readmes_commands_run_anywhere():
    assert len(RUN_ANYWHERE) >= 20
    assert [line for line in RUN_ANYWHERE if not line.startswith("uv run tcbench ")] == []


@pytest.mark.readme
@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not on PATH")
def test_the_readmes_commands_run_in_their_order_in_a_fresh_clone(tmp_path):
    """Use this environment instead of a new one, with fewer and shorter cells, a smaller network and smaller images."""
    clone = tmp_path / "tcbench"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    scenario = clone / "scenarios" / "cpu.toml"
    text = scenario.read_text("utf-8").replace('"resnet50"', '"resnet18"')
    for part, key, value in (
        ("model", "image_size", "32"),
        ("measure", "batch_sizes", "[8]"),
        ("measure", "max_time_s", "0.3"),
        ("measure", "budget_s", "60"),
    ):
        text = re.sub(rf"^{key} = \S.*?(?=\s*(#|$))", "", text, flags=re.MULTILINE)
        text = text.replace(f"[{part}]\n", f"[{part}]\n{key} = {value}\n", 1)
    scenario.write_text(text, "utf-8")
    overrides = {"UV_PROJECT_ENVIRONMENT": sys.prefix, "UV_NO_SYNC": "1", "PYTHONPATH": str(clone)}
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"} | overrides
    for line in RUN_ANYWHERE:
        done = subprocess.run(line, shell=True, cwd=clone, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert "Traceback" not in done.stderr, line


def test_the_pages_show_every_command_at_work():
    group = typer.main.get_command(app)
    names = [
        name for command_group in (group, *group.commands.values()) for name in getattr(command_group, "commands", ())
    ]
    text = "".join(page.read_text("utf-8") for page in PAGES)
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def test_the_index_lists_every_page_and_no_page_is_listed_twice():
    listed = [(INDEX.parent / link).resolve() for link in links(INDEX) if not link.startswith("http")]
    assert set(PAGES) - {INDEX} <= set(listed)
    assert len(listed) == len(set(listed))


def test_the_table_of_rooms_names_the_packages_folders():
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "architecture.md").read_text("utf-8"), re.MULTILINE)
    folders = {path.parent.name for path in (ROOT / "tcbench").glob("*/__init__.py")} - {"measure", "backends"}
    assert sorted(rows) == sorted(folders)


def section(page: str, heading: str) -> str:
    """The text below a heading of the second level."""
    return (ROOT / page).read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_the_readme_and_the_ladders_table_name_every_rung():
    from tcbench.engine.backends import backend

    rungs = set(backend("chainer").RUNGS.rungs)
    assert set(re.findall(r"`(\w+)`", section("README.md", "Rungs"))) == rungs
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "ladder.md").read_text("utf-8"), re.MULTILINE)
    scenarios = {path.stem for path in (ROOT / "scenarios").glob("*.toml")}
    assert set(rows) == rungs | scenarios


def test_the_page_on_runs_explains_every_column_of_the_table():
    summaries = summarise([make_record(cell=make_cell(model=name, ranks=n)) for name, n in (("a", 1), ("b", 2))])
    declared = [dataclasses.replace(summary, flops=1e9) for summary in summaries]
    columns = [*tables.cell_columns([s.cell for s in summaries], lambda cell: cell), *cells.columns(declared)]
    names = {"config", *(column.name for column in columns if column.on != "page")}
    assert names - set(re.findall(r"\*\*([^*]+)\*\*", section("docs/run.md", "How to read the table"))) == set()


def test_the_recipe_of_a_rung_names_attributes_that_rungs_have():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    recipe = text[text.index("## Add a rung") : text.index("## Add a kernel")]
    rows = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in recipe.splitlines() if line.startswith("    | `")]
    methods = re.search(r"that it changes: (.*?)\. If", recipe, re.DOTALL)
    assert methods
    names = [*itertools.chain.from_iterable(rows), *re.findall(r"`(\w+)`", methods[1]), "reference_update"]
    assert len(names) == 13 and set(names) <= {*vars(Rung), *Rung.__annotations__}
