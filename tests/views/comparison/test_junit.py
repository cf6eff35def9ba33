from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from comparisons import NASTY, named, nasty, one_of_each

from tcbench.present.sides import Labels
from tcbench.views.comparison.junit import junit


def cases(text: str) -> dict[str, ET.Element]:
    return {case.attrib["name"].split(",")[0]: case for case in ET.fromstring(text).iter("testcase")}


def test_a_case_fails_is_skipped_or_passes():
    found = cases(junit(one_of_each()))
    failed = {name for name, case in found.items() if case.find("failure") is not None}
    skipped = {name for name, case in found.items() if case.find("skipped") is not None}
    assert failed == {"slower", "lost", "broken"}
    assert skipped == {"vague", "single", "never"}
    assert set(found) - failed - skipped == {"same", "faster", "sick", "added"}
    failure = found["slower"].find("failure")
    assert failure.attrib["type"] == "regression"
    assert failure.attrib["message"].startswith("throughput -9.7% (-10.8% to -8.7%); backward takes")
    assert "one process tells nothing" in found["single"].find("skipped").attrib["message"]


def test_counts_are_those_of_the_cases():
    root = ET.fromstring(junit(one_of_each(("throughput", "memory")), Labels("v1", "v2")))
    assert [suite.attrib["name"] for suite in root] == ["tcbench.throughput", "tcbench.memory"]
    for suite in root:
        assert int(suite.attrib["tests"]) == len(suite.findall("testcase"))
        assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure"))
        assert int(suite.attrib["skipped"]) == len(suite.findall("testcase/skipped"))
    assert int(root.attrib["tests"]) == 20
    assert int(root.attrib["failures"]) == sum(int(suite.attrib["failures"]) for suite in root)
    facts = {p.attrib["name"]: p.attrib["value"] for p in root[0].find("properties")}
    assert facts == {"base": "v1", "current": "v2", "threshold": "0.03"}


def test_properties_hold_the_figures():
    facts = {p.attrib["name"]: p.attrib["value"] for p in cases(junit(one_of_each()))["slower"].iter("property")}
    assert facts["verdict"] == "regression"
    assert facts["unit"] == "images/s"
    assert facts["phase"] == "backward"
    assert float(facts["ratio.low"]) < float(facts["ratio.value"]) < float(facts["ratio.high"]) < 0.97


@pytest.mark.parametrize("text", [*NASTY, "\x00\x1f\x7f\ud800"])
def test_it_is_always_valid_xml(text):
    shown = junit(nasty(text) if "\ud800" not in text else one_of_each(), named(text))
    root = ET.fromstring(shown.encode("utf-8"))
    assert root.tag == "testsuites"
    assert len(list(root.iter("testcase"))) >= 4
