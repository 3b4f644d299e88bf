"""The documentation as a site: it builds without a warning, no link is dead, and the API names everything once."""

import inspect
import os
import pkgutil
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


LISTED = ["advice", "data", "estimators", "fixed_points", "kernels", "matching", "models", "separation", "theory", "training"]


@pytest.mark.parametrize("space", ["", *LISTED])
def test_every_public_name_is_in_the_api_once(space):
    count = Counter(id(resolve(path)) for path in API)
    namespace = getattr(nsd, space) if space else nsd
    assert set(namespace.__all__) <= set(dir(namespace))
    public = {name: getattr(namespace, name) for name in namespace.__all__}
    documented = {name: count[id(value)] for name, value in public.items() if callable(value)}
    assert documented == dict.fromkeys(documented, 1)
    assert max(Counter(API).values()) == 1


def test_no_name_hides_a_package():
    """`nsd.x` is the package x wherever there is one, and there are about forty names beside the packages."""
    modules = {name for name in nsd.__all__ if inspect.ismodule(getattr(nsd, name))}
    packages = {found.name for found in pkgutil.iter_modules(nsd.__path__) if found.ispkg}
    assert packages & set(nsd.__all__) <= modules
    assert 30 <= len(nsd.__all__) - len(modules) <= 45


def test_every_group_of_the_api_has_an_introduction():
    groups = re.split(r"^## ", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE)[1:]
    assert [group.splitlines()[0] for group in groups] == [
        "Design", "Kernels", "Networks", "Training", "Theory", "Fixed points", "Estimators", "Data", "Separation", "Errors",
    ]  # fmt: skip
    assert all(group.splitlines()[2].endswith(".") for group in groups)
