"""Write the corpus, the output of every command for known inputs as one text file per command, or compare two.

    uv run python tools/corpus.py write FOLDER [--only 'ranks*'] [--whole]
    uv run python tools/corpus.py compare OLD NEW

`write` runs the tcbench that this Python imports, in this process, and takes its inputs from that checkout's
`results/` and `tests/`; the script may be another checkout's. `compare` prints the differences, entry by entry, and
exits with 1 if there are any. Facts that vary between machines are replaced (`planted`) or removed (`RULES`). Entries
of up to KEPT lines are kept whole; each part of a longer one keeps its first HEAD lines and a digest of the rest. A
long line keeps its first LONG characters and a digest. --whole keeps everything. Two processes write the groups.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import datetime
import difflib
import fnmatch
import functools
import gc
import gzip
import hashlib
import html
import importlib
import importlib.util
import io
import itertools
import multiprocessing
import os
import re
import shlex
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

from corpus_inputs import CHECKOUT, INPUTS, Lines

KEPT = 400
"""The most lines of an entry that is kept whole."""
HEAD = 40
"""The number of lines kept of each part of a longer entry: an output, a file, a section of a page."""
LONG = 2000
"""The number of characters kept of a line."""


# -- reduction of each kind of output --- ---------------------------------------------------------------------------

RULES: tuple[tuple[str, str], ...] = (
    (r"oneDNN \d+(\.\d+)+", "oneDNN <version>"),
    (r"\(Python [\d.]+[^)]*\)|Python \d+\.\d+\.\d+", "<python>"),
    (r"(?<![\w.])(-?\d+\.\d{7})\d+(e[-+]\d+)?", r"\1…\2"),  # last digits depend on NumPy's and SciPy's vector units
    (r"[ \t]+$", ""),
    (r"^tracing training steps: \d+/\d+.*\n?", ""),  # a line every five seconds
)
"""Patterns replaced in all text, because they depend on the machine, the time or versions of libraries."""


def normal(text: str, folder: Path) -> str:
    """Return the text with paths replaced and RULES applied."""
    for path, name in ((folder, "<folder>"), (CHECKOUT, "<checkout>"), (Path(sys.prefix), "<environment>")):
        text = text.replace(str(path), name)
    for pattern, plain in RULES:
        text = re.sub(pattern, plain, text, flags=re.MULTILINE)
    return "".join(c if c.isprintable() or c == "\n" else f"\\u{ord(c):04x}" for c in text)


_TICK = r"[-−+]?[\d.,]+ ?[%k]?"
"""The pattern of tick labels, which `svg` joins on one line."""


def svg(text: str) -> list[str]:
    """Return a picture's texts in drawing order, then the shapes of each panel.

    Shapes are given by colour, place and size in thousandths of the panel, so that the page's layout does not matter.
    """
    builder = ElementTree.TreeBuilder(insert_comments=True)
    root = ElementTree.fromstring(text, ElementTree.XMLParser(target=builder))
    texts: list[str] = []
    boxes: dict[str, tuple[float, ...]] = {}
    drawn: dict[str, str] = {}
    for metadata in root.findall("{*}metadata"):
        root.remove(metadata)
    for element in root.iter():
        if callable(element.tag):
            texts.append(html.unescape(f"{element.text}").strip())
        elif _tag(element) in ("text", "title"):
            texts.append("".join(element.itertext()).strip())
        elif _tag(element) == "clipPath":
            rectangle, attributes = next(iter(element)), ("x", "y", "width", "height")
            boxes[f"url(#{element.get('id')})"] = tuple(float(rectangle.get(name, 0)) for name in attributes)
        elif _tag(element) == "path" and element.get("id"):
            drawn[f"#{element.get('id')}"] = element.get("d", "")
    panels: dict[tuple[float, ...], list[tuple[str, str]]] = {box: [] for box in boxes.values()}
    for element, clip, fill in _shapes(root, None, ""):
        place = [float(element.get(name, 0)) for name in "xy"] if _tag(element) == "use" else [0.0, 0.0]
        href = element.get("{http://www.w3.org/1999/xlink}href") or element.get("href")
        if clip in boxes:
            path = element.get("d") or drawn.get(f"{href}", "")
            panels[boxes[clip]].append((fill, _box(path, place, boxes[clip])))
    lines: list[str] = []
    for is_tick, group in itertools.groupby(filter(None, texts), key=lambda text: bool(re.fullmatch(_TICK, text))):
        run = list(group)
        lines += [" ".join(run)] if is_tick else [text.replace("\n", " / ") for text in run]
    for number, shapes in enumerate(panels.values(), 1):
        lines.append(f"panel {number}: {len(shapes)} shapes")
        for fill, of_colour in itertools.groupby(shapes, key=lambda shape: shape[0]):
            boxes_there = [box for _, box in of_colour]
            lines += [
                f"  {fill} {', '.join(boxes_there[start : start + 6])}" for start in range(0, len(boxes_there), 6)
            ]
    return lines


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _shapes(
    element: ElementTree.Element, clip: str | None, fill: str
) -> Iterator[tuple[ElementTree.Element, str | None, str]]:
    """Yield paths and uses with their clip and colour, which they may inherit from groups."""
    style = dict(re.findall(r"([\w-]+): ([^;]+)", element.get("style", "")))
    colours = [f"{style.get(name) or element.get(name) or ''}" for name in ("fill", "stroke")]
    colour = next((code for code in colours if code not in ("", "none")), fill)
    clip = element.get("clip-path", clip)
    if _tag(element) in ("path", "use") and clip:
        yield element, clip, colour if not colour.startswith("url") else "hatch"
    for inner in element if _tag(element) != "defs" else ():
        yield from _shapes(inner, clip, colour)


def _box(path: str, place: Sequence[float], panel: Sequence[float]) -> str:
    """Return the bounding box of a path's absolute points, in thousandths of the panel."""
    x, y, position = [], [], [0.0, 0.0]
    for command, numbers in re.findall(r"([A-Za-z])([^A-Za-z]*)", path):
        values = [float(number) for number in re.findall(r"-?\d*\.?\d+(?:e-?\d+)?", numbers)]
        if command in "MLCQ":
            points = list(zip(values[::2], values[1::2], strict=True))
        elif command in "HV":
            points = [(value, position[1]) if command == "H" else (position[0], value) for value in values]
        else:  # arcs, which only markers have, are relative
            continue
        position = list(points[-1])
        x += [point[0] + place[0] for point in points]
        y += [point[1] + place[1] for point in points]
    if not x:
        return "nothing"
    left, top, wide, high = panel
    box = [(min(x) - left) / wide, (top + high - max(y)) / high, (max(x) - min(x)) / wide, (max(y) - min(y)) / high]
    return "{}+{} {}x{}".format(*(round(1000 * share) + 0 for share in box))


class _Page(HTMLParser):
    """A parser that collects the lines of a page, with tables row by row, including collapsed sections."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = [""]
        self._hidden = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style"):
            self._hidden = tag
        if tag in ("section", "p", "tr", "li", "h1", "h2", "h3", "dt", "div", "table", "figure", "summary", "caption"):
            self.lines.append(f"== {dict(attrs).get('id')}" if tag == "section" else "")
            self.lines.append("")
        if tag in ("td", "th", "dd"):
            self.lines[-1] += " | "
        for name, value in attrs:
            if name in ("title", "aria-label", "href", "alt", "datetime") and value:
                self.lines[-1] += f" [{name}: {value}] "

    def handle_endtag(self, tag: str) -> None:
        self._hidden = "" if tag == self._hidden else self._hidden

    def handle_data(self, data: str) -> None:
        if self._hidden:
            self.lines.append(f"{self._hidden}: {_digest(data)}")
        else:
            self.lines[-1] += data


def page(text: str) -> list[str]:
    """Return the text of an HTML page by section, with its pictures as `svg` describes them."""
    lines: list[str] = []
    for part in re.split(r'(<svg[^>]*role="img"[^>]*[^/]>.*?</svg>)', text, flags=re.DOTALL):
        if part.startswith("<svg"):
            lines += [f"    {line}" for line in svg(part)]
        else:
            reader = _Page()
            reader.feed(part)
            lines += [" ".join(line.split()) for line in reader.lines]
    return [line for line in lines if line.strip()]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


_PICTURES: list[str] = []
"""The pictures drawn as PNG or PDF by the current command, as SVG."""


def _savefig(save: Callable[..., None], figure: Any, file: Any, **options: Any) -> None:
    """Call `Figure.savefig`, and add the contents of a PNG or PDF to _PICTURES."""
    if options.get("format") in ("png", "pdf"):
        as_svg = io.BytesIO()
        save(figure, as_svg, format="svg", metadata={"Date": None})
        _PICTURES.append(as_svg.getvalue().decode())
    save(figure, file, **options)


def contents(path: Path) -> list[str]:
    """Return the corpus lines for a file that a command wrote."""
    data = path.read_bytes()
    if path.suffix in (".png", ".pdf"):
        size = "{}x{} pixels".format(*struct.unpack(">II", data[16:24])) if path.suffix == ".png" else f"{data[:4]!r}"
        return [size, *svg(_PICTURES.pop(0))] if _PICTURES else [size]
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    text = data.decode("utf-8", "replace")
    return {".svg": svg, ".html": page}.get(path.suffix, str.splitlines)(text)


# -- running commands -----------------------------------------------------------------------------------------------

HOST = {
    "usable_cpus": 2,
    "cpu_name": "A Processor",
    "cpu_flags": frozenset({"avx2", "avx512f", "avx512_bf16"}),
    "memory_bytes": 8 * 2**30,
    "processor": "",
    "cpu_quota": 0.0,
    "os_name": "Linux",
    "commit": "0123456789ab",
    "project_commit": None,
}
"""Facts of the machine (`tcbench.hardware.machine`) that replace the real ones."""
_INSTALLED, _MISSING = ("chainer", "ml_dtypes", "cv2", "nvidia.dali"), ("torch", "cupy", "mpi4py", "submitit")
PACKAGES = dict.fromkeys(_INSTALLED, True) | dict.fromkeys(_MISSING, False)
"""Modules that rungs and backends look for, and whether they are installed."""


class _Instant(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _DATETIME)


_DATETIME = datetime.datetime


class Clock(_DATETIME, metaclass=_Instant):
    """A clock that advances by an hour with each command."""

    hours = 0

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Clock:
        """Return the time of this command."""
        return cls(2030, 1, 1, tzinfo=tz) + datetime.timedelta(hours=cls.hours)


@contextlib.contextmanager
def planted() -> Iterator[None]:
    """Replace all facts of the machine that outputs show."""
    from matplotlib.figure import Figure

    real, machine = importlib.util.find_spec, "tcbench.hardware.machine"

    def find_spec(name: str, package: str | None = None) -> object:
        return (object() if PACKAGES[name] else None) if name in PACKAGES else real(name, package)

    with contextlib.ExitStack() as stack:
        for name, value in HOST.items():
            stack.enter_context(mock.patch(f"{machine}.{name}", functools.partial(lambda value: value, value)))
        stack.enter_context(mock.patch("importlib.util.find_spec", find_spec))
        drawn = functools.partialmethod(functools.partial(_savefig, Figure.savefig))
        stack.enter_context(mock.patch.object(Figure, "savefig", drawn))
        stack.enter_context(mock.patch("datetime.datetime", Clock))
        Clock.hours = 0
        stack.enter_context(mock.patch("os.getloadavg", lambda: (9.0, 9.0, 9.0)))
        stack.enter_context(mock.patch("tcbench.hardware.load.slowdown", lambda: 1.5))
        stack.enter_context(mock.patch("signal.signal"))
        stack.enter_context(mock.patch("gc.set_threshold"))
        yield


def environment(folder: Path) -> dict[str, str]:
    """Return the commands' environment variables: 100 columns, a separate cache, no CI service."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    fixed = {"COLUMNS": "100", "LC_ALL": "C.UTF-8", "TZ": "UTC", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return {**inherited, **fixed, "TCBENCH_CACHE": str(folder.parent / "cache"), "OPENBLAS_NUM_THREADS": "1"}


def tcbench_main(words: Sequence[str]) -> tuple[object, str, str]:
    """Run a command in this process; return its exit code, standard output and standard error."""
    from tcbench.__main__ import main

    out, err = io.StringIO(), io.StringIO()
    code: object = None
    with (
        mock.patch.object(sys, "argv", ["tcbench", *words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    return code, out.getvalue(), err.getvalue()


def files(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return every file with its modification time and size."""
    stats = ((path, path.stat()) for path in folder.rglob("*") if path.is_file())
    return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in stats}


def entry(folder: Path, line: str) -> list[str]:
    """Run one command in the folder; return its exit code, output and written files as lines.

    Pictures, pages and tables are removed afterwards; records and baselines stay for the commands that follow."""
    before = files(folder)
    Clock.hours += 1
    _PICTURES.clear()
    code, out, err = tcbench_main(shlex.split(line))
    lines = [f"$ tcbench {normal(line, folder)}", f"exit code {code}"]
    for name, text in (("standard output", out), ("standard error", err)):
        if output := normal(text, folder):
            lines += [f"--- {name}", *output.splitlines()]
    for path, stat in sorted(files(folder).items()):
        if before.get(path) != stat:
            lines += [f"--- {normal(str(path.relative_to(folder)), folder)}"]
            lines += normal("\n".join(contents(path)), folder).splitlines()
            if path.is_relative_to(folder / "out"):
                path.unlink()
    return lines


def shortened(lines: Sequence[str]) -> list[str]:
    """Return an entry's lines, shortened by KEPT, HEAD and LONG."""
    lines = [line if len(line) <= LONG else f"{line[:LONG]}… {_digest(line)}" for line in lines]
    if len(lines) <= KEPT:
        return lines
    starts = [place for place, line in enumerate(lines) if line.startswith(("== ", "--- ")) and place]
    shorter: list[str] = []
    for begin, end in itertools.pairwise([0, *starts, len(lines)]):
        rest = lines[begin + HEAD : end]
        shorter += lines[begin:end][:HEAD] + [f"… {len(rest)} more lines, {_digest(chr(10).join(rest))}"] * bool(rest)
    return shorter


def name_of(line: str) -> str:
    """Return the file name of a command's entry."""
    name = re.sub(r"[^\w.+=,-]+", "_", re.sub(r" -o out/\S+", "", line)).strip("_")
    return name if len(name) <= 100 else f"{name[:84]}-{_digest(line)[:12]}"


def write(target: Path, group: str, full: bool) -> None:
    """Write all entries of a group of inputs."""
    import typer

    typer.main.get_command = functools.cache(typer.main.get_command)  # else each call builds all commands anew
    shutil.rmtree(target / group, ignore_errors=True)
    (target / group).mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="corpus-") as temporary, planted():
        folder = Path(temporary).resolve() / "here"
        (folder / "out").mkdir(parents=True)
        # The corpus' runs are named by a clock of 2030, which is right here.
        believed = mock.patch("tcbench.core.store.believable_start", lambda started, _: started)
        with mock.patch.dict(os.environ, environment(folder), clear=True), contextlib.chdir(folder), believed:
            for item in INPUTS[group](folder):
                if isinstance(item, Lines):
                    name, lines = item.name, item.lines
                else:
                    name, lines = name_of(normal(item, folder)), entry(folder, item)
                _keep(target / group, name, lines if full else shortened(lines))


def write_groups(target: Path, groups: Sequence[str], full: bool) -> None:
    """Write groups of inputs in two processes; commands within a group depend on each other's files."""
    spawn = multiprocessing.get_context("spawn")
    # Figures are many small objects that refer to each other, so a rare garbage collection saves time.
    with concurrent.futures.ProcessPoolExecutor(2, spawn, gc.set_threshold, (100_000,)) as pool:
        for written in [pool.submit(write, target, group, full) for group in groups]:
            written.result()


def _keep(folder: Path, name: str, lines: Sequence[str]) -> None:
    """Write an entry; append a number to its name if the same command ran before."""
    names = itertools.chain([name], (f"{name}-{again}" for again in itertools.count(2)))
    path = next(path for path in (folder / f"{name}.txt" for name in names) if not path.exists())
    path.write_text("\n".join(lines) + "\n", "utf-8", "backslashreplace")


ONE_MACHINES = "bits.txt"
"""The entry that is valid on one machine only; it is compared only if both sides have it."""


def compare(old: Path, new: Path) -> int:
    """Print the differences, entry by entry, and return the number of entries that differ."""
    sides = [{str(path.relative_to(side)): path for path in side.rglob("*.txt")} for side in (old, new)]
    differing = 0
    for name in sorted({*sides[0], *sides[1]}):
        if Path(name).name == ONE_MACHINES and not all(name in side for side in sides):
            continue
        texts = [side[name].read_text("utf-8").splitlines() if name in side else [] for side in sides]
        if texts[0] != texts[1]:
            differing += 1
            print(*difflib.unified_diff(*texts, f"{old}/{name}", f"{new}/{name}", lineterm="", n=2), sep="\n")
    print(f"{differing} of {len({*sides[0], *sides[1]})} entries differ", file=sys.stderr)
    return differing


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    writes = commands.add_parser("write", help="write the corpus of this checkout")
    writes.add_argument("folder", type=Path)
    writes.add_argument("--only", default="*", help="only inputs whose names match this pattern")
    writes.add_argument("--whole", action="store_true", help="do not shorten long outputs")
    compares = commands.add_parser("compare", help="print the differences between two corpora")
    compares.add_argument("old", type=Path)
    compares.add_argument("new", type=Path)
    options = parser.parse_args()
    if options.command == "compare":
        sys.exit(compare(options.old, options.new) > 0)
    write_groups(options.folder.absolute(), fnmatch.filter(INPUTS, options.only), options.whole)


if __name__ == "__main__":
    main()
