"""The page about traces of another profiler: for each the verdict, where the time goes, a timeline, and kernels."""

import itertools
from collections.abc import Callable, Iterator, Sequence

from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Patch

from tcbench import __version__
from tcbench.analysis.trace_advice import TraceAdvice
from tcbench.analysis.trace_kernels import TraceKernel, kernel_times
from tcbench.analysis.trace_verdict import PhaseShare
from tcbench.core.text import plain
from tcbench.run.training_traces import JudgedTrace
from tcbench.show.charts.inline import tooltip
from tcbench.show.charts.page import ChartPage
from tcbench.show.charts.palette import SERIES
from tcbench.show.format import counted, listed, milliseconds, percent
from tcbench.show.page import drawings
from tcbench.show.page.page import AnyBlock, Data, Page, Prose, Section, say, strong
from tcbench.show.tables import NUMBER, SECONDS, SHARE, Column, Table
from tcbench.show.trace_report import change_words, evidence, labelled_times, notes, sentence, step_line

_MOST_KERNELS = 100


def trace_page(traces: Sequence[JudgedTrace], title: str | None, draw: Callable[[JudgedTrace], Drawing]) -> Page:
    """Return the page about one trace or several. `draw` draws the timeline of one."""
    names = listed([each.path.name for each in traces[:3]]) if len(traces) < 4 else counted(len(traces), "trace")
    limit, _, shares = sentence(traces[0].verdict).partition(": ")
    lead = say(strong(limit), f": {shares}." if len(traces) == 1 else f" is the first of {len(traces)} traces.")
    devices = dict.fromkeys(each.verdict.device_name for each in traces)
    sections = [section for place, each in enumerate(traces) for section in _sections(each, place, len(traces), draw)]
    facts = (*devices, *(step_line(each.verdict) for each in traces[:1] if len(traces) == 1))
    return Page(
        plain(" ".join((title or names).split())), lead, facts, tuple(sections), (), "", f"tcbench {__version__}"
    )


def _sections(
    judged: JudgedTrace, place: int, traces: int, draw: Callable[[JudgedTrace], Drawing]
) -> Iterator[Section]:
    """Yield the sections about a trace, those with something in them."""
    verdict, n_steps = judged.verdict, judged.verdict.n_steps or 1
    per_step = " per step" if verdict.n_steps else ""
    of_trace = f" of {judged.path.name}" if traces > 1 else ""

    def section(name: str, title: str, *blocks: AnyBlock) -> Section:
        return Section(f"{name}-{place}", title + of_trace, blocks)

    def seconds(time_ns: int) -> float:
        return time_ns * 1e-9 / n_steps

    times = [(text, seconds(time_ns), verdict.share(time_ns)) for text, time_ns in labelled_times(verdict)]
    columns: list[Column[tuple[str, float, float]]] = [
        Column("time", lambda row: row[0], ratio=1),
        Column(f"time{per_step}", lambda row: row[1], SECONDS),
        Column("share", lambda row: row[2], SHARE),
    ]
    title = f"Where the time{' of a step' if verdict.n_steps else ''} goes"
    bar = drawings.figure(lambda: _bar(times), title, f"time-{place}", Table(columns, times, title))
    about = [sentence(verdict), step_line(verdict)]
    yield section("time", title, *([Prose(tuple(map(say, about)))] if traces > 1 else []), bar)
    if judged.advice:
        helps: list[Column[TraceAdvice]] = [
            Column("change", lambda row: change_words(row.change), ratio=1),
            Column("saves at most", lambda row: seconds(row.at_most_ns), SECONDS),
            Column("of the step" if verdict.n_steps else "share", lambda row: verdict.share(row.at_most_ns), SHARE),
            Column("evidence", lambda row: evidence(row, verdict), ratio=1),
        ]
        yield section("advice", "What would help", Data(Table(helps, judged.advice, "What would help, at most")))
    phases: list[Column[PhaseShare]] = [
        Column("phase", lambda row: row.name, ratio=1),
        Column("in operators" if verdict.is_on_cpu else "work launched in it", lambda r: seconds(r.work_ns), SECONDS),
        Column("other time" if verdict.is_on_cpu else "idle before", lambda row: seconds(row.idle_ns), SECONDS),
        Column("operators" if verdict.is_on_cpu else "launches", lambda row: row.launches / n_steps, NUMBER),
    ]
    table = Table(phases, verdict.phases, f"Phases{per_step}")
    timeline = drawings.figure(lambda: draw(judged), "Timeline", f"timeline-{place}", table)
    yield section("timeline", "Phases and timeline", timeline)
    if all_kernels := kernel_times(verdict.window):
        longest: list[Column[TraceKernel]] = [
            Column("kernel or copy", lambda row: row.name, ratio=1),
            Column("kind", lambda row: row.kind),
            Column(f"time{per_step}", lambda row: seconds(row.time_ns), SECONDS),
            Column("share", lambda row: verdict.share(row.time_ns), SHARE),
            Column(f"launches{per_step}", lambda row: row.launches / n_steps, NUMBER),
        ]
        rows, more = all_kernels[:_MOST_KERNELS], len(all_kernels) - _MOST_KERNELS
        left_out = (f"{more} shorter ones are left out.",) if more > 0 else ()
        yield section("kernels", "Kernels", Data(Table(longest, rows, f"Kernels and copies{per_step}"), notes=left_out))
    if notes(verdict):
        yield section("notes", "Notes", Prose(tuple(map(say, notes(verdict)))))


def _bar(times: Sequence[tuple[str, float, float]]) -> Drawing:
    """Draw the shares of a step as one bar."""
    page = ChartPage("", "", ())
    fills = list(zip(itertools.cycle(SERIES), times, strict=False))
    page.legend([[Patch(label=f"{percent(share)} {text}", **fill.patch)] for fill, (text, _, share) in fills])
    axes = page.panels([0.5])[0, 0]
    begin_ms = 0.0
    for fill, (text, time_s, share) in fills:
        [box] = axes.barh([0], [time_s * 1e3], 0.9, [begin_ms], **fill.patch)
        tooltip(box, f"{text}\n{milliseconds(time_s)}, {percent(share)}")
        begin_ms += time_s * 1e3
    axes.set_xlim(0, begin_ms)
    axes.set_yticks([])
    axes.set_xlabel("ms", loc="right")
    return page.settle()
