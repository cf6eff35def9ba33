"""Names and docstrings in plain English: what breaks the rules is listed by file, and the list may only shrink."""

import plain_english

LISTED = plain_english.ROOT / "tests" / "plain_english.tsv"
TWO_MEANINGS = "Linear Relu"
"""Chainer's hooks show the names of these function nodes; a layer and a work have the same names."""
SAMPLE = '''
"""Of a module."""
LIMIT = 3
"""By which something is limited."""

def of(one, cell):
    """Return a rate."""
    kept = [rate for rate in cell]
'''


def test_pronouns_and_dangling_openings_count():
    assert plain_english.counts(SAMPLE) == (3, 2)
    assert plain_english.counts('"""Rates of cells."""\nrate = 1.0') == (0, 0)


def test_no_file_has_more_than_is_listed():
    rows = (line.split("\t") for line in LISTED.read_text("utf-8").splitlines())
    listed = {file: (int(names), int(docstrings)) for file, names, docstrings in rows}
    current = plain_english.every_count()
    worse = [file for file, counts in current.items() if any(map(int.__gt__, counts, listed.get(file, (0, 0))))]
    assert not worse, "more pronouns as names, or docstrings that read on from a name, than are listed"
    assert current == listed, "fewer than listed: `uv run python tests/plain_english.py >tests/plain_english.tsv`"


def test_every_public_module_class_and_function_has_a_docstring():
    assert plain_english.undocumented(SAMPLE) == []
    assert plain_english.undocumented("class Cell:\n    def rate(self): ...\ndef _private(): ...\n") == [
        "module",
        "Cell",
    ]
    assert plain_english.every_undocumented() == []


def test_no_more_classes_share_a_name():
    assert " ".join(plain_english.classes_with_two_meanings()) == TWO_MEANINGS
