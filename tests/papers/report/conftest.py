"""Runs on disk, reported with the made-up experiments."""

import pytest

from notsodeep.papers.records import Store
from notsodeep.papers.report import content
from tests.cli.conftest import notsodeep  # noqa: F401 (a fixture)
from tests.papers.report import made_up


@pytest.fixture(autouse=True)
def _experiments(monkeypatch):
    monkeypatch.setattr(content, "EXPERIMENTS", made_up.EXPERIMENTS)
    monkeypatch.setattr(content, "drawings", made_up.drawings)


@pytest.fixture
def run_of(tmp_path):
    """A folder that holds the given records."""

    def make(records):
        store = Store(tmp_path / "run")
        for record in records:
            store.add(record)
        return store

    return make
