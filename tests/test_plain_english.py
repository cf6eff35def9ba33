"""Names and docstrings in plain English."""

import plain_english

CLOCK = "an attribute of clocks, which users' own steps bring too"
REASONS = {
    ("tcbench/commands/gate/bisect/search.py", "named"): "a key of stored searches",
    ("tcbench/core/claim.py", "at"): "a key of scenario files",
    ("tcbench/engine/accelerators/event_clock.py", "of"): CLOCK,
    ("tcbench/engine/clock.py", "of"): CLOCK,
    ("tcbench/engine/rung.py", "of"): "an earlier name, which other packages may use",
    ("tcbench/engine/session.py", "of"): CLOCK,
    ("tcbench/marks.py", "every"): "an argument of a public function",
    ("tests/engine/accelerators/cuda/test_ceilings.py", "of"): CLOCK,
    ("tests/engine/measure/test_loop.py", "of"): CLOCK,
}
"""The unclear names that stay, by file, each with its reason. The list may only become shorter."""

TWO_MEANINGS = ["Linear", "Relu"]
"""Chainer's hooks show the names of these function nodes; a layer and a work have the same names."""

SAMPLE = '''
"""Of a module."""
LIMIT = 3
"""By which something is limited."""

def of(one, cell):
    """Return a rate."""
    kept = [rate for rate in cell]
'''


def test_pronouns_and_dangling_openings_are_found():
    assert plain_english.unclear(SAMPLE) == {"of", "one", "kept", "Of a module.", "By which something is limited."}
    assert plain_english.unclear('"""Rates of cells."""\nrate = 1.0') == set()


def test_only_names_with_a_reason_are_unclear():
    files = plain_english.modules("tcbench", "tests")
    assert {(file, place) for file, source in files for place in plain_english.unclear(source)} == REASONS.keys()


def test_every_public_module_class_and_function_has_a_docstring():
    assert plain_english.undocumented(SAMPLE) == []
    assert plain_english.undocumented("class Cell: ...\ndef _private(): ...\n") == ["module", "Cell"]
    files = plain_english.modules("tcbench")
    assert {file: missing for file, source in files if (missing := plain_english.undocumented(source))} == {}


def test_no_more_classes_share_a_name():
    assert plain_english.classes_with_two_meanings() == TWO_MEANINGS
