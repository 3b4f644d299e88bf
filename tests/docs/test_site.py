"""The documentation as a site: it builds without a warning, no link is dead, and the API names everything once."""

import os
import re
import subprocess
import sys
from collections import Counter

import pytest

import notsodeep as nsd

from .links import Page, broken
from .pages import ROOT, resolve

API = re.findall(r"^::: (notsodeep[\w.]+)$", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE)


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """(folder, log) of the built site."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert ran.returncode == 0, ran.stderr
    return folder, ran.stdout + ran.stderr


def test_the_site_is_built_without_a_warning_and_no_link_is_dead(build):
    # One test, so that two workers do not build it twice.
    folder, log = build
    assert not re.findall(r"^(?:WARNING|ERROR).*", log, flags=re.MULTILINE)
    assert broken(folder) == []
    ids = Counter(Page(folder / "api.html").anchors)
    assert {path: ids[path] for path in API} == dict.fromkeys(API, 1)
    assert "fonts.g" not in (folder / "index.html").read_text()  # nothing is fetched from elsewhere


def test_dead_links_are_found(tmp_path):
    """The checker itself, on a page with one good link and one bad one of each kind."""
    (tmp_path / "other.html").write_text('<h1 id="here">x</h1>')
    good = ["other.html", "other.html#here", "#top", "https://example.org/a", "other.html?x=1#here"]
    bad = ["missing.html", "other.html#there", "#nowhere", "http://example.org/a", "https://nohost", "missing.png"]
    (tmp_path / "index.html").write_text('<p id="top"></p>' + "".join(f'<a href="{link}">x</a>' for link in good + bad))
    assert broken(tmp_path) == [f"index.html → {link}" for link in bad]


def test_every_public_name_is_in_the_api_once():
    count = Counter(id(resolve(path)) for path in API)
    assert {name: count[id(getattr(nsd, name))] for name in nsd.__all__} == dict.fromkeys(nsd.__all__, 1)
    points = nsd.fixed_points
    assert {name: count[id(getattr(points, name))] for name in points.__all__} == dict.fromkeys(points.__all__, 1)
    assert max(Counter(API).values()) == 1


def test_every_group_of_the_api_has_an_introduction():
    groups = re.split(r"^## ", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE)[1:]
    assert [group.splitlines()[0] for group in groups] == [
        "Architecture", "Scalars", "Kernels", "Design", "Networks", "Solvers", "Estimators", "Data", "Errors",
    ]  # fmt: skip
    assert all(group.splitlines()[2].endswith(".") for group in groups)
