import re

import factories
from comparisons import sides

from tcbench.analysis.compare import compare
from tcbench.views.comparison.markdown import MOST_CHARACTERS, markdown


def test_it_never_grows_beyond_what_a_comment_holds():
    base, current = sides({f"config-{n}-{'x' * 200}": 0.9 for n in range(300)}, trials=2)
    text = markdown(compare(base, current))
    assert 50_000 < len(text) <= MOST_CHARACTERS
    assert re.search(r"and \d+ more, for which there is no room", text)
    assert text.count("<details>") == text.count("</details>")


def test_a_long_reason_is_cut():
    base = factories.make_trials()
    current = [factories.make_record(status="failed", reason="x" * 10_000)]
    assert len(markdown(compare(base, current))) < 2000
