"""What works with a fixed point, in docs/fixed-points.md: each line names tests that exist, and no test is left out."""

import re

from .pages import ROOT

SECTION = (ROOT / "docs" / "fixed-points.md").read_text().partition("## What works with it")[2]
ROWS = [row.split(" | ") for row in re.findall(r"^\| (.*) \|$", SECTION, flags=re.MULTILINE)]
LINES = [row for row in ROWS if row[0] != "what"]


def defined_in(*patterns):
    files = (path for pattern in patterns for path in (ROOT / "tests").glob(pattern))
    return {name for path in files for name in re.findall(r"^def (test_\w+)", path.read_text(), flags=re.MULTILINE)}


def named(row):
    return re.findall(r"`(test_\w+)`", row[-1])


def test_each_line_names_tests_that_exist():
    there = defined_in("fixed_points/test_*.py", "clients/test_*.py")
    assert len(LINES) > 30
    assert [row[0] for row in LINES if not named(row)] == []
    assert {name for row in LINES for name in named(row)} - there == set()


def test_every_test_of_the_ecosystem_is_named():
    assert defined_in("fixed_points/test_ecosystem*.py") - {name for row in LINES for name in named(row)} == set()
