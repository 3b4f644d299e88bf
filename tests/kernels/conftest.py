"""Fixtures of the tests of kernels."""

import pytest
import torch

from notsodeep.kernels.fused import engine as engines


@pytest.fixture
def worth_it_for_any_size(monkeypatch):
    """A kernel of a few samples is fused too."""
    monkeypatch.setattr(engines, "_WORTH_COMPILING", 0)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
