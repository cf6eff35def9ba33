"""The comparison as JUnit XML, with a test case per cell and metric.

CI services can show this form; it is the one that report actions of Jenkins, GitLab and GitHub read
(https://github.com/testmoapp/junitxml)."""

import re
import xml.etree.ElementTree as ET

from tcbench.analysis.stats import Interval
from tcbench.commands.compare.cell_report import CellReport, ComparisonReport, figure_unit

_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 forbids in a document, even as a reference (section 2.2)."""

_SKIPPED = ("inconclusive", "unstable", "not measured")


def junit(report: ComparisonReport) -> str:
    """Return the comparison as XML, with a test suite per metric.

    A cell that makes the comparison fail is a failure; inconclusive, unstable and unmeasured cells are skipped."""
    root = ET.Element("testsuites", {"name": "tcbench compare"})
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for metric, cells in report.by_metric.items():
        counts = {
            "tests": len(cells),
            "failures": sum(cell.failing for cell in cells),
            "errors": 0,
            "skipped": sum(cell.verdict in _SKIPPED for cell in cells),
        }
        totals = {name: totals[name] + counts[name] for name in totals}
        suite = ET.SubElement(root, "testsuite", {"name": f"tcbench.{metric.name}", **_texts(counts), "time": "0"})
        names = {"base": _legal(report.labels.base), "current": _legal(report.labels.current)}
        facts = {"threshold": f"{report.rule.threshold:g}", "machine_check": "".join(report.machine_lines)}
        _properties(suite, names | {name: fact for name, fact in facts.items() if fact})
        for cell in cells:
            _case(suite, cell)
    root.attrib |= _texts(totals)
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode", xml_declaration=False)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _case(suite: ET.Element, cell: CellReport) -> None:
    """Add a cell's test case to a suite."""
    about = {"classname": f"tcbench.{cell.metric.name}", "name": _legal(cell.name), "time": "0"}
    case = ET.SubElement(suite, "testcase", about)
    facts = {"verdict": str(cell.verdict), "unit": figure_unit([cell])}
    for name, side in cell.sides.items():
        facts[f"{name}.trials_ok"] = str(side.trials_ok)
        if side.figure is not None:
            facts[name] = f"{side.figure:.9g}"
    if cell.ratio is not None:
        facts |= _interval("ratio", cell.ratio)
    if cell.culprit is not None:
        facts["phase"] = _legal(cell.culprit.name)
        if cell.culprit.slower_by is not None:
            facts |= _interval("phase.slower_by", cell.culprit.slower_by)
    _properties(case, facts)
    message = _legal(cell.sentence or cell.verdict)
    if cell.failing:
        ET.SubElement(case, "failure", {"type": cell.verdict, "message": message}).text = f"{about['name']}: {message}"
    elif cell.verdict in _SKIPPED:
        ET.SubElement(case, "skipped", {"message": f"{cell.verdict}: {message}"})


def _interval(name: str, interval: Interval) -> dict[str, str]:
    """Return the properties of an interval: `ratio.value`, `ratio.low`, `ratio.high`."""
    return {f"{name}.{end}": f"{getattr(interval, end):.6g}" for end in ("value", "low", "high")}


def _properties(parent: ET.Element, facts: dict[str, str]) -> None:
    """Add properties to a suite or test case."""
    properties = ET.SubElement(parent, "properties")
    for name, value in facts.items():
        ET.SubElement(properties, "property", {"name": name, "value": value})


def _texts(counts: dict[str, int]) -> dict[str, str]:
    return {name: str(count) for name, count in counts.items()}


def _legal(text: str) -> str:
    """Return the text without characters that XML forbids."""
    return _ILLEGAL.sub("", text)
