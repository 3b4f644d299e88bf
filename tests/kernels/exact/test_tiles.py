"""Kernels tile by tile: the same entries, each once, wherever they are written."""

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.errors import BadInput

NET = nsd.Implicit("tanh", 0.2)


def _x(n, p=6, seed=0):
    return torch.randn(n, p, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / p**0.5


@pytest.mark.parametrize("tile", [None, 1, 5, 23, 100, (4, 4)])
def test_tiles_cover_a_square_once(tile):
    x = _x(23)
    whole, seen = nsd.exact_kernels(NET, x), torch.zeros(23, 23)
    for part in nsd.kernels.kernel_tiles(NET, x, tile=tile):
        seen[part.rows, part.columns] += 1
        assert torch.allclose(part.conjugate, whole.conjugate[part.rows, part.columns], rtol=1e-13, atol=0)
        assert torch.allclose(part.tangent, whole.tangent[part.rows, part.columns], rtol=1e-13, atol=0)
        assert part.preactivation is None
    assert bool((seen == 1).all())


@pytest.mark.parametrize("tile", [None, 4, (3, 16), (23, 2)])
def test_tiles_cover_a_rectangle_once(tile):
    x, x2 = _x(23).numpy(), _x(16, seed=1).numpy()
    whole, seen = nsd.tangent_kernel(NET, x, x2, readout="preactivation"), np.zeros((23, 16))
    for part in nsd.kernels.kernel_tiles(NET, x, x2, tile, kernel=("preactivation",)):
        assert isinstance(part.preactivation, np.ndarray)
        seen[part.rows, part.columns] += 1
        np.testing.assert_allclose(part.preactivation, whole[part.rows, part.columns], rtol=1e-13)
    assert (seen == 1).all()


def test_whole_rows_are_tiles_too():
    x = _x(23)
    parts = list(nsd.kernels.kernel_tiles(NET, x, x, (10, 23), kernel=("conjugate",)))
    assert [part.conjugate.shape for part in parts] == [(10, 23), (10, 23), (3, 23)]
    assert torch.allclose(torch.cat([part.conjugate for part in parts]), nsd.conjugate_kernel(NET, x), rtol=1e-9)


@pytest.mark.parametrize("tile", [0, -3, (2, 3), (1, 2, 3), 2.5, True, "5", (2, True)])
def test_a_tile_that_is_none_is_refused(tile):
    with pytest.raises(BadInput, match="tile"):
        list(nsd.kernels.kernel_tiles(NET, _x(5), tile=tile))


@pytest.mark.parametrize("kernels", [("gram",), "gram", None, (), 3, [None]])
def test_an_unknown_kernel_is_refused(kernels):
    with pytest.raises(BadInput, match="conjugate, tangent, preactivation"):
        list(nsd.kernels.kernel_tiles(NET, _x(5), kernel=kernels))


def test_one_name_and_a_whole_number_of_numpy():
    (part,) = nsd.kernels.kernel_tiles(NET, _x(5), tile=np.int64(5), kernel="conjugate")
    assert part.tangent is None
    assert torch.equal(part.conjugate, nsd.conjugate_kernel(NET, _x(5)))


def test_out_is_written_and_returned(tmp_path):
    x, x2 = _x(23), _x(16, seed=1)
    wanted = nsd.exact_kernels(NET, x)
    tensors = torch.empty(2, 23, 23, dtype=torch.float64)
    found = nsd.exact_kernels(NET, x, out=(tensors[0], tensors[1]))
    assert found.conjugate is not None
    assert torch.equal(tensors[0], wanted.conjugate)
    assert torch.equal(tensors[1], wanted.tangent)
    mapped = np.lib.format.open_memmap(tmp_path / "k.npy", mode="w+", dtype=np.float64, shape=(23, 16))
    assert nsd.conjugate_kernel(NET, x, x2, out=mapped) is mapped
    mapped.flush()
    np.testing.assert_array_equal(np.load(tmp_path / "k.npy"), nsd.conjugate_kernel(NET, x, x2).numpy())


def test_an_out_of_another_shape_is_refused():
    with pytest.raises(BadInput, match=r"shape \(3, 4\); the kernel is 5 × 5"):
        nsd.conjugate_kernel(NET, _x(5), out=torch.empty(3, 4))
    with pytest.raises(BadInput, match="expected two"):
        nsd.exact_kernels(NET, _x(5), out=[torch.empty(5, 5)])
