from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from comparisons import NASTY, named, nasty, one_of_each

from tcbench.views.comparison.junit import junit


@pytest.mark.parametrize("text", [*NASTY, "\x00\x1f\x7f\ud800"])
def test_it_is_always_valid_xml(text):
    shown = junit(nasty(text) if "\ud800" not in text else one_of_each(), named(text))
    root = ET.fromstring(shown.encode("utf-8"))
    assert root.tag == "testsuites"
    assert len(list(root.iter("testcase"))) >= 4
