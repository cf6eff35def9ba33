"""Build the page of a report from results: its sections in order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from tcbench import __version__
from tcbench.analysis.claims import Scorecard
from tcbench.analysis.compare import Comparison
from tcbench.analysis.explanation import Explanation
from tcbench.analysis.summary import CellSummary, speedups
from tcbench.commands.claims.table import claims_section
from tcbench.commands.compare.cell_report import comparison_report
from tcbench.commands.compare.chart import comparison_lead, comparison_section
from tcbench.commands.diff.chart import diff_section
from tcbench.commands.diff.differences import Diff
from tcbench.commands.explain.chart import bottleneck_section
from tcbench.commands.plot.ladder import climbs
from tcbench.commands.plot.ladder_chart import ladder_section
from tcbench.commands.report.environment import environment_section
from tcbench.commands.report.summary import notices, summary_lead, summary_section
from tcbench.commands.report.trace_page import trace_page
from tcbench.commands.report.trials import trials_section
from tcbench.commands.run.chart import throughput_section
from tcbench.commands.run.scaling import curves
from tcbench.commands.run.scaling_chart import scaling_section, scaling_sentence
from tcbench.commands.timeline.chart import Caption, timeline_chart, timeline_section
from tcbench.core.record import Record
from tcbench.core.text import plain
from tcbench.core.timeline import Timeline
from tcbench.run.training_traces import JudgedTrace
from tcbench.show.format import counted, listed, size
from tcbench.show.page.drawings import Swatches
from tcbench.show.page.page import Page
from tcbench.show.page.settings import Settings
from tcbench.show.sides import Labels
from tcbench.show.trace_report import figures, sentence
from tcbench.tracing.training_timeline import trace_timeline


@dataclass(frozen=True)
class Compared:
    """A comparison, the name of its base, and breakdowns of the cells that changed significantly."""

    comparison: Comparison
    base: str
    diffs: tuple[Diff, ...] = ()


@dataclass(frozen=True)
class ReportInput:
    """The inputs of a page.

    `records` are one or more current records (`store.current`), with their `explanations`. `notes` are about the input
    files. `trials_file` names the file with all trials if the page shows only MOST_TRIALS of them."""

    records: tuple[Record, ...]
    explanations: tuple[Explanation, ...]
    cards: tuple[Scorecard, ...] = ()
    timelines: tuple[Timeline, ...] = ()
    compared: Compared | None = None
    notes: tuple[str, ...] = ()
    title: str | None = None
    trials_file: str | None = None


def build(results: ReportInput) -> Page:
    """Return the page of a report. A comparison, if there is one, comes first; sections without content are left
    out."""
    summaries = tuple(explanation.summary for explanation in results.explanations)
    settings = Settings.from_summaries(summaries)
    ratios = speedups(summaries)
    over_base = {s.key: ratio for s, ratio in zip(summaries, ratios, strict=True)}
    swatches = Swatches(tuple(dict.fromkeys(s.cell.config for s in summaries)))
    all_climbs = climbs(summaries)
    compared = results.compared
    comparison = comparison_report(compared.comparison, Labels(compared.base)) if compared else None
    scaling = curves(results.records)
    more = [*filter(None, [scaling_sentence(scaling)])]
    # A comparison comes first, since it is what the reader asked for.
    sections = [
        comparison_section(comparison) if comparison else None,
        diff_section(compared.diffs, compared.base) if compared else None,
        summary_section(settings, over_base, results.explanations, all_climbs, more, results.notes),
        throughput_section(settings, over_base, swatches),
        scaling_section(scaling, settings, swatches),
        ladder_section(all_climbs, settings),
        claims_section(results.cards),
        bottleneck_section(results.explanations, settings),
        timeline_section(results.timelines, summaries),
        environment_section(results.records, settings),
        trials_section(results.records, swatches, results.trials_file),
    ]
    first, *rest = [section for section in sections if section is not None]
    first = replace(first, blocks=(*notices(settings), *first.blocks))
    return Page(
        title=plain(" ".join((results.title or _title(summaries)).split())),
        lead=comparison_lead(comparison) if comparison else summary_lead(settings, over_base),
        facts=tuple(_facts(results.records, summaries, settings)),
        sections=(first, *rest),
        paints=tuple(map(swatches.paint, swatches.configs)),
        hatches=swatches.hatches,
        made_by=f"tcbench {__version__}",
    )


def build_trace_page(traces: Sequence[JudgedTrace], title: str | None) -> Page:
    """Return the page about traces of another profiler."""

    def draw(judged: JudgedTrace) -> Figure:
        """Draw the timeline of a trace."""
        timeline = trace_timeline(judged.trace, judged.verdict, judged.path.name)
        return timeline_chart([timeline], captions=[Caption(figures(judged.verdict), sentence(judged.verdict))])

    return trace_page(traces, title, draw)


def _title(summaries: Sequence[CellSummary]) -> str:
    """Return the default title, "resnet50 training on Tesla V100": the networks, and the devices if recorded."""
    models = listed([*names]) if len(names := {s.cell.model: s for s in summaries}) < 4 else f"{len(names)} networks"
    devices = list(dict.fromkeys(s.environment.device_name for s in summaries if s.environment))
    if not devices:
        return f"{models} training"
    return f"{models} training on {devices[0] if len(devices) == 1 else f'{len(devices)} devices'}"


def _facts(records: Sequence[Record], summaries: Sequence[CellSummary], settings: Settings) -> list[str]:
    """Return the facts under the title: common settings, numbers of cells and trials, and dates."""
    facts = list(settings.common)
    machines = {s.environment.machine: s.environment for s in summaries if s.environment}
    if len(machines) == 1:
        [environment] = machines.values()
        facts.append(f"{counted(environment.cpus, 'core')}, {size(environment.memory_bytes)}")
    trials = {s.trials for s in summaries if s.status != "skipped"}
    if trials:
        trials_each = str(min(trials)) if len(trials) == 1 else f"{min(trials)} to {max(trials)}"
        noun = "trial" if trials == {1} else "trials"
        facts.append(f"{counted(len(summaries), 'cell')}, {trials_each} {noun} each")
    days = sorted({record.started_at[:10] for record in records})
    facts.append(days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}")
    return facts
