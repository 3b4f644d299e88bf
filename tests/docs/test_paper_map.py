"""docs/paper-map.md names code that exists."""

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "paper-map.md"
PATHS = re.findall(r"\| `(notsodeep\.[\w.]+)` \|", PAGE.read_text())


def resolve(path):
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name)
        return found
    raise ImportError(path)


@pytest.mark.parametrize("path", sorted(set(PATHS)))
def test_code_of_each_result_exists_and_is_documented(path):
    assert resolve(path).__doc__


def test_the_map_is_not_empty():
    assert len(PATHS) >= 15
