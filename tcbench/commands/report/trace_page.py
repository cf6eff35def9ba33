"""The page about traces of another profiler: for each the verdict, where the time goes, a timeline, and kernels."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Patch

from tcbench import __version__
from tcbench.analysis.trace_kernels import kernel_times
from tcbench.analysis.trace_verdict import TraceVerdict
from tcbench.core.text import plain
from tcbench.run.training_traces import JudgedTrace
from tcbench.show.charts.inline import tooltip
from tcbench.show.charts.page import ChartPage
from tcbench.show.charts.palette import SERIES
from tcbench.show.format import counted, listed, milliseconds, percent
from tcbench.show.page import drawings
from tcbench.show.page.page import AnyBlock, Data, Page, Prose, Section, say, strong
from tcbench.show.trace_report import (
    advice_table,
    kernel_table,
    labelled_times,
    notes,
    phase_table,
    sentence,
    step_line,
    time_table,
)

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
    verdict = judged.verdict
    per_step = " per step" if verdict.n_steps else ""
    of_trace = f": {judged.path.name}" if traces > 1 else ""

    def section(name: str, title: str, *blocks: AnyBlock) -> Section:
        return Section(f"{name}-{place}", title + of_trace, blocks)

    title = f"Where the time{' of a step' if verdict.n_steps else ''} goes"
    times = replace(time_table(verdict), caption=title)
    bar = drawings.figure(lambda: _bar(verdict), title, f"time-{place}", times)
    about = [sentence(verdict), step_line(verdict)]
    yield section("time", title, *([Prose(tuple(map(say, about)))] if traces > 1 else []), bar)
    if judged.advice:
        helps = replace(advice_table(judged), caption=f"What would help, and what it saves at most{per_step}")
        yield section("advice", "What would help", Data(helps))
    table = replace(phase_table(verdict), caption=f"Phases{per_step}")
    timeline = drawings.figure(lambda: draw(judged), "Timeline", f"timeline-{place}", table)
    yield section("timeline", "Phases and timeline", timeline)
    longest = replace(kernel_table(verdict, _MOST_KERNELS), caption=f"Kernels and copies{per_step}")
    if longest.rows:
        name, *figures = longest.columns
        longest = replace(longest, columns=[replace(name, wraps=True), *figures])
        more = len(kernel_times(verdict.window)) - _MOST_KERNELS
        left_out = (f"{more} shorter ones are left out.",) if more > 0 else ()
        yield section("kernels", "Kernels", Data(longest, notes=left_out))
    if notes(verdict):
        yield section("notes", "Notes", Prose(tuple(map(say, notes(verdict)))))


def _bar(verdict: TraceVerdict) -> Drawing:
    """Draw the shares of a step as one bar."""
    page = ChartPage("", "", ())
    times = [(text, verdict.per_step_s(time_ns)) for text, time_ns in labelled_times(verdict)]
    total_s = math.fsum(time_s for _, time_s in times)
    fills = list(zip(itertools.cycle(SERIES), times, strict=False))
    page.legend([[Patch(label=f"{percent(time_s / total_s)} {text}", **fill.patch)] for fill, (text, time_s) in fills])
    axes = page.panels([0.5])[0, 0]
    begin_ms = 0.0
    for fill, (text, time_s) in fills:
        [box] = axes.barh([0], [time_s * 1e3], 0.9, [begin_ms], **fill.patch)
        tooltip(box, f"{text}\n{milliseconds(time_s)}, {percent(time_s / total_s)}")
        begin_ms += time_s * 1e3
    axes.set_xlim(0, begin_ms)
    axes.set_yticks([])
    axes.set_xlabel("ms", loc="right")
    return page.settle()
