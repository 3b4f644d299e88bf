"""The explorer in a real browser, as a visitor uses it. No test leaves a word in the browser's console."""

import threading

import numpy as np
import pytest

from tests.browser import browser, needs_browser, scheme, set_width  # noqa: F401 (a fixture)

pytest.importorskip("dash")
pytest.importorskip("dash_mantine_components")
pytest.importorskip("waitress")

from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException, TimeoutException
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from waitress.server import create_server

from notsodeep.app.explorer import Explorer
from notsodeep.app.server import _ASKED, make_app
from notsodeep.app.uploads import LIMITS
from tests.app.inline import Inline

pytestmark = needs_browser
SMALL = "?n=100&p=400"
PATIENCE = 60  # seconds
_WATCH = """window.seen = []; const took = document.getElementById("took");
new MutationObserver(() => seen.push(took.textContent)).observe(took, {childList: true, characterData: true, subtree: true});"""


class Visitor:
    """A browser on the explorer's page: what one does there, and what one sees."""

    def __init__(self, browser, address):  # noqa: F811
        self.browser, self.address = browser, address

    def open(self, query=SMALL, answered=True):
        self.browser.get(self.address + query)
        if answered:
            self.until(self.rows, "a table")
            self.until(lambda: all(map(self.drawn, ("spectra", "activations", "gaps", "map"))), "figures")
        return self

    def until(self, condition, what):
        """What `condition` gives as soon as it is true."""
        waiting = WebDriverWait(
            self.browser, PATIENCE, 0.03, ignored_exceptions=(StaleElementReferenceException, NoSuchElementException)
        )
        try:
            return waiting.until(lambda _: condition())
        except TimeoutException:
            pytest.fail(f"waited in vain for {what}; at {self.browser.current_url}, log {self.browser.get_log('browser')}")

    def one(self, selector):
        return self.browser.find_element("css selector", selector)

    def all(self, selector):
        return self.browser.find_elements("css selector", selector)

    def script(self, text, *arguments):
        return self.browser.execute_script(f"return {text}", *arguments)

    def text(self, name):
        return self.script("document.getElementById(arguments[0]).textContent", name)

    def shown(self, name):
        return self.one(f"#{name}").is_displayed()

    def value(self, name):
        return self.one(f"#{name}").get_property("value")

    def rows(self):
        """The table: scalar → the DEQ's."""
        cells = self.script("[...document.querySelectorAll('#table tbody tr')].map(r => [...r.cells].map(c => c.innerText))")
        return {row[0]: row[1] for row in cells}

    def drawn(self, name):
        """How many traces of a figure have been drawn."""
        return self.script("(document.querySelector(`#${arguments[0]} .js-plotly-plot`)?.data ?? []).length", name)

    def says(self, name, words):
        self.until(lambda: words in self.text(f"{name}-message"), f"{words!r} beside {name}: {self.text(f'{name}-message')!r}")

    def carries(self, words):
        self.until(lambda: words in self.browser.current_url, f"{words!r} in the address")

    def changed(self, before):
        self.until(lambda: self.rows() not in (before, {}), "another table")

    def press(self, name, *keys):
        thumb = self.one(f"#{name} [role=slider]")
        self.script("arguments[0].focus()", thumb)
        thumb.send_keys(*keys)

    def choose(self, name, label):
        """Of a list, as with a mouse."""
        self.one(f"#{name}").click()

        def option():
            return next((o for o in self.all("[role=option]") if o.is_displayed() and o.text == label), None)

        self.until(option, f"{label!r} in a list").click()
        self.until(lambda: self.value(name) == label, f"{label!r} in {name}")

    def type(self, name, text):
        field = self.one(f"#{name}")
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text)

    def upload(self, path):
        self.one("#upload input[type=file]").send_keys(str(path))


@pytest.fixture(scope="module")
def address():
    serving = create_server(make_app(Explorer(Inline())).server, host="127.0.0.1", port=0, threads=4)
    threading.Thread(target=serving.run, daemon=True).start()
    yield f"http://127.0.0.1:{serving.effective_port}/"
    serving.close()


@pytest.fixture
def visitor(browser, address):  # noqa: F811
    scheme(browser, "light")
    set_width(browser, 1280)
    browser.get(f"{address}_dash-layout")  # a page of the same place, with nothing on it that could complain
    browser.execute_script("localStorage.clear()")
    browser.get_log("browser")
    yield Visitor(browser, address)
    assert browser.get_log("browser") == []


def test_it_opens(visitor):
    visitor.open("")
    assert visitor.browser.title == "notsodeep"
    assert set(visitor.rows()) >= {"γ", "α1", "α2", "α3", "τ0", "τ*"}
    assert "relu DEQ on two-class Gaussian mixture" in visitor.text("summary")
    assert [visitor.drawn(name) for name in ("spectra", "activations", "gaps", "map")] == [3, 3, 2, 3]
    assert not visitor.shown("trouble")
    assert visitor.browser.current_url == visitor.address
    loaded = visitor.script("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert len(loaded) > 5
    assert all(name.startswith((visitor.address, "data:", "blob:")) for name in loaded)


def test_a_slider_by_its_keys(visitor):
    before = visitor.open().rows()
    visitor.browser.execute_script(_WATCH)
    visitor.press("var_a", Keys.ARROW_RIGHT)
    visitor.carries("var_a=0.21")
    visitor.changed(before)
    visitor.until(lambda: visitor.text("var_a-value") == "0.21", "the slider's number")
    assert visitor.text("var_b-value") == "0.79"
    visitor.press("var_a", Keys.ARROW_LEFT)
    visitor.until(lambda: visitor.rows() == before, "the first table")
    visitor.until(lambda: visitor.text("took").startswith("computed"), "the whole answer")
    assert "while the slider moves" not in visitor.text("summary")
    rough = [text.startswith("roughly computed in") for text in visitor.script("window.seen")]
    assert any(rough)
    assert not rough[-1]
    assert "var_a" not in visitor.browser.current_url


def test_what_is_asked_for_is_the_present_state(visitor):
    """A rest, the end of an answer and a new choice may come in one call: the choice counts, whatever came first."""
    visitor.open()
    visitor.browser.execute_script(f"window.next = {_ASKED.replace('REST', '1e6')}; window.asked = ''")

    def asks(query, moving, asking=False, rested=None):
        state = {"query": query, "moving": moving}
        asked = "next(state, asking, rested && JSON.stringify(rested))"
        or_nothing = f"(found => found === dash_clientside.no_update ? null : found)({asked})"
        found = visitor.script(f"((state, asking, rested) => {or_nothing})(...arguments)", state, asking, rested)
        return found and (found["query"], found["moving"], found["turn"])

    first = asks("?a", moving=True)
    assert first[:2] == ("?a", True)
    assert asks("?b", moving=True, asking=True) is None
    assert asks("?c", moving=False, rested={"query": "?b", "moving": True}) == ("?c", False, first[2] + 1)
    assert asks("?c", moving=False) is None
    assert asks("?d", moving=True, asking=True, rested={"query": "?d", "moving": True}) == ("?d", False, first[2] + 2)


def test_another_family_activation_and_kernel(visitor):
    before = visitor.open().rows()
    visitor.choose("family", "hard_tanh")
    visitor.says("family", "No hard_tanh network has this kernel")
    visitor.carries("family=hard_tanh")
    assert "Designed: hard_tanh" in visitor.text("summary")
    visitor.choose("family", "matched")
    visitor.until(lambda: visitor.text("family-message") == "", "no note any more")
    visitor.choose("activation", "tanh")
    visitor.carries("activation=tanh")
    visitor.until(lambda: visitor.text("summary").startswith("tanh DEQ"), "tanh")
    assert visitor.rows() != before
    visitor.one("#kernel label[for$=tangent]").click()
    visitor.carries("kernel=tangent")
    visitor.until(lambda: "β1" in visitor.rows(), "the tangent kernel's scalars")


def test_expressions_good_and_hostile(visitor):
    visitor.open(SMALL + "&var_a=0.1")
    assert not visitor.shown("expression")
    visitor.choose("activation", "an expression in x …")
    visitor.says("activation", "type an expression")
    visitor.type("expression", "tanh(2*x)")
    visitor.until(lambda: visitor.text("summary").startswith("tanh(2*x) DEQ"), "the expression")
    assert visitor.text("activation-message") == ""
    before = visitor.rows()
    hostile = {"__import__('os')": "expression", "<img src=x onerror=alert(1)>": "cannot be read"}
    for text, words in hostile.items():
        visitor.type("expression", text)
        visitor.says("activation", words)
        assert visitor.shown("trouble")
        assert visitor.rows() == before
    assert visitor.all("img[src=x]") == []
    visitor.type("expression", "sin(x)")
    visitor.until(lambda: visitor.text("summary").startswith("sin(x) DEQ"), "the next expression")
    visitor.until(lambda: not visitor.shown("trouble"), "no trouble any more")
    assert visitor.text("activation-message") == ""


def test_files_good_and_bad(visitor, tmp_path):
    good, empty, huge, hostile, other = (tmp_path / n for n in ("good.csv", "empty.csv", "huge.csv", "hostile.npy", "a.txt"))
    np.savetxt(good, np.random.default_rng(0).standard_normal((120, 7)), delimiter=",")
    empty.touch()
    with huge.open("wb") as stream:
        stream.truncate(LIMITS.bytes + 1)
    np.save(hostile, np.array([{"a": 1}, print] * 4, dtype=object), allow_pickle=True)
    other.write_text("1,2\n")
    before = visitor.open().rows()
    visitor.choose("data", "your file")
    visitor.says("upload", "Choose a .csv or .npy file.")
    bad = {empty: "is empty", huge: "at most", hostile: "not real numbers", other: "neither"}
    for path, words in bad.items():
        visitor.upload(path)
        visitor.says("upload", words)
        assert path.name in visitor.text("upload-message")
        assert visitor.rows() == before
    visitor.upload(good)
    visitor.until(lambda: "good.csv" in visitor.text("summary"), "the file's study")
    assert "good.csv, 120 samples × 7 features" in visitor.text("upload-read")
    visitor.carries("upload=")
    after = visitor.rows()
    assert float(after["τ0"]) == pytest.approx(1.0, abs=1e-6)
    visitor.upload(empty)
    visitor.says("upload", "is empty")
    assert visitor.rows() == after
    visitor.upload(good)
    visitor.until(lambda: visitor.text("upload-message") == "", "the message to go")
    assert "Read: good.csv" in visitor.text("upload-read")


def test_a_link_restores_everything(visitor):
    query = "?activation=x%2Atanh%28x%29&var_a=0.1&var_b=0.5&separation=4.0&n=150&p=450&family=hermite&kernel=tangent"
    visitor.open(query)
    assert visitor.value("expression") == "x*tanh(x)"
    assert visitor.shown("expression")
    assert visitor.value("family") == "hermite"
    assert not visitor.one("#linked").is_selected()
    numbers = {name: visitor.text(f"{name}-value") for name in ("var_a", "var_b", "separation", "n", "p")}
    assert numbers == {"var_a": "0.1", "var_b": "0.5", "separation": "4", "n": "150", "p": "450"}
    thumbs = {name: visitor.one(f"#{name} [role=slider]").get_attribute("aria-valuenow") for name in numbers}
    assert {name: float(value) for name, value in thumbs.items()} == {k: float(v) for k, v in numbers.items()}
    assert visitor.one("#kernel input:checked").get_attribute("value") == "tangent"
    assert "β1" in visitor.rows()
    assert "150 samples × 450 features" in visitor.text("summary")
    assert visitor.browser.current_url.endswith(query)


def test_a_link_that_is_wrong_in_parts(visitor):
    visitor.open("?activation=tanh&n=1e999&p=50&kernel=%3Cb%3E&var_a=7&data=digits")
    visitor.says("var_a", "between 0.01 and 1.5")
    visitor.says("n", "n = 1e999")
    assert "<b>" in visitor.text("link-message")
    assert "tanh DEQ on digits" in visitor.text("summary")


def test_light_and_dark(visitor):
    visitor.open()

    def ground():
        return visitor.script("getComputedStyle(document.body).backgroundColor")

    light = ground()
    assert light == "rgb(255, 255, 255)"
    scheme(visitor.browser, "dark")
    visitor.until(lambda: ground() != light, "dark, as the system is")
    dark = ground()
    visitor.one("#scheme").click()
    visitor.until(lambda: ground() == light, "light, by the button")
    visitor.one("#scheme").click()
    visitor.until(lambda: ground() == dark, "dark, by the button")
    scheme(visitor.browser, "light")
    visitor.open()
    assert ground() == dark


def test_a_narrow_screen(visitor):
    pixels = 400
    set_width(visitor.browser, pixels)
    before = visitor.open().rows()
    assert visitor.script("innerWidth") == pixels
    assert visitor.script("document.documentElement.scrollWidth") <= pixels
    for name in ("activation", "var_a", "data", "family", "kernel", "spectra", "map", "get-png"):
        box = visitor.script("document.getElementById(arguments[0]).getBoundingClientRect().toJSON()", name)
        assert box["left"] >= 0, name
        assert box["right"] <= pixels, name
        assert box["width"] > 60, name
    visitor.press("var_a", Keys.ARROW_RIGHT)
    visitor.changed(before)
    visitor.choose("activation", "erf")
    visitor.until(lambda: visitor.text("summary").startswith("erf DEQ"), "erf")
    assert visitor.script("document.documentElement.scrollWidth") <= pixels


def test_what_to_take_home(visitor, tmp_path):
    visitor.browser.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path), "eventsEnabled": False}
    )
    visitor.open()
    starts = {"get-source": ("network.py", b"# A feed-forward network"), "get-png": ("notsodeep.png", b"\x89PNG")}
    for button, (name, start) in starts.items():
        visitor.one(f"#{button}").click()
        visitor.until(lambda name=name: (tmp_path / name).exists() and (tmp_path / name).stat().st_size, name)
        assert (tmp_path / name).read_bytes().startswith(start)
    assert visitor.text("download-message") == ""
    assert "nsd.Implicit('relu', 0.2)" in visitor.text("python")
    visitor.browser.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    copy = visitor.one("#python button")
    assert "copy" in copy.get_attribute("aria-label")
    copy.click()
    visitor.until(lambda: visitor.script("navigator.clipboard.readText()").startswith("import torch"), "a full clipboard")


def test_back_and_forth(visitor):
    before = visitor.open().rows()
    visitor.choose("activation", "tanh")
    visitor.until(lambda: visitor.text("summary").startswith("tanh DEQ"), "tanh")
    after = visitor.rows()
    visitor.browser.back()
    visitor.until(lambda: visitor.rows() == before, "the first table")
    assert visitor.value("activation") == "relu"
    assert "activation" not in visitor.browser.current_url
    visitor.browser.forward()
    visitor.until(lambda: visitor.rows() == after, "the second table")
    assert visitor.value("activation") == "tanh"


def test_no_equilibrium_is_told_beside_its_field(visitor):
    before = visitor.open(SMALL + "&activation=linear&var_a=0.99&var_b=0.5").rows()
    visitor.press("var_a", Keys.ARROW_RIGHT)
    visitor.says("var_a", "This DEQ has no equilibrium")
    assert visitor.shown("trouble")
    assert visitor.rows() == before
    visitor.press("var_a", Keys.ARROW_LEFT)
    visitor.until(lambda: not visitor.shown("trouble"), "no trouble any more")
    assert visitor.rows() == before
