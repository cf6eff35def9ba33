"""Shared by `tcbench compare` and `tcbench gate`, which take the same words for the same things: their options and what
these mean, showing a Comparison, exit codes."""

from __future__ import annotations

import mimetypes
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import typer

from tcbench.core.errors import NotComparableError, SelectionError, StoreError, hint
from tcbench.core.text import plain
from tcbench.show import streams
from tcbench.show.app import command_line, given_words
from tcbench.show.console import make_console
from tcbench.show.notes import aside
from tcbench.show.options import ANOTHER_FILE, Group, check_picture, format_option, output_option
from tcbench.show.sides import Labels, first_few

if TYPE_CHECKING:
    from tcbench.analysis.comparability import Difference
    from tcbench.analysis.compare import Comparison
    from tcbench.core.record import Record

COMPARED = frozenset({"libraries", "python"})
"""Facets that may always differ between the two sides of a gate: they are compared for these."""

REGRESSION = 1
INCONCLUSIVE = 4

Format = Literal["table", "markdown", "json", "junit", "github"]
MISSING = "missing"
"""The word of --allow for cells that current lacks."""

JUDGE = Group("Judging")


def metrics(given: Sequence[str] | None) -> tuple[str, ...]:
    """The metrics of --metric, each once. Raises SelectionError."""
    from tcbench.analysis.compare import METRICS

    return tuple(_chosen("--metric", given, list(METRICS))) or ("throughput",)


def threshold(text: str) -> float:
    """The share of --threshold, a share between 0 and 1. Raises SelectionError."""
    shown = text if len(text) < 20 else f"{text[:17]}..."
    match = re.fullmatch(r"\s*([0-9]{0,9}\.?[0-9]{0,9})\s*(%?)\s*", text, re.ASCII)
    if match is None or not any(char.isdigit() for char in match[1]):
        raise SelectionError(f"--threshold {shown!a}: expected a share such as 3% or 0.03")
    value = float(match[1]) / (100 if match[2] else 1)
    if not 0 < value < 1:
        hint = f"; did you mean {match[1]}%?" if not match[2] and 1 <= value < 100 else ""
        raise SelectionError(f"--threshold {shown}: expected a share above 0 and below 1, such as 3% or 0.03{hint}")
    return value


def allowed(given: Sequence[str] | None) -> frozenset[str]:
    """The facets of --allow that may differ, and MISSING where current may lack cells. Raises SelectionError."""
    from tcbench.analysis.comparability import FACETS

    words = _chosen("--allow", given, [*FACETS, "all", MISSING])
    return frozenset([*words, *FACETS] if "all" in words else words)


def _chosen(option: str, given: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """Words of an option that takes commas, each once."""
    words = [word.strip() for text in given or () for word in text.split(",")]
    for word in words:
        if word not in known:
            raise SelectionError(f"{option} {word[:40]!a}: unknown; {hint(word, known)}")
    return list(dict.fromkeys(words))


METRIC = JUDGE.option(
    "--metric NAME",
    "throughput, memory or energy. May be given more than once, or with commas. Default: throughput.",
    takes="`throughput`, `memory`, `energy`",
    read=metrics,
)
THRESHOLD = JUDGE.option(
    "--threshold SHARE",
    "The loss that matters: 3% or 0.03.",
    "3%",
    takes="a share above 0% and below 100%, as 3% or 0.03",
    read=threshold,
)
_FACETS = "simulated, gpu, driver, clocks, host, os, python, libraries, accelerator, settings, measure, input"
ALLOW = JUDGE.option(
    "--allow FACET,...",
    f"What may differ: {_FACETS}, or all of these; missing: cells that current lacks do not fail. Default: nothing.",
    takes=f"{_FACETS}, all, missing",
    read=allowed,
)
STRICT = JUDGE.option("--strict", "Exit code 4 where something is inconclusive.")
FORMAT = format_option(get_args(Format))
OUTPUT = output_option(
    "Also a file: a chart (.png, .svg, .pdf), else the text of --format, and here the table. Default: none."
)


def check_distinct(base: Sequence[Record], current: Sequence[Record], labels: Labels) -> None:
    """Raises NotComparableError where trials stand on both sides: against themselves they would always pass."""
    from tcbench.analysis.comparability import shared
    from tcbench.show.format import counted

    if both := shared(base, current):
        which = "all trials" if both == len(base) == len(current) else counted(both, "trial")
        raise NotComparableError(
            f"{which} of {labels.current} are in {labels.base} too; expected trials of another run: `tcbench run`"
        )


def comparable(comparison: Comparison, labels: Labels, allow: frozenset[str], retry: str) -> Comparison:
    """The comparison as it may be judged: what is missing does not fail where that is allowed. `retry` is the command
    so far, without its --allow. Raises NotComparableError: nothing in common, or differences that are not allowed."""
    names = labels.base, labels.current
    if comparison.paired == 0:
        bases = dict.fromkeys(cell.base.cell.label for cell in comparison.cells if cell.base)
        currents = dict.fromkeys(cell.current.cell.label for cell in comparison.cells if cell.current)
        raise NotComparableError(
            f"{names[0]} and {names[1]} have nothing in common: no config at the same batch size\n"
            f"  {names[0]} has {first_few([*bases], 5)}\n  {names[1]} has {first_few([*currents], 5)}"
        )
    judged = comparison
    if MISSING in allow:
        cells = (replace(cell, failing=False) if cell.verdict == "missing" else cell for cell in comparison.cells)
        judged = replace(comparison, cells=tuple(cells))
    if not judged.failing and not any(cell.measured for cell in judged.cells):
        reasons = list(dict.fromkeys(cell.why for cell in judged.cells if cell.why))
        raise NotComparableError(f"nothing was measured on both sides: {first_few(reasons, 3)}")
    refused = judged.refused(allow)
    if refused:
        raise NotComparableError(_refusal(refused, names, allow, retry))
    return judged


def called(name: str, records: Iterable[Record]) -> str:
    """A side's name, safe to show; that of simulated results says so in every format."""
    from tcbench.show.simulated import mark_simulated

    return mark_simulated(plain(name), (record.environment for record in records))


_LISTED = 20


def _refusal(refused: Sequence[Difference], names: tuple[str, str], allow: frozenset[str], retry: str) -> str:
    """The first differences, each on a line of its own, and the command that allows all of them."""
    from tcbench.analysis.comparability import FACETS

    wide = max(len(one.facet) for one in refused)
    allow |= {one.facet for one in refused}
    words = [word for word in (*FACETS, MISSING) if word in allow]
    lines = [f"{names[0]} and {names[1]} did not measure the same thing:"]
    lines += [f"  {one.facet:{wide}}  {one.says}" for one in refused[:_LISTED]]
    lines += [f"  and {len(refused) - _LISTED} more"] * (len(refused) > _LISTED)
    lines += ["to compare them all the same:", f"  {retry} --allow {','.join(words)}"]
    return "\n".join(lines)


def retry_command(context: typer.Context) -> str:
    """The command that was given, but for its --allow, to be pasted into a shell."""
    return command_line(context.info_name or "", *given_words(context, without=("allow",)))


def present(comparison: Comparison, labels: Labels, format_: Format, output: Path | None, details: bool) -> None:
    """Show a comparison as asked for. Raises StoreError for a file that cannot be written, after all is shown."""
    from tcbench.commands.compare import github, junit, markdown, table
    from tcbench.commands.compare.cell_report import ComparisonReport, comparison_report

    report = comparison_report(comparison, labels)
    formats: dict[Format, Callable[[ComparisonReport], str]] = {
        "table": table.table,
        "markdown": markdown.markdown,
        "json": table.to_json,
        "junit": junit.junit,
        "github": github.github,
    }
    chart = output is not None and _is_picture(output)
    file = None if chart else output
    text = None if format_ == "table" and file is None else formats[format_](report)
    if file != streams.STANDARD_OUTPUT and (text is None or file is not None):
        table.show(report, make_console(details=details))
    elif text is not None and file is None:
        typer.echo(text, nl=False)
    summary = os.environ.get("GITHUB_STEP_SUMMARY") if format_ == "github" else None
    if summary:
        try:
            with open(summary, "ab") as job:
                job.write(_encoded(markdown.markdown(report)))
        except OSError as error:
            aside(f"note: no job summary: {summary}: cannot be written ({error.strerror})")
    if output is None:
        return
    if chart:
        from tcbench.commands.compare.chart import comparison_chart
        from tcbench.show.charts.files import save

        save(comparison_chart(report), output, ANOTHER_FILE)
    elif text is not None:
        streams.write_file(output, _encoded(text), ANOTHER_FILE)
    typer.echo(f"wrote {output}", err=text is not None and chart)


def _is_picture(path: Path) -> bool:
    kind = mimetypes.guess_type(path.name)[0] or ""
    return kind.startswith("image/") or kind == "application/pdf"


def check_output(path: Path | None) -> None:
    """Make the folder of what will be written, before anything takes long. Raises StoreError and SelectionError."""
    if path is None or path == streams.STANDARD_OUTPUT:
        return
    if _is_picture(path):
        check_picture(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror})") from None
    target = path if path.exists() else path.parent
    if path.is_dir() or not os.access(target, os.W_OK):
        raise StoreError(f"{path}: cannot be written ({'a folder' if path.is_dir() else 'no permission'})")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def exit_code(comparison: Comparison, strict: bool) -> int:
    """0: nothing regressed; 1: something did; 4: something is inconclusive, and that is not enough."""
    if comparison.failing:
        return REGRESSION
    return INCONCLUSIVE if strict and comparison.inconclusive else 0
