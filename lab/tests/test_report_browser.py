"""The page in a real browser: figures drawn, toggles work, nothing complains, nothing is fetched."""

import pytest
from lab_support.report_runs import full_experiment, make_run
from support.needs import CHROMIUM, needs_chromium
from support.tools import ROOT

from alrao_lab.records import read_runs
from alrao_lab.report.page import write_report

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")

pytestmark = needs_chromium

COLOURS = {
    "light": ("rgb(31, 35, 40)", "rgb(246, 248, 250)"),
    "dark": ("rgb(230, 232, 235)", "rgb(13, 17, 23)"),
}
"""Of text and background."""
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    place = tmp_path_factory.mktemp("report")
    root = full_experiment(place / "runs")
    (root / "broken").mkdir()
    (root / "broken" / "config.json").write_text("{")
    write_report(read_runs([root]), place / "report.html")
    return place / "report.html"


@pytest.fixture(scope="module")
def opener(browser):
    """Open a file; noted are words on the console and requests to a network, of which there must be none."""
    noted, contexts = [], []

    def open_(file, viewport=WIDE, scheme="light"):
        context = browser.new_context(viewport=viewport, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: noted.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: noted.append(str(error)))
        page.on("request", lambda request: noted.append(request.url) if is_remote(request.url) else None)
        page.goto(file.as_uri())
        return page

    open_.noted = noted
    yield open_
    for context in contexts:
        context.close()


def is_remote(url):
    return not url.startswith(("file:", "data:", "blob:"))


@pytest.fixture
def open_page(opener):
    opener.noted.clear()
    yield opener
    assert opener.noted == []


@pytest.fixture(scope="module")
def wide_page(opener, page_file):
    """The page with every figure drawn, for all tests that leave it as it was."""
    page = opener(page_file)
    draw_all(page)
    return page


@pytest.fixture
def page(open_page, wide_page):
    return wide_page


def draw_all(page):
    """Scroll to every figure, as a reader would."""
    plots = page.locator(".plot")
    for i in range(plots.count()):
        plots.nth(i).scroll_into_view_if_needed()
        page.wait_for_function("i => document.querySelectorAll('.plot')[i].dataset.drawn", arg=i)
    page.wait_for_function(
        "[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('.main-svg'))"
    )
    return plots.count()


def layout(page, name, path):
    return page.evaluate(
        "([name, path]) => path.split('.').reduce((at, key) => at?.[key], "
        "document.querySelector(`.plot[data-figure$='${name}']`)._fullLayout)",
        [name, path],
    )


@pytest.mark.parametrize(
    ("viewport", "scheme"),
    [
        (WIDE, "light"),
        pytest.param(WIDE, "dark", marks=pytest.mark.slow),
        pytest.param(NARROW, "light", marks=pytest.mark.slow),
        (NARROW, "dark"),
    ],
    ids=["wide-light", "wide-dark", "narrow-light", "narrow-dark"],
)
def test_every_figure_is_drawn(open_page, page_file, viewport, scheme):
    page = open_page(page_file, viewport, scheme)
    assert draw_all(page) == 7
    empty = page.evaluate(
        "[...document.querySelectorAll('.plot')]"
        ".filter(plot => !plot.querySelector('.trace, .hm, image')).length"
    )
    assert empty == 0
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "no sideways scrolling"
    text, back = COLOURS[scheme]
    assert page.evaluate("getComputedStyle(document.body).color") == text
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == back
    assert page.evaluate("getComputedStyle(document.querySelector('.plot .xtick text')).fill") == text
    one_column = layout(page, "curves", "xaxis2.domain")[0] == 0
    assert one_column == (viewport is NARROW)


@pytest.mark.slow
def test_colours_can_be_chosen_and_stay(open_page, page_file):
    page = open_page(page_file)
    button = page.locator("#theme")
    assert button.inner_text() == "Colours: as the system"
    button.click()
    assert button.inner_text() == "Colours: light"
    button.click()
    assert button.inner_text() == "Colours: dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    draw_all(page)
    assert layout(page, "curves", "font.color") == "#e6e8eb"
    page.emulate_media(color_scheme="light")
    assert layout(page, "curves", "font.color") == "#e6e8eb", "a choice is a choice"
    button.click()
    page.wait_for_function("document.querySelector('.plot')._fullLayout.font.color === '#1f2328'")


def test_axes_toggle_between_log_and_linear(page):
    for name in ("curves", "valley", "adam", "frozen"):
        figure = page.locator(f"figure[id$='{name}']")
        assert layout(page, name, "yaxis.type") == "log"
        figure.get_by_role("button", name="linear").click()
        assert layout(page, name, "yaxis.type") == "linear"
        assert figure.get_by_role("button", name="linear").get_attribute("aria-pressed") == "true"
        assert figure.get_by_role("button", name="log").get_attribute("aria-pressed") == "false"
        figure.get_by_role("button", name="log").click()
        assert layout(page, name, "yaxis.type") == "log"


@pytest.mark.slow
def test_a_choice_made_before_a_figure_is_drawn_holds(open_page, page_file):
    page = open_page(page_file)
    page.evaluate("document.querySelector(\"figure[id$='frozen'] button:last-child\").click()")
    draw_all(page)
    assert layout(page, "frozen", "yaxis.type") == "linear"


def test_hovering_shows_values_and_a_click_hides_a_curve(page):
    figure = page.locator("figure[id$='valley']")
    figure.scroll_into_view_if_needed()
    figure.locator(".trace .point").nth(2).hover(force=True)
    figure.locator(".hovertext").first.wait_for()
    assert "rate 0.001: 2.2" in figure.locator(".hovertext").first.text_content()
    curves = page.locator("figure[id$='curves']")
    curves.scroll_into_view_if_needed()
    legend = curves.locator(".legend .traces", has_text="SGD 0.1").first
    count = (
        "() => document.querySelector(\"figure[id$='curves'] .plot\")"
        "._fullData.filter(trace => trace.visible === true).length"
    )
    before = page.evaluate(count)
    legend.locator(".legendtoggle").click(force=True)
    page.wait_for_function(f"before => ({count})() < before", arg=before)
    after = page.evaluate(count)
    assert before - after == 2, "in both panels"
    legend.locator(".legendtoggle").click(force=True)
    page.wait_for_function(f"before => ({count})() === before", arg=before)


@pytest.mark.slow
def test_resizing_rearranges_the_panels(open_page, page_file):
    page = open_page(page_file)
    draw_all(page)
    assert layout(page, "curves", "xaxis2.domain")[0] > 0.4
    page.set_viewport_size(NARROW)
    page.wait_for_function("document.querySelector('.plot')._fullLayout.xaxis2.domain[0] === 0")
    page.set_viewport_size(WIDE)
    page.wait_for_function("document.querySelector('.plot')._fullLayout.xaxis2.domain[0] > 0.4")


@pytest.mark.slow
def test_printing_draws_everything_in_light_colours(open_page, page_file):
    page = open_page(page_file, scheme="dark")
    content = page.pdf(prefer_css_page_size=True)
    assert content.startswith(b"%PDF")
    assert len(content) > 50_000
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(
        "[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('.main-svg'))"
    )
    assert layout(page, "features", "font.color") == "#1f2328"
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.wait_for_function("document.querySelector('.plot')._fullLayout.font.color === '#e6e8eb'")


def test_what_was_left_out_can_be_read(page):
    page.locator("#left-out summary").click()
    assert "config.json is damaged" in page.locator("#left-out li").first.inner_text()


def test_hostile_names_run_nothing(open_page, tmp_path):
    hostile = "<img src=x onerror='window.hacked=1'><a href='javascript:window.hacked=1'>x</a><b>"
    root = tmp_path / "runs"
    layer = {"name": hostile, "rates": [0.1, 1], "start": [1, 1], "moved": [0.1, 1]}
    make_run(root, "alrao", task="digits", model=hostile, features=[layer])
    make_run(root, hostile, task="digits", model=hostile)
    make_run(root, "sgd@1", task="digits", model=hostile, finished=False)
    make_run(root, "sgd@1" + hostile, task="digits", model=hostile)
    write_report(read_runs([root]), tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    draw_all(page)
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert page.locator(".legend a").count() == 0
    assert "<img src=x" in page.locator("h2").first.inner_text()
    assert "<img src=x" in page.locator(".legend").first.text_content()


# The page to play with, docs/play.html.


@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_the_learning_rate_can_be_moved_over_the_valleys(open_page, viewport, scheme):
    page = open_page(ROOT / "docs" / "play.html", viewport, scheme)
    assert page.locator("[data-valley]").count() == 3
    rows = page.locator("#rows tr")
    tuned = {name: rows.filter(has_text=name).last for name in ("AdamW", "Muon", "SGD")}
    slider, seen = page.locator("#rate"), set()
    for place in range(int(slider.get_attribute("max")) + 1):
        slider.fill(str(place))
        rate = page.locator("#shown").inner_text()
        assert rate in tuned["AdamW"].inner_text()
        seen.add(tuned["AdamW"].inner_text())
    assert len(seen) == int(slider.get_attribute("max")) + 1, "each rate has its loss"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing overflows"


def test_workloads_and_seeds_can_be_chosen(open_page):
    page = open_page(ROOT / "docs" / "play.html")
    drawn = set()
    for workload in page.locator("#workload option").all():
        page.locator("#workload").select_option(workload.get_attribute("value"))
        assert page.locator("#seed").input_value() == "mean"
        drawn.add(page.locator("#plot svg").inner_html())
    assert len(drawn) == page.locator("#workload option").count() > 0
    page.locator("#seed").select_option("1")
    assert page.locator("#plot svg").inner_html() not in drawn
