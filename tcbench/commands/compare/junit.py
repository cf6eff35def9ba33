"""The comparison as JUnit XML: a test case for each cell and metric, which every CI service can show, in the form that
Jenkins, GitLab and GitHub's report actions read (https://github.com/testmoapp/junitxml)."""

import re
import xml.etree.ElementTree as ET

from tcbench.commands.compare.cell_report import CellReport, ComparisonReport, unit

_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 does not allow in a document, not even as a reference (section 2.2)."""

_SKIPPED = ("inconclusive", "not measured")


def junit(report: ComparisonReport) -> str:
    """A suite for each metric. Failures make the comparison fail; inconclusive and not measured are skipped."""
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
        _properties(suite, names | {"threshold": f"{report.rule.threshold:g}"})
        for cell in cells:
            _case(suite, cell)
    root.attrib |= _texts(totals)
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode", xml_declaration=False)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _case(suite: ET.Element, cell: CellReport) -> None:
    about = {"classname": f"tcbench.{cell.metric.name}", "name": _legal(cell.name), "time": "0"}
    case = ET.SubElement(suite, "testcase", about)
    facts = {"verdict": str(cell.verdict), "unit": unit([cell])}
    for name, side in cell.sides.items():
        facts[f"{name}.trials_ok"] = str(side.trials_ok)
        if side.figure is not None:
            facts[name] = f"{side.figure:.9g}"
    if cell.ratio is not None:
        facts |= {f"ratio.{end}": f"{getattr(cell.ratio, end):.6g}" for end in ("value", "low", "high")}
    if cell.culprit is not None:
        facts["phase"] = _legal(cell.culprit.name)
        if (by := cell.culprit.slower_by) is not None:
            facts |= {f"phase.slower_by.{end}": f"{getattr(by, end):.6g}" for end in ("value", "low", "high")}
    _properties(case, facts)
    message = _legal(cell.sentence or cell.verdict)
    if cell.failing:
        ET.SubElement(case, "failure", {"type": cell.verdict, "message": message}).text = f"{about['name']}: {message}"
    elif cell.verdict in _SKIPPED:
        ET.SubElement(case, "skipped", {"message": f"{cell.verdict}: {message}"})


def _properties(parent: ET.Element, facts: dict[str, str]) -> None:
    properties = ET.SubElement(parent, "properties")
    for name, value in facts.items():
        ET.SubElement(properties, "property", {"name": name, "value": value})


def _texts(counts: dict[str, int]) -> dict[str, str]:
    return {name: str(count) for name, count in counts.items()}


def _legal(text: str) -> str:
    return _ILLEGAL.sub("", text)
