"""Records, traces and folders as someone would make them who wants tcbench to fall over, and the commands that read.

Imported as `import hostile`: the suite's `pythonpath` is `tests`.
"""

import contextlib
import copy
import io
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import factories

from tcbench import commands as cli
from tcbench.analysis.summary import summarise
from tcbench.core import record
from tcbench.core.timeline import Span, Timeline
from tcbench.engine.api import Ceilings
from tcbench.run import ceilings
from tcbench.tracing import perfetto

ACTIVE = "\x1b[2J\x9b31m\u202egnp\x07\r\x7f\u2028\U000e0041[/]"
"""Characters that a terminal would act on, among others, and what Rich would."""
ACTS = set(ACTIVE) - set("[2J31mgnp/]")

CANARY = "__import__('os').mkdir('ran')"
"""Python that leaves a trace, were it ever run."""

TEXTS = (
    *("", " ", "x" * 3_000, "畳" * 300, ACTIVE, CANARY, "evil.sub:f", "evil", "../../../etc/passwd", "/dev/null"),
    *("[bold red]x[/nothing]", "</script><script>alert(1)</script>{{ 7 * 7 }}{% raw %}"),
    *(r"$\frac{\input{/etc/passwd}}$", "=cmd|' /C calc'!A0", "\uff1d1+1", "%s%n{0}{__class__}", "a/b:c+d+e", "+++"),
    *("nan", "v9", "fp32", "cuda:99999999999999999999", "cpu", "9999-99-99T99:99:99", "2025-01-02T03:04:05", "\ud800"),
)
NUMBERS = (0, 1, -1, 7, 2**31, 2**31 - 1, -(2**63), 2**63 - 1, 1e-9, 1e9, -1e9, 1e308, 5e-324, 0.5)
THINGS: tuple[Any, ...] = (*TEXTS, *NUMBERS, None, True, [], {}, [0], [""], {"a": 1}, [[]], [1e-9] * 2, [1e9] * 9)

ELSEWHERE = factories.make_environment("elsewhere", "Elsewhere")
"""A machine that is not the one that tests run on: of that, `roofline` may measure the ceilings."""


def valid() -> dict[str, Any]:
    """A record as JSON, with everything that one may hold."""
    environment = factories.make_environment("elsewhere", "Elsewhere", commit="a" * 12)
    document: dict[str, Any] = json.loads(record.encode(factories.make_record("fp32+dali", environment=environment)))
    document["environment"]["gpu"] = {
        "name": "Tesla V100",
        "compute_capability": [7, 0],
        "multiprocessors": 80,
        "memory_bytes": 2**34,
        "driver": "550.1",
    }
    document["measurement"]["phases"] = [
        phase | {"device_s": phase["host_s"]} for phase in document["measurement"]["phases"]
    ]
    document["measurement"]["plans"] = [["conv", "eng1", 0, False, 1e-3, 2e-3]]
    document["gpu"] = {
        "state": {"driver": "550.1", "power_limit_w": 250.0},
        "samples": [[0.0, 1000, 800, 200.0, 60, 4]],
    }
    document["gpu"] |= {"timed_from_s": 0.0, "timed_to_s": 9.0}
    document["cell"]["scenario_cudnn"] = document["cell"]["cudnn"]
    return document


def places(value: Any, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value inside a JSON value."""
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner_value in inner:
        yield (*above, key)
        if not (isinstance(inner_value, list) and len(inner_value) > 8 and key != 0):
            yield from places(inner_value, (*above, key))


PLACES = tuple(dict.fromkeys(place for place in places(valid()) if not (isinstance(place[-1], int) and place[-1] > 1)))


def changed(original: dict[str, Any], changes: Sequence[tuple[tuple[str | int, ...], Any]]) -> dict[str, Any]:
    """A copy in which something else stands in some places."""
    copied = copy.deepcopy(original)
    for place, value in changes:
        parent: Any = copied
        with contextlib.suppress(KeyError, IndexError, TypeError):  # an earlier change took the place away
            for key in place[:-1]:
                parent = parent[key]
            parent[place[-1]] = copy.deepcopy(value)  # else a place within it could hold itself
    return copied


def write(path: Path, lines: Sequence[dict[str, Any]]) -> Path:
    """Records, one a line."""
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    return path


def trace(path: Path, text: str = "fp32, batch size 4", step_s: float = 1.0) -> Path:
    """A trace in which everything is called by the text."""
    spans = [Span(step * step_s, (step + 1) * step_s, "host", "step", text, step) for step in range(3)]
    spans += [Span(step * step_s, (step + 0.5) * step_s, "host", "phase", text, step, text) for step in range(3)]
    spans += [Span(0.0, 1.0, "gpu", "kernel", text, 0, text), Span(0.5, 0.5, "io", "work", text)]
    perfetto.write([Timeline(text, "cuda:0", text, 4, "nsys", [text], spans)], path)
    return path


RECORDS: tuple[tuple[str, ...], ...] = (
    ("explain", "{}", "--details"),
    ("explain", "{}", "--json"),
    ("claims", "{}"),
    ("claims", "{}", "--format", "json"),
    ("compare", "good.jsonl", "{}", "--allow", "all"),
    ("compare", "{}", "{}"),
    ("compare", "{}", "good.jsonl", "--allow", "all", "--format", "github", "-o", "out/c.svg"),
    ("diff", "{}", "good.jsonl", "-o", "out/d.svg"),
    ("diff", "{}", "{}", "--json"),
    ("export", "{}", "--format", "csv"),
    ("export", "{}", "--format", "json", "--per", "step"),
    ("export", "{}", "--format", "bencher"),
    ("history", "{}", "-o", "out/h.svg"),
    ("plot", "{}", "-o", "out/p.png"),
    ("plot", "{}", "good.jsonl", "--kind", "ladder", "-o", "out/l.svg"),
    ("plot", "{}", "good.jsonl", "--by", "machine", "-o", "out/m.svg"),
    ("report", "{}", "-o", "out/r.html", "--compare", "good.jsonl"),
    ("timeline", "{}", "-o", "out/t.svg"),
    ("roofline", "{}", "-o", "out/f.svg"),
    ("baseline", "list"),
)
"""Commands that read records; {} is the hostile file."""

TRACES: tuple[tuple[str, ...], ...] = (
    ("diff", "{}", "{}", "-o", "out/d.svg"),
    ("explain", "{}"),
    ("explain", "{}", "--json"),
    ("timeline", "{}", "-o", "out/t.svg"),
    ("timeline", "{}", "{}", "--zoom", "0:1", "-o", "out/z.svg"),
    ("claims", "good.jsonl", "{}"),
    ("roofline", "good.jsonl", "{}", "-o", "out/f.svg"),
    ("report", "good.jsonl", "{}", "-o", "out/r.html"),
)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str
    took_s: float

    @property
    def wrong(self) -> str | None:
        """A description of what the command did that no command may do, whatever it reads; None if it behaved."""
        first = f"{' '.join(self.words)}: {self.code}: {self.err[:400]}"
        bad_texts = ("internal error", "Traceback", "-h` shows")  # the last: it was no command, and nothing was read
        if self.code not in (0, 1, 2, 4, 5) or any(words in self.err for words in bad_texts):
            return first
        if ACTS & set(self.out + self.err):
            return f"control characters: {first!a}"
        if len(self.err) > 50_000 or any(len(line) > 4_100 for line in self.err.splitlines()):
            return f"{len(self.err)} characters on standard error: {first}"
        return f"{self.took_s:.0f} s: {first}" if self.took_s > 60 else None


def prepare(folder: Path) -> Path:
    """A folder to run commands in: good records, ceilings of the machine that records name, things that lie in wait."""
    (folder / "out").mkdir(parents=True)
    (folder / "evil").mkdir()
    for name in ("evil/__init__.py", "evil/sub.py", "numpy_hostile.py", "sitecustomize.py", "conftest.py"):
        (folder / name).write_text(f"{CANARY}\ndef f(cell): pass\n", encoding="utf-8")
    trials = [
        trial
        for config in ("fp32", "fp32+dali")
        for trial in factories.make_trials(config, trials=3, environment=ELSEWHERE)
    ]
    factories.write(folder / "good.jsonl", *trials)
    with cache(folder):
        ceilings._keep(summarise(trials)[0], Ceilings("it", {"fp32": 1e11}, 1e10, "measured"))
    return folder


def cache(folder: Path) -> AbstractContextManager[Any]:
    return mock.patch.dict(os.environ, TCBENCH_CACHE=str(folder / "cache"))


def active(folder: Path) -> list[str]:
    """Names of the written files of text (SVG, HTML) that hold a character of ACTIVE."""
    texts = [path for path in (folder / "out").iterdir() if path.suffix in (".svg", ".html")]
    return [path.name for path in texts if ACTS & set(path.read_text("utf-8"))]


def run(folder: Path, words: Sequence[str], file: Path) -> Ended:
    """A command in this process, in the folder."""
    arguments = tuple(word.replace("{}", file.name) for word in words)
    out, err, begin = io.StringIO(), io.StringIO(), time.monotonic()
    code: Any = None
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with (
            contextlib.chdir(folder),
            mock.patch.object(sys, "argv", ["tcbench", *arguments]),
            cache(folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            cli.main()
    except SystemExit as ended:
        code = ended.code
    finally:
        signal.signal(signal.SIGTERM, handler)
    return Ended(arguments, code, out.getvalue(), err.getvalue(), time.monotonic() - begin)
