import base64
import functools
import hashlib
import itertools
import re
from html.parser import HTMLParser

import pytest
import reports

from tcbench.commands.report.build import build
from tcbench.show.page.render import render


class Outline(HTMLParser):
    """The content of a page: tags with their attributes, in order, and the text inside."""

    VOID = frozenset({"meta", "input", "wbr"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.mismatched: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.mismatched.append(tag)

    def handle_data(self, data):
        self.texts.append(data)

    def tags_named(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


@functools.cache
def text(name: str) -> str:
    return render(build(getattr(reports, name)()))


PAGES = ("full", "single", "failed", "hostile")


@pytest.mark.long
@pytest.mark.parametrize("name", PAGES)
def test_every_element_is_closed_and_every_id_is_there_once(name):
    page = Outline(text(name))
    assert page.mismatched == [] and page.open == []
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    references = [attributes["href"] for tag, attributes in page.tags if tag in ("a", "use")]
    assert {reference.removeprefix("#") for reference in references if reference} <= set(ids)
    for attributes in (attributes for _, attributes in page.tags):
        for name in ("aria-labelledby", "aria-describedby"):
            assert attributes.get(name) in (None, *ids)
        for value in attributes.values():
            reference = re.fullmatch(r"url\(#(.*)\)", value or "")
            assert reference is None or reference[1] in ids


@pytest.mark.long
@pytest.mark.parametrize("name", PAGES)
def test_nothing_in_the_page_names_an_address(name):
    page = Outline(text(name))
    assert not page.tags_named("link") and not page.tags_named("img") and not page.tags_named("iframe")
    for _, attributes in page.tags:
        assert "src" not in attributes and "style" not in attributes
        assert not any(attribute.startswith("on") for attribute in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    style = re.search(r"<style>(.*?)</style>", text(name), re.S)
    assert style and "url(" not in style[1] and "@import" not in style[1]


def test_the_policy_allows_just_this_style_and_this_script():
    page = text("full")
    policy = next(
        a["content"] for a in Outline(page).tags_named("meta") if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy and policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    assert page.index("Content-Security-Policy") < page.index("<style>") < page.index("<script>")
    for tag in ("style", "script"):
        [content] = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_whatever_a_record_says_is_text():
    page = Outline(text("hostile"))
    shown = "".join(page.texts)
    for name in reports.HOSTILE[:4]:
        assert name in shown
    assert len(page.tags_named("script")) == 1
    assert "49" not in re.findall(r"\d+", "".join(page.texts[page.texts.index("Summary") :])[:2000])
    assert "\x00" not in text("hostile") and "\u202e" not in text("hostile")


@pytest.mark.parametrize("name", PAGES)
def test_headings_are_in_order_and_landmarks_are_there(name):
    page = Outline(text(name))
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert [len(page.tags_named(tag)) for tag in ("header", "nav", "main", "footer")] == [1, 1, 1, 1]
    links = [a["href"] for a in page.tags_named("a")]
    assert links[0] == links[1]
    assert links[1:] == [f"#{a['id']}" for a in page.tags_named("section")]


def test_every_chart_says_what_it_is_and_has_a_table():
    figures = re.findall(r"<figure.*?</figure>", text("full"), re.S)
    assert len(figures) == 5
    for figure in figures:
        assert re.search(r'<svg [^>]*aria-label="[^"]+ The table below has every number."', figure)
        assert "<table" in figure


def test_without_a_script_everything_is_there_and_nothing_pretends_to_work():
    page = Outline(text("full"))
    [form] = [a for a in page.tags_named("form") if a.get("class") == "filters"]
    [switch] = [a for a in page.tags_named("button") if a.get("id") == "theme"]
    assert "hidden" in form and "hidden" in switch
    assert not any("aria-sort" in a for a in page.tags_named("th"))
    assert len(re.findall("<tr>", text("full").partition('id="trials"')[2])) == 105 + 1


def test_the_same_results_give_the_same_bytes():
    assert render(build(reports.failed())) == text("failed")


def test_a_config_may_break_before_a_plus_and_a_name_is_escaped_still():
    assert ">fp32<wbr>+dali<" in text("full")
    assert "fp32+dali<" in re.sub("<wbr>", "", text("full"))
    assert reports.ALERT not in text("hostile")


def test_the_script_is_short():
    [script] = re.findall(r"<script>(.*?)</script>", text("single"), re.S)
    assert len(script.splitlines()) < 300
