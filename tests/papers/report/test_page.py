"""The page: it needs nothing else, and nothing of a record acts on it."""

import re

import pytest

from notsodeep.papers.report import write as page
from notsodeep.papers.report.content import Picture
from notsodeep.papers.report.write import write_results
from tests.papers.report.made_up import EXPERIMENTS, HOSTILE, Unit, record, whole_run
from tests.papers.report.markup import Markup


@pytest.fixture
def markup_of(run_of):
    def make(records):
        store = run_of(records)
        return Markup(write_results(store, store.folder).page.read_text("utf-8"))

    return make


def test_is_well_formed_and_complete(markup_of):
    markup = markup_of(whole_run())
    assert markup.errors == []
    assert markup.all("html")[0]["lang"] == "en"
    assert len(markup.all("tr", **{"class": "claim"})) == 6
    assert len(markup.all("h1")) == 1
    assert all(th.get("scope") in ("col", "row", "rowgroup") for th in markup.all("th"))
    for words in (
        "6 claims: 2 reproduced, 2 sharper, 2 not reproduced.",
        "200 … 3200 (5 values)",
        "notsodeep reproduce L1 --full",
        "2025-05-01 10:00 to 2025-05-02 10:00 UTC",
        "x86_64, 2 cores (5 min); NVIDIA H200 (5 min)",
        "python 3.11.2, torch 2.6.0",
        "10 computations, 2 seeds",
        "The data are gmm: 10 of them.",
    ):
        assert words in markup.text


def test_links_lead_to_headings_of_the_page_itself(markup_of):
    markup = markup_of(whole_run())
    ids = [found["id"] for _, found in markup.tags if "id" in found]
    assert len(ids) == len(set(ids))
    targets = {a["href"] for a in markup.all("a")}
    assert {"#claims", "#l1", "#l5"} <= targets <= {f"#{each}" for each in ids}


def test_needs_no_other_file(run_of):
    store = run_of(whole_run())
    text = write_results(store, store.folder).page.read_text("utf-8")
    markup = Markup(text)
    sources = [found[name] for _, found in markup.tags for name in ("src", "srcset", "data", "poster") if name in found]
    assert len(sources) == 2
    assert all(source.startswith("data:image/") for source in sources)
    assert not {tag for tag, _ in markup.tags} & {"script", "link", "iframe", "object", "embed", "base", "form"}
    assert not re.search(r"url\(|@import|https?://|//[a-z]", re.sub(r"base64,[\w+/=]+", "", text))
    assert len(text.encode()) < 5_000_000


@pytest.mark.parametrize(
    ("lines", "dots", "share", "kind"),
    [(50, 90, 10, "svg+xml"), (90, 50, 10, "png"), (90, 50, 100, "svg+xml")],  # lines where they are shorter, or fit
)
def test_large_figures_are_embedded_as_dots(tmp_path, lines, dots, share, kind):
    svg, png = tmp_path / "a.svg", tmp_path / "a.png"
    svg.write_bytes(b"s" * lines)
    png.write_bytes(b"p" * dots)
    picture = Picture(1, "a", "", png, svg, (10, 10))
    assert page._source(picture, share).startswith(f"data:image/{kind};base64,")


def test_places_are_shortened_and_nothing_else():
    svg = b'<path d="M 1.23456 -7.891 L 3 4.5" style="opacity: 0.12345"/><use x="10.98765" y="2"/>'
    assert page._shortened(svg) == b'<path d="M 1.23 -7.89 L 3 4.5" style="opacity: 0.12345"/><use x="10.98" y="2"/>'


def test_hostile_words_are_only_words(markup_of):
    provenance = {"versions": {HOSTILE: HOSTILE}, "machine": HOSTILE, "time": HOSTILE}
    config = {"data": HOSTILE, HOSTILE: [HOSTILE, {"a": HOSTILE}], "seed": HOSTILE, "kind": HOSTILE}
    markup = markup_of([record("L1", Unit("gmm", 200, 0), config=config, provenance=provenance)])
    assert markup.errors == []
    assert not markup.all("script")
    assert len(markup.all("img")) == 1
    assert all(img["src"].startswith("data:") for img in markup.all("img"))
    assert {a["href"][0] for a in markup.all("a")} == {"#"}
    assert not [name for _, found in markup.tags for name in found if name.startswith("on")]
    assert markup.text.count("<script>alert(1)</script>") > 5
    assert not re.search("[\x1b\u202e]", markup.text)


def test_a_figure_never_leaves_its_folder(run_of):
    store = run_of([record("L1", Unit("../../../away/", 200, 0))])
    results = write_results(store, store.folder)
    assert {path.parent for path in results.figures} == {store.folder / "figures"}
    assert sorted((store.folder / "figures").iterdir()) == sorted(results.figures)


@pytest.mark.parametrize(
    "changes",
    [
        {"provenance": {}},
        {"provenance": {"versions": "2.6", "machine": None, "time": 5}},
        {"seconds": "long"},
        {"seconds": -1.0},
        {"config": {"data": "gmm"}},
        {"config": {"data": "gmm", "n": None, "flag": True, "sizes": [1, 2], "seed": [1]}},
    ],
)
def test_records_that_say_less(markup_of, changes):
    markup = markup_of([record("L1", Unit("gmm", 200, 0), **changes)])
    assert markup.errors == []
    assert "1 computation" in markup.text


def test_a_column_for_each_kind(markup_of):
    kinds = [
        record("L5", Unit("gmm", n, 0), config={"kind": kind, "data": "mnist", "seed": 0, **more})
        for n, (kind, more) in enumerate([("width", {"width": 32}), ("infinite", {"samples": 9})], start=1)
    ]
    markup = markup_of(kinds)
    assert "Setting Width Infinite data mnist mnist width 32 – samples – 9" in markup.text


def test_says_what_the_command_does_not_make(markup_of):
    run = [record("L1", unit) for unit in (Unit("gmm", 200, 0), Unit("gmm", 200, 1), Unit("gmm", 77, 0))]
    text = markup_of(run).text
    assert "Not all of it was run: 2 of the 4 computations of the command below." in text
    assert "1 computation is not of the command below: with other settings, or on a device that is not here." in text
    assert "notsodeep reproduce L1 --quick" in text


def test_text_stands_out_from_its_ground(markup_of):
    """WCAG AA, in light and in dark."""
    markup = markup_of(whole_run("quick"))
    schemes = re.findall(r":root \{(.*?)\}", " ".join(markup.words), re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = {name: _luminance(value) for name, value in re.findall(r"--([\w-]+): #(\w+);", scheme)}
        assert len(colours) == 9
        for name in ("text", "quiet", "link", "reproduced", "sharper", "not-reproduced"):
            for ground in ("ground", "panel"):
                low, high = sorted((colours[name], colours[ground]))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (name, ground)


def _luminance(colour):
    digits = colour if len(colour) == 6 else "".join(2 * digit for digit in colour)
    parts = [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _headings(markup):
    return [found["id"] for tag, found in markup.tags if tag in ("h2", "h3") and "id" in found]


def test_the_order_is_the_registry_s(markup_of):
    markup = markup_of(list(reversed(whole_run("quick"))))
    assert _headings(markup) == ["contents", "claims", "equivalence", "l1", "l5"]


def test_both_papers_each_under_its_heading(markup_of):
    markup = markup_of(whole_run("quick", EXPERIMENTS))
    claims = ["claims", "equivalence-claims", "separation-claims"]
    assert _headings(markup) == ["contents", *claims, "equivalence", "l1", "l5", "separation", "w2"]
    assert len(markup.all("table", **{"class": "claims"})) == 2
    for words in (
        "the papers’ claims, computed anew",
        "wide deep equilibrium model (DEQ) has",
        "where a DEQ is worth",
        "9 claims: 3 reproduced, 3 sharper, 3 not reproduced.",
        "Separation (Wu et al. 2024) 3 claims: 1 reproduced, 1 sharper, 1 not reproduced.",
        "notsodeep reproduce L5 --quick",
        "notsodeep separate W2 --quick",
        "Figure 3. The gap of gmm; it falls.",
    ):
        assert words in markup.text


@pytest.mark.parametrize(("name", "paper", "other"), [("L1", "Ling", "Wu"), ("W2", "Wu", "Ling")])
def test_one_paper_alone(markup_of, name, paper, other):
    text = markup_of(whole_run("quick", [name])).text
    assert f"computed anew {paper} et al. (" in text
    assert "the paper’s claims" in text
    assert "deep equilibrium model (DEQ)" in text
    assert other not in text
