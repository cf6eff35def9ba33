"""The report in a real browser: headless Chromium, with every name resolved to nothing."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import reports

from tcbench.commands.report.build import build
from tcbench.show.page.render import render

pytest.importorskip("selenium")

pytestmark = [
    pytest.mark.chromium,
    pytest.mark.skipif(
        shutil.which("chromium") is None or shutil.which("chromedriver") is None, reason="no Chromium or driver on PATH"
    ),
]

WATCH = """
window.alerts = [];
window.alert = (text) => window.alerts.push(text);
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.blockedURI));
"""

PAIRS = """
const shown = (element) => element.getClientRects().length > 0;
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (colour !== "rgba(0, 0, 0, 0)") return colour;
  }
  return getComputedStyle(document.body).backgroundColor;
};
return arguments[0].flatMap((selector) => [...document.querySelectorAll(selector)].filter(shown).slice(0, 40).map(
  (element) => {
    const style = getComputedStyle(element);
    return [selector, element instanceof SVGElement ? style.fill : style.color, behind(element)];
  }));
"""

SETTLED = "new Promise((done) => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 50))"

TEXTS = (
    *("h1", "h2", "h3", ".lead", ".lead strong", ".facts", "nav a", ".prose p", ".points span", ".notes li"),
    *(".badge.good", ".badge.bad", ".badge.warn", ".badge.plain", ".notice", "dt", "dd", "th button", "td", "summary"),
    *('.chart text[fill="var(--ink)"]', '.chart text[fill="var(--quiet)"]'),
    *(".filters label", ".filters output", "button", "select", "footer"),
)


class Page:
    """A page in the browser."""

    def __init__(self, driver, folder: Path) -> None:
        self.driver, self.folder = driver, folder

    def open(self, name: str, width: int = 1280, dark: bool = False) -> None:
        path = self.folder / f"{name}.html"
        if not path.exists():
            path.write_text(render(build(getattr(reports, name)())), encoding="utf-8")
        self.scheme(dark)
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(path.as_uri())
        self.js("localStorage.clear(); delete document.documentElement.dataset.theme")

    def scheme(self, dark: bool, media: str = "") -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def js(self, text: str, *arguments):
        return self.driver.execute_script(text, *arguments)

    def each(self, selector: str, tells: str) -> list:
        """Evaluate a JavaScript expression of `one` for each element that a selector finds."""
        return self.js(f"return [...document.querySelectorAll(arguments[0])].map((one) => {tells})", selector)

    def unfold(self) -> None:
        self.each("details", "{ one.open = true; }")

    def ground(self) -> float:
        """How light the page's ground is."""
        return luminance(self.js("return getComputedStyle(document.body).backgroundColor"))

    def column(self, place: int) -> list[str]:
        """The texts of a column of the table of trials, of the rows that are shown."""
        return self.each("#trials tbody tr:not([hidden])", f"one.cells[{place}].textContent.trim()")

    def heads(self) -> list[str]:
        return self.each("#trials th", "one.textContent.trim()")

    def fill(self, name: str, value: str) -> None:
        """Give a field of that table's form a value."""
        self.js(
            "const field = document.querySelector('#trials form').elements[arguments[0]]; field.value = arguments[1];"
            "field.dispatchEvent(new Event('input', {bubbles: true}))",
            name,
            value,
        )

    def messages(self, method: str) -> list[dict]:
        """Return the browser's messages about its network since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [message["params"] for message in messages if message["method"] == method]

    def sort(self, name: str) -> list[str]:
        """The column after a press of its button."""
        place = self.heads().index(name)
        self.js("document.querySelectorAll('#trials th button')[arguments[0]].click()", place)
        return self.column(place)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900")
    for flag in (*flags, "--host-resolver-rules=MAP * ~NOTFOUND"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
        yield Page(driver, tmp_path_factory.mktemp("pages"))
    finally:
        driver.quit()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["full", "single", "failed", "hostile"])
def test_a_page_asks_for_nothing_but_itself_and_complains_of_nothing(page: Page, name: str) -> None:
    page.open(name)
    urls = [message["request"]["url"] for message in page.messages("Network.requestWillBeSent")]  # of network or disk
    assert urls == [(page.folder / f"{name}.html").as_uri()]
    assert page.js("return performance.getEntriesByType('resource').length") == 0
    assert page.driver.get_log("browser") == []
    assert page.js("return window.violations") == []


def test_the_policy_would_stop_what_somebody_smuggled_in(page: Page) -> None:
    page.open("single")
    page.js(
        "const image = new Image(); image.src = 'https://example.org/x.png'; document.body.append(image);"
        "const script = document.createElement('script'); script.textContent = 'window.ran = true';"
        "document.body.append(script);"
        "document.body.insertAdjacentHTML('beforeend', '<b style=\"color: red\" onclick=\"window.ran = true\">b</b>');"
        "document.body.lastChild.click()"
    )
    assert len(page.js("return window.violations")) >= 3
    assert page.js("return window.ran") is None
    assert [message.get("blockedReason") for message in page.messages("Network.loadingFailed")] == ["csp"]
    page.driver.get_log("browser")


def test_the_table_sorts_numbers_as_numbers_both_ways(page: Page) -> None:
    page.open("full")
    rates_shown = page.column(page.heads().index("images/s"))
    rates = [float(text) for text in rates_shown if text]
    up = page.sort("images/s")
    assert [float(text) for text in up if text] == sorted(rates)
    assert up[-5:] == [""] * 5  # what failed stays at the end
    down = page.sort("images/s")
    assert [float(text) for text in down if text] == sorted(rates, reverse=True)
    assert down[-5:] == [""] * 5
    states = page.each("#trials th", "one.ariaSort")
    assert states.count("descending") == 1 and states.count("none") == len(states) - 1
    assert page.sort("config") == sorted(page.column(0), key=str.lower)


def test_the_table_filters_by_text_config_batch_size_and_status(page: Page) -> None:
    page.open("full")
    say = "return document.querySelector('#trials output').value"
    assert page.js(say) == "105 of 105 trials"
    page.fill("batch", "8")
    assert set(page.column(1)) == {"8"}
    page.fill("config", "fp16")
    assert page.js(say) == "5 of 105 trials"
    assert set(page.column(0)) == {"fp16"}
    page.js("document.querySelector('#trials button[type=reset]').click()")
    page.js(f"return {SETTLED}")
    assert page.js(say) == "105 of 105 trials"
    page.fill("status", "out of memory")
    assert page.column(0) == ["fp16+dynamic_scale"]
    page.fill("status", "")
    page.fill("text", "OPENCV headless")
    assert page.column(0) == ["fp32+opencv"] * 2
    page.fill("text", "no such thing")
    assert page.column(0) == [] and page.js(say) == "0 of 105 trials"


def luminance(colour: str) -> float:
    hexadecimal = re.fullmatch(r"#([0-9a-f]{6})", colour.strip())
    if hexadecimal:
        channels = [int(hexadecimal[1][i : i + 2], 16) for i in (0, 2, 4)]
    else:
        channels = [float(text) for text in re.findall(r"[\d.]+", colour)][:3]
    linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, other: str) -> float:
    low, high = sorted((luminance(first), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_in_both_schemes(page: Page, dark: bool) -> None:
    page.open("full", dark=dark)
    page.unfold()
    pairs = page.js(PAIRS, list(TEXTS))
    assert {selector for selector, _, _ in pairs} == set(TEXTS)
    low = {(selector, text, on) for selector, text, on in pairs if contrast(text, on) < 4.5}
    assert not low
    assert (page.ground() < 0.1) == dark


@pytest.mark.parametrize("dark", [False, True])
def test_words_in_a_timeline_stand_out_from_their_blocks(page: Page, dark: bool) -> None:
    page.open("full", dark=dark)
    pairs = page.js(
        """
        const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
        const rgb = (colour) => {
          canvas.fillStyle = colour;
          canvas.fillRect(0, 0, 1, 1);
          return `rgb(${[...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).join()})`;
        };
        document.querySelector("#timelines .chart").scrollIntoView({behavior: "instant"});
        return [...document.querySelectorAll('#timelines text[fill^="var(--on-"]')].map((word) => {
          const box = word.getBoundingClientRect();
          const under = document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2);
          const block = under.find((one) => one.tagName === "path");
          return block && [rgb(getComputedStyle(word).fill), rgb(getComputedStyle(block).fill)];
        }).filter(Boolean);
        """
    )
    assert len(pairs) > 5
    assert min(contrast(*pair) for pair in pairs) >= 4.5


def test_the_switch_changes_the_scheme_and_remembers(page: Page) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    page.open("single")
    light = page.ground()
    button = page.driver.find_element("id", "theme")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert page.ground() < 0.1

    def dark_when_loaded_anew(driver) -> bool:
        driver.refresh()
        return page.ground() < 0.1

    # Chromium hands on what a page keeps to the page after it, in another process, in its own time.
    WebDriverWait(page.driver, 20).until(dark_when_loaded_anew)
    page.driver.find_element("id", "theme").click()
    assert page.ground() == light


@pytest.mark.slow
@pytest.mark.parametrize("name", ["full", "many_configs", "hostile", "failed"])
@pytest.mark.parametrize("width", [320, 375, 1440])
def test_no_width_makes_the_page_scroll_sideways(page: Page, name: str, width: int) -> None:
    page.open(name, width=width)
    page.unfold()
    assert page.js("return document.documentElement.scrollWidth") <= width
    boxes = page.each("#trials .scroll", "[one.scrollWidth, one.clientWidth]")
    assert all(inside > box for inside, box in boxes)  # the wide table scrolls in its own box


def test_the_first_screen_shows_the_summary_whole(page: Page) -> None:
    page.open("machines", width=1280)
    [[inside, box], *_] = page.each("#summary .scroll", "[one.scrollWidth, one.clientWidth]")
    assert inside <= box


@pytest.mark.parametrize(
    ("width", "last"),
    [(420, ("images/s", "factor", "images/s", "status")), (1280, ("vs fp32", "after", "next", "images/s"))],
)
def test_what_matters_in_a_table_is_seen_without_scrolling(page: Page, width: int, last: tuple[str, ...]) -> None:
    page.open("full", width=width)
    page.unfold()
    for section, name in zip(("throughput", "rungs", "bottlenecks", "trials"), last, strict=True):
        [box] = page.each(f"#{section} .scroll", "one.getBoundingClientRect().right")
        ends = page.each(f"#{section} th", "[one.textContent.trim(), one.getBoundingClientRect().right]")
        assert dict(ends)[name] <= box, (section, ends)
    # ...and the config stays beside what is scrolled to.
    page.each(".scroll", "{ one.scrollLeft = 9999; }")
    distance = "one.getBoundingClientRect().left - one.closest('.scroll').getBoundingClientRect().left"
    assert min(page.each("td.config", distance)) >= 0


def test_words_of_a_chart_stay_on_the_page_and_off_each_other(page: Page) -> None:
    page.open("full")
    out = page.js(
        "return [...document.querySelectorAll('.chart text')].filter((text) => { const box = "
        "text.getBoundingClientRect(); return box.left < -1 || box.right > innerWidth + 1; })"
        ".map((text) => text.textContent)"
    )
    assert out == []
    touching = page.js(
        "return [...document.querySelectorAll('.chart')].flatMap((chart) => { const boxes = "
        "[...chart.querySelectorAll('text')].map((text) => [text.textContent, text.getBoundingClientRect()]);"
        "return boxes.flatMap(([one, a], place) => boxes.slice(place + 1).filter(([, b]) => a.right > b.left + 2 && "
        "b.right > a.left + 2 && a.bottom > b.top + 4 && b.bottom > a.top + 4).map(([other]) => [one, other])); })"
    )
    assert touching == []


def test_a_table_of_many_claims_is_whole_and_one_of_all_trials_has_a_box(page: Page) -> None:
    page.open("full")
    heights = page.js(
        "const rows = document.querySelector('#claims tbody');"
        "for (let n = 0; n < 20; n++) rows.append(rows.rows[0].cloneNode(true));"
        "return ['claims', 'trials'].map((id) => document.querySelector(`#${id} .scroll`))"
        ".map((box) => [box.scrollHeight, box.clientHeight])"
    )
    assert [inside <= box for inside, box in heights] == [True, False]


def test_on_a_narrow_page_a_chart_scrolls_in_its_box_fades_where_it_goes_on_and_stays_legible(page: Page) -> None:
    page.open("full", width=375)
    lowest = "...[...one.querySelectorAll('text')].filter((text) => text.textContent)"
    lowest = f"Math.min({lowest}.map((text) => text.getBoundingClientRect().height))"
    charts = page.each(".chart", f"[one.clientWidth, one.scrollWidth, {lowest}]")
    assert all(box < 375 < inside and height >= 7 for box, inside, height in charts)
    fades = (
        "const box = document.querySelector('.chart'); box.scrollLeft = arguments[0] * box.scrollWidth;"
        f"return {SETTLED}.then(() => [...box.classList].filter((name) => name.startsWith('more')))"
    )
    assert [page.js(fades, share) for share in (0, 0.2, 1)] == [
        ["more-right"],
        ["more-right", "more-left"],
        ["more-left"],
    ]
    page.open("full", width=1280)
    assert page.js(f"return {SETTLED}.then(() => document.querySelectorAll('.chart.more-right').length)") == 0


def test_tab_reaches_the_sort_buttons_and_enter_sorts(page: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    page.open("full")
    page.js("document.activeElement.blur(); window.scrollTo(0, 0)")

    def press(key: str) -> dict:
        ActionChains(page.driver).send_keys(key).perform()
        return page.js(
            "const at = document.activeElement; const style = getComputedStyle(at);"
            "return {text: at.textContent.trim(), sorts: at.matches('#trials th button'), skip: at.matches('.skip'),"
            "mark: at.matches('.tooltip'), outline: style.outlineStyle,"
            "top: at.getBoundingClientRect().top}"
        )

    first = press(Keys.TAB)
    assert first["skip"] and first["top"] >= 0 and first["outline"] != "none"
    marks = 0
    for _ in range(120):
        focused = press(Keys.TAB)
        marks += focused["mark"]
        if focused["sorts"] and focused["text"] == "images/s":
            break
        assert focused["outline"] != "none", focused
    else:
        pytest.fail("no sort button in reach")
    assert marks == len(page.each(".chart:has(.tooltip)", "1")) > 0  # a chart is one stop
    press(Keys.ENTER)
    rates = [float(text) for text in page.column(page.heads().index("images/s")) if text]
    assert rates == sorted(rates)
    press(Keys.SPACE)
    assert page.column(page.heads().index("images/s"))[0] == f"{max(rates):.1f}"


def test_bars_tell_their_numbers_on_hover_and_on_focus(page: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.actions.action_builder import ActionBuilder
    from selenium.webdriver.common.keys import Keys

    def point_at(element) -> None:
        """Click without scrolling, with which WebDriver's own click begins."""
        box = page.js("return arguments[0].getBoundingClientRect().toJSON()", element)
        builder = ActionBuilder(page.driver)
        builder.pointer_action.move_to_location(
            int(box["left"] + box["width"] / 2), int(box["top"] + box["height"] / 2)
        )
        builder.perform()

    page.open("full")
    tip = "const tip = document.getElementById('tip'); return tip.hidden ? null : tip.textContent"
    assert page.js(tip) is None
    bar = page.driver.find_element("css selector", "#bottlenecks .tooltip")
    page.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", bar)
    page.js(f"return {SETTLED}")
    point_at(bar)
    assert page.js(tip).startswith("fp32, batch size 4\nio ")
    point_at(page.driver.find_element("css selector", "#bottlenecks h2"))
    assert page.js(tip) is None
    page.js("arguments[0].focus({preventScroll: true, focusVisible: true})", bar)
    ActionChains(page.driver).send_keys(Keys.ARROW_DOWN).perform()
    assert page.js(tip).startswith("fp32, batch size 4\nforward ")
    box = page.js("return document.getElementById('tip').getBoundingClientRect().toJSON()")
    assert box["left"] >= 0 and box["right"] <= 1280 and box["top"] >= 0 and box["bottom"] <= 900
    assert page.js("return document.activeElement.getAttribute('aria-label')").startswith(
        "fp32, batch size 4, forward "
    )
    ActionChains(page.driver).send_keys(Keys.END).perform()
    assert "batch size 8\nupdate " in page.js(tip)
    ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()
    assert page.js(tip) is None


def test_hostile_names_are_text_and_nothing_of_them_runs(page: Page) -> None:
    page.open("hostile")
    page.unfold()
    assert page.js("return window.alerts") == []
    assert page.js("return document.querySelectorAll('script').length") == 1
    assert page.js("return document.querySelectorAll('img').length") == 0
    text = page.js("return document.body.innerText")
    assert all(name in text for name in reports.HOSTILE[:4])
    assert page.driver.title == reports.ALERT
    assert page.each("#trials select[name=config] option", "one.value")[1] == reports.ALERT
    page.fill("config", reports.ALERT)
    assert page.column(0) == [reports.ALERT] * 2
    assert page.js("return window.alerts") == []
    assert "\u202e" not in page.js("return document.documentElement.outerHTML")


def test_on_paper_the_page_is_light_and_without_what_only_a_screen_needs(page: Page) -> None:
    page.open("full", dark=True)
    try:
        page.scheme(True, media="print")
        assert page.ground() > 0.9
        assert page.each("nav, .filters, #theme", "getComputedStyle(one).display") == ["none"] * 3
        assert page.js("return getComputedStyle(document.querySelector('#trials .scroll')).maxHeight") == "none"
    finally:
        page.scheme(False)
