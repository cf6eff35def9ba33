"""Parts shared by `tcbench compare` and `tcbench gate`: their common options, showing a comparison, and exit codes."""

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
from tcbench.show.notes import aside, echo_written
from tcbench.show.options import ANOTHER_FILE, Group, check_picture, format_option, output_option
from tcbench.show.sides import Labels, first_few

if TYPE_CHECKING:
    from tcbench.analysis.comparability import Difference
    from tcbench.analysis.compare import Comparison
    from tcbench.core.record import Record

COMPARED = frozenset({"libraries", "python"})
"""Facets that may always differ between the two sides of a gate, because a gate exists to compare them."""

REGRESSION = 1
INCONCLUSIVE = 4

Format = Literal["table", "markdown", "json", "junit", "github"]
MISSING = "missing"
"""The word of --allow that lets current lack cells."""

JUDGE = Group("Judging")


def metrics(texts: Sequence[str] | None) -> tuple[str, ...]:
    """Return the metrics of --metric, without duplicates. Raises SelectionError."""
    from tcbench.analysis.compare import METRICS

    return tuple(_option_words("--metric", texts, list(METRICS))) or ("throughput",)


def threshold(text: str) -> float:
    """Return the threshold of --threshold as a share between 0 and 1. Raises SelectionError."""
    shown = text if len(text) < 20 else f"{text[:17]}..."
    match = re.fullmatch(r"\s*([0-9]{0,9}\.?[0-9]{0,9})\s*(%?)\s*", text, re.ASCII)
    if match is None or not any(char.isdigit() for char in match[1]):
        raise SelectionError(f"--threshold {shown!a}: expected a share such as 3% or 0.03")
    value = float(match[1]) / (100 if match[2] else 1)
    if not 0 < value < 1:
        hint = f"; did you mean {match[1]}%?" if not match[2] and 1 <= value < 100 else ""
        raise SelectionError(f"--threshold {shown}: expected a share above 0 and below 1, such as 3% or 0.03{hint}")
    return value


def allowed_facets(texts: Sequence[str] | None) -> frozenset[str]:
    """Return the facets that --allow lets differ, and MISSING if current may lack cells. Raises SelectionError."""
    from tcbench.analysis.comparability import FACETS

    words = _option_words("--allow", texts, [*FACETS, "all", MISSING])
    return frozenset([*words, *FACETS] if "all" in words else words)


def _option_words(option: str, texts: Sequence[str] | None, choices: Sequence[str]) -> list[str]:
    """Return the comma-separated words of an option, without duplicates. Raises SelectionError."""
    words = [word.strip() for text in texts or () for word in text.split(",")]
    for word in words:
        if word not in choices:
            raise SelectionError(f"{option} {word[:40]!a}: unknown; {hint(word, choices)}")
    return list(dict.fromkeys(words))


METRIC = JUDGE.option(
    "--metric NAME",
    "throughput, memory or energy; separate with commas or repeat --metric. Default: throughput.",
    takes="`throughput`, `memory`, `energy`",
    read=metrics,
)
THRESHOLD = JUDGE.option(
    "--threshold SHARE",
    "A larger loss is a regression: 3% or 0.03.",
    "3%",
    takes="a share above 0% and below 100%, such as 3% or 0.03",
    read=threshold,
)
_FACETS = "simulated, gpu, driver, clocks, host, os, python, libraries, accelerator, settings, measure, input"
ALLOW = JUDGE.option(
    "--allow FACET,...",
    f"What may differ: {_FACETS}, or all of these; missing: current may lack cells. Default: nothing.",
    takes=f"{_FACETS}, all, missing",
    read=allowed_facets,
)
STRICT = JUDGE.option("--strict", "Exit code 4 if something is inconclusive.")
FORMAT = format_option(get_args(Format))
OUTPUT = output_option(
    "Also write a file: a chart (.png, .svg, .pdf), or else the text of --format (the terminal shows the table). "
    "Default: none."
)


def check_distinct(base: Sequence[Record], current: Sequence[Record], labels: Labels) -> None:
    """Raise NotComparableError if both sides share trials: compared with themselves, they would always pass."""
    from tcbench.analysis.comparability import shared
    from tcbench.show.format import counted

    if both := shared(base, current):
        trials = "all trials" if both == len(base) == len(current) else counted(both, "trial")
        raise NotComparableError(
            f"{trials} of {labels.current} are also in {labels.base}; expected trials of another run: `tcbench run`"
        )


def with_allowed(comparison: Comparison, labels: Labels, allow: frozenset[str], retry: str) -> Comparison:
    """Check that the sides may be compared, and return the comparison. MISSING in `allow` excuses missing cells.

    Raises NotComparableError if the sides have nothing in common, if nothing was measured on both, or if they differ in
    a facet that `allow` lacks. The error message offers `retry`, the command without its --allow."""
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
    if refused := judged.refused(allow):
        raise NotComparableError(_refusal(refused, names, allow, retry))
    return judged


def side_name(name: str, records: Iterable[Record]) -> str:
    """Return a side's name, safe to print. Simulated results are marked in the name."""
    from tcbench.show.naming import mark_simulated

    return mark_simulated(plain(name), (record.environment for record in records))


_LISTED = 20
"""Number of differences that an error message lists."""


def _refusal(refused: Sequence[Difference], names: tuple[str, str], allow: frozenset[str], retry: str) -> str:
    """Return an error message that lists the first differences and the command that allows all of them."""
    from tcbench.analysis.comparability import FACETS

    width = max(len(difference.facet) for difference in refused)
    allow |= {difference.facet for difference in refused}
    words = [word for word in (*FACETS, MISSING) if word in allow]
    lines = [f"{names[0]} and {names[1]} did not measure the same thing:"]
    lines += [f"  {difference.facet:{width}}  {difference.says}" for difference in refused[:_LISTED]]
    lines += [f"  and {len(refused) - _LISTED} more"] * (len(refused) > _LISTED)
    lines += ["to compare them anyway:", f"  {retry} --allow {','.join(words)}"]
    return "\n".join(lines)


def retry_command(context: typer.Context) -> str:
    """Return the current command without its --allow, ready to be pasted into a shell."""
    return command_line(context.info_name or "", *given_words(context, without=("allow",)))


def present(comparison: Comparison, labels: Labels, format_: Format, output: Path | None, details: bool) -> None:
    """Print a comparison in a format, or write that text or a chart to `output` and print the table. With GitHub's
    format, add Markdown to the job's summary. Raises StoreError, last of all, if `output` cannot be written."""
    from tcbench.commands.compare import github, junit, markdown, table
    from tcbench.commands.compare.cell_report import ComparisonReport, comparison_report

    report = comparison_report(comparison, labels)
    formats: dict[Format, Callable[[ComparisonReport], str]] = {
        "table": table.as_text,
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
    if format_ == "github" and (summary := os.environ.get("GITHUB_STEP_SUMMARY")):
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
    echo_written(output, err=text is not None and chart)


def _is_picture(path: Path) -> bool:
    """Return whether the file's extension is that of a chart: an image or a PDF."""
    kind = mimetypes.guess_type(path.name)[0] or ""
    return kind.startswith("image/") or kind == "application/pdf"


def check_output(path: Path | None) -> None:
    """Check that the output file can be written and create its folder, before the command does any work. Raises
    StoreError and SelectionError."""
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
    """Return the text as UTF-8; characters that UTF-8 cannot encode are escaped."""
    return text.encode("utf-8", "backslashreplace")


def exit_code(comparison: Comparison, strict: bool) -> int:
    """Return the exit code: 1 for a regression, 4 if the machine was unstable, or something is inconclusive and
    `strict`, else 0."""
    if comparison.failing:
        return REGRESSION
    return INCONCLUSIVE if comparison.unstable or (strict and comparison.inconclusive) else 0
