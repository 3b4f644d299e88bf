"""The devices that the tests of the ecosystem run on."""

import pytest
import torch

_CUDA = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=_CUDA)])
def device(request):
    return request.param
