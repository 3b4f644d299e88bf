"""docs/paper-map.md names code that exists."""

import re

import pytest

from .pages import ROOT, resolve

PAGE = ROOT / "docs" / "paper-map.md"
PATHS = re.findall(r"\| `(notsodeep\.[\w.]+)` \|", PAGE.read_text())


@pytest.mark.parametrize("path", sorted(set(PATHS)))
def test_code_of_each_result_exists_and_is_documented(path):
    assert resolve(path).__doc__


def test_the_map_is_not_empty():
    assert len(PATHS) >= 15
