"""The report as one HTML file, with its style, its script, and a security policy that forbids everything else. The
template engine escapes everything except charts, style and script."""

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
    """Return the page as HTML. The same page always gives the same text."""
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
    """Return the hash of an inline style or script for the Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@functools.cache
def _environment() -> Environment:
    """Return Jinja's environment for the templates in this folder."""
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
    """Escape a text, and allow line breaks before "+" but not after it."""
    return Markup(re.sub(r"\b\+\b", "<wbr>+", escape(kept_together(text))))


@functools.cache
def _text(name: str) -> str:
    """Return a style or script that the page includes. Raises ValueError if it could end its HTML element."""
    text = (_FOLDER / name).read_text(encoding="utf-8")
    # Either would end the HTML element that contains the text.
    if "</" in text or "<!--" in text:
        raise ValueError(f"{name}: a style or script must not hold '</'")
    return text
