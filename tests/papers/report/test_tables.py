"""The report in Markdown, read back by a parser of Markdown."""

import re

import pytest

from notsodeep.papers.report.write import code, escaped, write_results
from tests.papers.report.made_up import EXPERIMENTS, HOSTILE, Unit, record, whole_run

markdown_it = pytest.importorskip("markdown_it")


def rendered(text):
    """As GitHub does: with tables, and with HTML where the text has some."""
    return markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table").render(text)


@pytest.fixture
def readme_of(run_of):
    def make(records):
        store = run_of(records)
        write_results(store, store.folder)
        return (store.folder / "README.md").read_text("utf-8")

    return make


def test_tables_are_well_formed(readme_of):
    text = readme_of(whole_run())
    html = rendered(text)
    assert html.count("<table>") == 3
    claims = html.split("</table>")[0]
    assert claims.count("<th>") == 7
    rows = claims.split("<tr>")[2:]
    assert [row.count("<td>") for row in rows] == [7] * 6
    assert "<td>✓ reproduced</td>" in rows[0]
    assert "<code>notsodeep reproduce L1 --full</code>" in rows[0]
    assert "<td>200 … 3200 (5 values)</td>" in html


def test_both_papers_each_under_its_heading(readme_of):
    html = rendered(readme_of(whole_run("quick", EXPERIMENTS)))
    assert re.findall(r"<h[23]>(.*?)[:<]", html) == [
        "Claims",
        "Equivalence (Ling et al. 2024)",
        "L1",
        "L5",
        "Separation (Wu et al. 2024)",
        "W2",
    ]
    assert "<strong>Separation (Wu et al. 2024)</strong>, 3 claims: 1 reproduced" in html
    assert "<code>notsodeep separate W2 --quick</code>" in html


def test_figures_are_relative_and_there(readme_of, tmp_path):
    text = readme_of(whole_run())
    targets = re.findall(r"\]\(([^)]*)\)", text)
    assert targets[0] == "report.html"
    assert "figures/L1-gap-gmm.png" in targets
    assert all((tmp_path / "run" / target).is_file() for target in targets)


def test_hostile_words_are_only_words(readme_of):
    provenance = {"versions": {HOSTILE: HOSTILE}, "machine": HOSTILE, "time": HOSTILE}
    config = {"data": HOSTILE, HOSTILE: HOSTILE, "seed": HOSTILE}
    html = rendered(readme_of([record("L1", Unit("gmm", 200, 0), config=config, provenance=provenance)]))
    assert "<script" not in html
    assert html.count("<img") == 1
    targets = re.findall(r'(?:href|src)="([^"]*)"', html)
    assert [target.partition("/")[0] for target in targets] == ["report.html", "figures", "figures"]
    rows = [row.count("<td>") for row in html.split("</table>")[0].split("<tr>")[2:]]
    assert rows == [7] * 3
    assert html.count("<h1") == 1


@pytest.mark.parametrize(
    "text",
    [
        "‖G* − Ḡ‖ and ‖K* − K̄‖",
        "a|b",
        "__bold__ _it_ var_a",
        r"back\slash \| `tick`",
        "<b>&amp;",
        "# head",
        "- item",
        "1. one",
        "0.01",
        "$x$",
    ],
)
def test_escaped_text_reads_as_it_is(text):
    cell = rendered(f"| a |\n| --- |\n| {escaped(text)} |")
    assert _words(re.search(r"<td>(.*)</td>", cell)[1]) == text
    assert rendered(escaped(text)) == f"<p>{re.search(r'<td>(.*)</td>', cell)[1]}</p>\n"


@pytest.mark.parametrize("text", ["plain", "a | b", "`x", "a ``b`` c"])
def test_code_reads_as_it_is(text):
    cell = rendered(f"| a |\n| --- |\n| {code(text)} |")
    assert _words(re.search(r"<td><code>(.*)</code></td>", cell)[1]) == text


def test_addresses_do_not_become_links():
    assert "https://" not in escaped("https://evil.example")
    assert "www." not in escaped("www.evil.example")


def _words(html):
    for entity, letter in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        html = html.replace(entity, letter)
    return html
