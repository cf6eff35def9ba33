"""The page as HTML: one file with its style, its script and a policy that forbids everything else.

Owns the templates and their environment. The template engine escapes everything but the charts, and the style and the
script, which are files of this package.
"""

import base64
import functools
import hashlib
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tcbench.show.charts import inline
from tcbench.show.page.page import Figure, Page
from tcbench.show.page.wording import kept_together

_FOLDER = Path(__file__).parent


def render(page: Page) -> str:
    """The whole file. The same page gives the same text, whenever it is written."""
    charts = [block.drawn.svg for section in page.sections for block in section.blocks if isinstance(block, Figure)]
    style = f"{_text('report.css')}\n{inline.colours([*charts, *page.paints])}\n"
    script = _text("report.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    return _environment().get_template("report.html.jinja").render(
        page=page, policy=policy, style=Markup(style), script=Markup(script)
    )  # fmt: skip


def _hash(text: str) -> str:
    """As a Content-Security-Policy names an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    return environment


def _breakable(text: str) -> Markup:
    """A text whose lines may break before a plus, between the rungs of a config too, and not after one."""
    return Markup(re.sub(r"\b\+\b", "<wbr>+", escape(kept_together(text))))


@functools.cache
def _text(name: str) -> str:
    text = (_FOLDER / name).read_text(encoding="utf-8")
    # Either would end the element that the text stands in.
    if "</" in text or "<!--" in text:
        raise ValueError(f"{name}: a style or script must not hold '</'")
    return text
