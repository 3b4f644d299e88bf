"""The page in a real browser."""

import base64
import json
from itertools import pairwise

import pytest

from notsodeep.papers.report.write import write_results
from tests.browser import browser, needs_browser, scheme, set_width  # noqa: F401 (a fixture)
from tests.papers.report.made_up import EXPERIMENTS, record, units, whole_run

pytestmark = needs_browser


@pytest.fixture
def page(browser, run_of):  # noqa: F811
    """The browser, with the report of a made-up run open, in light and wide."""
    kinds = [
        record("L5", unit, config={"kind": f"kind {unit.seed}", "data": "fashion-mnist", "n": unit.n, "seed": 7})
        for unit in units((9, 10))
    ]
    store = run_of([*whole_run("full", EXPERIMENTS), *kinds])
    scheme(browser, "light")
    set_width(browser, 1280)
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(write_results(store, store.folder).page.as_uri())
    return browser


def test_shows_everything_and_complains_of_nothing(page):
    assert page.title == "Implicit against explicit networks: the papers’ claims, computed anew"
    assert len(page.find_elements("css selector", ".claims tr.claim")) == 9
    widths = page.execute_script("return [...document.images].map(image => image.complete && image.naturalWidth)")
    assert len(widths) == 3
    assert all(width > 100 for width in widths)
    assert page.get_log("browser") == []


def test_asks_nobody_for_anything(page):
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert page.current_url in asked
    assert {address.partition(":")[0] for address in asked} <= {"file", "data"}
    assert [address for address in asked if address.startswith("file:")] == [page.current_url]
    entries = page.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert all(name.startswith("data:") for name in entries)


@pytest.mark.parametrize("width", [320, 380, 700, 1280])
def test_never_wider_than_the_screen(page, width):
    set_width(page, width)
    assert page.execute_script("return innerWidth") == width
    assert page.execute_script("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_headings_go_one_level_at_a_time(page):
    levels = page.execute_script("return [...document.querySelectorAll('h1,h2,h3,h4')].map(each => +each.tagName[1])")
    assert levels[0] == 1
    assert set(levels) == {1, 2, 3, 4}
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_claims_stack_where_it_is_narrow(page):
    display = "return getComputedStyle(document.querySelector('tr.claim td')).display"
    assert page.execute_script(display) == "table-cell"
    set_width(page, 380)
    assert page.execute_script(display) == "block"


def test_dark_and_light(page):
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = page.execute_script(ground)
    scheme(page, "dark")
    assert light == "rgb(255, 255, 255)"
    assert page.execute_script(ground) != light
    plate = "return getComputedStyle(document.querySelector('.plate')).backgroundColor"
    assert page.execute_script(plate) == light


def test_prints(page):
    scheme(page, "dark")
    pdf = base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"])
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 20_000
    assert pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") >= 2
