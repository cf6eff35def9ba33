"""The command `tcbench report`: write everything that results show as one HTML file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tcbench.commands.claims.evidence import training_evidence
from tcbench.core.errors import NotComparableError, ScenarioError, SelectionError, StoreError, TraceError
from tcbench.core.text import plain
from tcbench.run.inputs import PROFILES, Results, files_beside, split_profiler_traces
from tcbench.show import options
from tcbench.show.app import command, refuse_input
from tcbench.show.notes import aside, echo_written
from tcbench.show.results import output_path, read_files, read_results
from tcbench.show.sides import Labels
from tcbench.show.streams import STANDARD_OUTPUT, write_file

if TYPE_CHECKING:
    from tcbench.analysis.claims import EvidenceSource, ScenarioClaims, Scorecard
    from tcbench.commands.report.build import Compared
    from tcbench.core.record import Cell, Record
    from tcbench.core.timeline import Timeline

_PAGES = (".html", ".htm")


@command("Write one HTML file with everything that results show.")
def report(
    context: typer.Context,
    results: list[str] | None = options.results_argument(
        ", timelines of `tcbench profile`, or a document of `tcbench numerics`. Those next to the records are shown "
        "too. Or traces of PyTorch's profiler or Nsight Systems, which have a page of their own"
    ),
    output: Path | None = options.output_option("An .html file. Default: next to the results."),
    compare: str | None = options.GENERAL.option(
        "--compare BASE",
        "Compare with these results: a file, a folder or a run's id. Default: none.",
        takes=options.RUN,
    ),
    baseline: str | None = options.GENERAL.option(
        "--baseline NAME",
        "Compare with what `tcbench baseline set NAME` kept. Default: none.",
        takes=options.BASELINE,
    ),
    title: str | None = options.GENERAL.option(
        "--title TEXT", "The page's title. Default: the networks and the device.", takes="any text"
    ),
    out: Path = options.RESULTS_FOLDER,
) -> None:
    """Write one HTML file that opens without a network: what is fastest, why it is fastest, what would help, how
    certain that is; charts, claims, timelines, a comparison, the environment, and a table of every trial.

    Examples:
    tcbench report                                    the newest run, as RUN-report.html next to it
    tcbench report results/*/naruse2018-*.jsonl -o v100.html --title "Our V100"
    tcbench report --baseline main                    with a comparison
    tcbench report results/ profile.json.gz           several runs, and a timeline"""
    from tcbench.commands.report.build import ReportInput, build, build_trace_page
    from tcbench.run.training_traces import judge_file
    from tcbench.show.page.render import render
    from tcbench.show.page.settings import MOST_TRIALS

    if output is not None and output != STANDARD_OUTPUT and output.suffix.lower() not in _PAGES:
        raise SelectionError(f"{output}: expected a file name that ends in {' or '.join(_PAGES)}")
    if compare is not None and baseline is not None:
        raise SelectionError("--compare and --baseline both name a base: expected one of them")

    from tcbench.run import prediction

    traces, results = split_profiler_traces(results)
    if traces:
        if results or compare is not None or baseline is not None:
            reason = "a trace of another profiler has a page of its own; name only traces"
            raise SelectionError(f"{results[0]}: not such a trace; {reason}" if results else f"{traces[0]}: {reason}")
        output = output or output_path(None, traces, "report.html")
        page = build_trace_page(list(map(judge_file, traces)), title)
        write_file(output, render(page).encode(), options.ANOTHER_FILE)
        echo_written(output)
        return
    inputs = read_results(results, out, "documents")
    page_path = output_path(Path("report.html") if output == STANDARD_OUTPUT else output, inputs.paths, "report.html")
    output = output or page_path
    trials_path = page_path.with_name(f"{page_path.stem}-trials.csv")  # all trials, if too many for the page
    refuse_input(context, trials_path)
    records = inputs.records
    explanations = prediction.explain_with_predictions(records, processes=0, progress=lambda *_: None)
    timelines, notes = _timelines(inputs)
    page = build(
        ReportInput(
            records=records,
            explanations=explanations,
            cards=_scorecards(records, training_evidence(inputs.documents, inputs.paths)),
            timelines=tuple(timelines),
            compared=_compared(inputs, compare, baseline, out),
            notes=(*inputs.notes, *notes),
            title=title,
            trials_file=trials_path.name,
        )
    )
    for note in notes:
        aside(f"note: {note}")
    files = [output]
    if len(records) > MOST_TRIALS:
        from tcbench.commands.export.formats import to_csv

        write_file(trials_path, to_csv(records, "trial").encode(), options.ANOTHER_FILE)
        files.append(trials_path)
    write_file(output, render(page).encode(), options.ANOTHER_FILE)
    echo_written(*files)


def _timelines(inputs: Results) -> tuple[list[Timeline], list[str]]:
    """Return the timelines named on the command line and those found beside the records, newest first, and notes.

    A timeline found beside the records is left out, with a note, if it cannot be read or no record has its settings."""
    from msgspec.structs import replace

    from tcbench import tracing
    from tcbench.core.record import MeasureSettings
    from tcbench.show.charts.provenance import MAX_PANELS

    timelines = list(inputs.timelines)
    profiles = files_beside(inputs.paths, PROFILES)
    for path in inputs.traces:
        profiles.pop(path.resolve(), None)
    measure = MeasureSettings()  # a profile has its own number of steps
    measured = {replace(record.cell, measure=measure) for record in inputs.records}
    notes = []
    newest_first = sorted(profiles.values(), key=lambda path: (-path.stat().st_mtime, path))
    for trace in newest_first[: max(0, MAX_PANELS - len(timelines))]:
        try:
            recorded = tracing.read(trace)
            if any(t.record and replace(t.record.cell, measure=measure) not in measured for t in recorded):
                notes.append(plain(f"{trace}: recorded with other settings than these results; left out"))
                continue
            timelines += recorded
        except (TraceError, StoreError) as error:
            notes.append(plain(f"{error}; left out"))
    return timelines, notes


def _scorecards(records: Sequence[Record], sources: Sequence[EvidenceSource]) -> tuple[Scorecard, ...]:
    """Return a scorecard for each setting of the records, by the claims of the scenarios that come with tcbench.

    `sources` judge claims about training. A scorecard of any other scenario has no claims."""
    from tcbench.analysis.claims import ScenarioClaims, scorecards
    from tcbench.run.plan import lacking
    from tcbench.run.scenario import claims_of

    shipped_claims: Callable[[Cell], ScenarioClaims] = claims_of(None, options.words)

    def claims(cell: Cell) -> ScenarioClaims:
        """Return the claims of a cell's scenario; none if the scenario does not come with tcbench."""
        try:
            return shipped_claims(cell)
        except ScenarioError:
            return ScenarioClaims(cell.scenario, ())

    return scorecards(records, claims, sources, lacking)


def _compared(inputs: Results, base: str | None, baseline: str | None, out: Path) -> Compared | None:
    """Return the comparison of the results with `baseline`, with `base`, or with the base of the gate that measured
    them; None if there is none of these.

    A finished gate's own comparison is used if the two sides are those of the gate. Raises NotComparableError if the
    sides have no cell in common."""
    from tcbench.analysis.compare import compare
    from tcbench.commands.compare.outcome import check_distinct
    from tcbench.commands.diff.differences import changed_cells
    from tcbench.commands.report.build import Compared
    from tcbench.core import store
    from tcbench.run import gate_file
    from tcbench.run.baseline import baseline_path

    gates = [sides for path in inputs.paths if (sides := gate_file.finished_sides(path))]
    gate = gates[0] if gates and {*inputs.paths} <= {*gates[0].values()} else None
    current = gate["current"] if gate else inputs.paths[0] if len(inputs.paths) == 1 else None
    if baseline is not None:
        path, name = baseline_path(baseline, out), f"baseline {baseline}"
    elif base is not None:
        path, name = store.resolve(base, out), base
    elif gate is not None:
        path, name = gate["base"], "the gate's base"
    else:
        return None
    content = gate_file.read_finished(path, current) if current is not None else None
    before = read_files([path]).records
    after = read_files([gate["current"]]).records if gate else inputs.records
    check_distinct(before, after, Labels(plain(name), "these results"))
    comparison = gate_file.comparison(content, before, after) if content else compare(before, after)
    if not comparison.paired:
        raise NotComparableError(f"{name}: no config and batch size in common with these results")
    name = content.names[0] if content else name
    return Compared(comparison, plain(name), changed_cells(comparison, before, after))
