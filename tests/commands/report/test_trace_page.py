"""`tcbench report` of traces of another profiler."""

import re
from xml.etree import ElementTree

import planted_traces
import pytest
from command import tcbench


@pytest.fixture
def page(tmp_path):
    truth = planted_traces.write(tmp_path / "t.json", 3)
    done = tcbench(tmp_path, "report", "t.json", "-o", "page.html")
    assert (done.code, (tmp_path / "t-report.html").exists()) == (0, False)
    return truth, (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_page_about_a_trace_shows_its_shares_timeline_and_kernels_and_loads_nothing(page):
    truth, html = page
    assert "<h1>t.json</h1>" in html
    step_ms = truth.window * planted_traces.TICK_NS * 1e-6 / truth.steps
    assert f"{step_ms:.3g} ms" in html
    assert re.search(r"<strong>\w+-bound</strong>: the GPU works ", html)
    sections = re.findall(r'<section id="(\w+)-0"', html)
    assert [name for name in sections if name not in ("advice", "notes")] == ["time", "timeline", "kernels"]
    charts = [ElementTree.fromstring(svg) for svg in re.findall(r'(<svg [^>]*role="img".*?</svg>)', html, re.DOTALL)]
    assert len(charts) == 2
    assert "a_kernel" in html
    assert not re.search(r"images/s|(src|href)=.?https?:", html)


def test_traces_and_runs_are_not_mixed_on_one_page(tmp_path):
    planted_traces.write(tmp_path / "t.json", 3)
    done = tcbench(tmp_path, "report", "t.json", "--baseline", "main")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "name only traces" in done.err
