"""A Comparison as text: one function per format, and the words that they share.

`FORMATS` maps a format's name to its function from a Comparison and the two sides' names to text. Nothing here judges:
verdicts are those of `tcbench.analysis.compare`. Whatever a record may contain is escaped for where it is going.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tcbench.analysis.compare import Comparison
from tcbench.present.sides import Labels
from tcbench.views.comparison.form import SCHEMA, SCHEMA_VERSION, to_json
from tcbench.views.comparison.github import github
from tcbench.views.comparison.junit import junit
from tcbench.views.comparison.markdown import markdown
from tcbench.views.comparison.table import show, table
from tcbench.views.comparison.wording import headline

__all__ = [
    "FORMATS",
    "SCHEMA",
    "SCHEMA_VERSION",
    "Labels",
    "github",
    "headline",
    "junit",
    "markdown",
    "show",
    "table",
    "to_json",
]

FORMATS: Mapping[str, Callable[[Comparison, Labels], str]] = {
    "table": table,
    "markdown": markdown,
    "json": to_json,
    "junit": junit,
    "github": github,
}
