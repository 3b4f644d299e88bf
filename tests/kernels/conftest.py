"""Fixtures of the tests of kernels."""

import pytest
import torch
from torch import Tensor

from notsodeep.kernels.exact.compiled import engine as engines
from notsodeep.kernels.exact.pairs import ExplicitPairs, ImplicitPairs


@pytest.fixture
def worth_it_for_any_size(monkeypatch):
    """A kernel of a few samples is fused too."""
    monkeypatch.setattr(engines, "_WORTH_COMPILING", 0)


@pytest.fixture
def listed(monkeypatch) -> list[Tensor]:
    """The pairs that an equation is asked for one by one."""
    seen = []

    def spied(pairs):
        def spy(self, left, right, gram):
            seen.append(torch.stack([left, right], 1))
            return pairs(self, left, right, gram)

        return spy

    for kind in (ImplicitPairs, ExplicitPairs):
        monkeypatch.setattr(kind, "pairs", spied(kind.pairs))
    return seen


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
