"""What a kernel may be written to, and what would silently be wrong."""

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.errors import BadInput

RELU = nsd.Implicit("relu", 0.2)
N = 20


def _x(n=N, p=6, seed=0):
    return torch.randn(n, p, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / p**0.5


def _square(dtype=torch.float64):
    return torch.zeros(N, N, dtype=dtype)


@pytest.mark.parametrize("dtype", ["int64", "bool", "float16", "U3", "object", "complex128"])
def test_a_dtype_that_does_not_hold_the_entries_is_refused(dtype):
    with pytest.raises(BadInput, match="float32 or float64"):
        nsd.conjugate_kernel(RELU, _x(), out=np.zeros((N, N), dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.float16, torch.bfloat16, torch.complex64])
def test_the_same_of_tensors(dtype):
    with pytest.raises(BadInput, match="float32 or float64"):
        nsd.tangent_kernel(RELU, _x(), out=_square(dtype))


def test_zarr_arrays(tmp_path):
    zarr = pytest.importorskip("zarr")
    with pytest.raises(BadInput, match="dtype int32"):
        nsd.conjugate_kernel(RELU, _x(), out=zarr.zeros((N, N), dtype="i4"))
    array = zarr.create_array(tmp_path / "k", shape=(N, N), chunks=(8, 8), dtype="float32")
    nsd.conjugate_kernel(RELU, _x(), out=array)
    np.testing.assert_allclose(array[:], nsd.conjugate_kernel(RELU, _x()), rtol=1e-6, atol=1e-8)
    with pytest.raises(BadInput, match="read-only"):
        nsd.conjugate_kernel(RELU, _x(), out=zarr.open_array(tmp_path / "k", mode="r"))
    with pytest.raises(BadInput, match="share memory"):
        nsd.exact_kernels(RELU, _x(), out=(array, zarr.open_array(tmp_path / "k", mode="r+")))
    both = nsd.exact_kernels(RELU, _x(), out=(zarr.zeros((N, N)), zarr.zeros((N, N))))
    np.testing.assert_array_equal(both.tangent[:], nsd.tangent_kernel(RELU, _x()))


def test_what_cannot_be_written_to_is_refused(tmp_path):
    np.save(tmp_path / "k.npy", np.zeros((N, N)))
    with pytest.raises(BadInput, match="read-only"):
        nsd.conjugate_kernel(RELU, _x(), out=np.load(tmp_path / "k.npy", mmap_mode="r"))
    with pytest.raises(BadInput, match="expanded"):
        nsd.conjugate_kernel(RELU, _x(), out=torch.zeros(1, N, dtype=torch.float64).expand(N, N))
    with pytest.raises(BadInput, match="sparse"):
        nsd.conjugate_kernel(RELU, _x(), out=_square().to_sparse())
    for kind in ([[0.0]], "k.npy", 3):
        with pytest.raises(BadInput, match=f"out is a {type(kind).__name__}"):
            nsd.conjugate_kernel(RELU, _x(), out=kind)
    for kind in (3, torch.zeros(2, N, N), "ab"):
        with pytest.raises(BadInput, match="expected two"):
            nsd.exact_kernels(RELU, _x(), out=kind)


def test_memory_shared_with_the_samples_is_refused():
    for x in (_x(p=N), _x(p=N).numpy()):
        before = x.copy() if isinstance(x, np.ndarray) else x.clone()
        with pytest.raises(BadInput, match="shares memory with the samples"):
            nsd.conjugate_kernel(RELU, x, out=x)
        assert (x == before).all()
    wide = torch.zeros(N, N + 6, dtype=torch.float64)
    wide[:, N:] = _x()
    with pytest.raises(BadInput, match="shares memory with the samples"):
        nsd.conjugate_kernel(RELU, _x(), wide[:, N - 5 : N + 1][:N], out=wide[:, :N])
    nsd.conjugate_kernel(RELU, wide[:, N:], out=wide[:, :N])  # side by side, which is no harm
    assert torch.equal(wide[:, :N], nsd.conjugate_kernel(RELU, _x()))


def test_kernels_that_would_overwrite_each_other_are_refused():
    one, rows = _square(), torch.zeros(N + 1, N, dtype=torch.float64)
    for pair in ((one, one), (one, one.T), (one, one.numpy()), (rows[:N], rows[1:])):
        with pytest.raises(BadInput, match="share memory, so one kernel"):
            nsd.exact_kernels(RELU, _x(), out=pair)
    woven, wanted = torch.zeros(N, N, 2, dtype=torch.float64), nsd.exact_kernels(RELU, _x())
    nsd.exact_kernels(RELU, _x(), out=(woven[..., 0], woven[..., 1]))
    assert torch.equal(woven[..., 0], wanted.conjugate)
    assert torch.equal(woven[..., 1], wanted.tangent)
    half = nsd.exact_kernels(RELU, _x().numpy(), out=(np.zeros((N, N)), None))
    np.testing.assert_array_equal(half.tangent, wanted.tangent)


@pytest.mark.parametrize("n", [N, 800])  # 800: by the fused solver, where there is one
@pytest.mark.parametrize("same", [lambda x: x, torch.clone], ids=["itself", "a copy"])
def test_samples_against_themselves_are_the_square(n, same):
    """At ρ = 1 the NTK of a φ whose slope jumps falls like a square root, which makes 1e-8 of round-off."""
    x = _x(n)
    for kernel in (nsd.conjugate_kernel, nsd.tangent_kernel):
        square = kernel(RELU, x)
        torch.testing.assert_close(kernel(RELU, x, same(x)), square, rtol=0, atol=1e-14 * float(square.max()))
    rows = [part.tangent for part in nsd.kernels.kernel_tiles(RELU, x, same(x), (300, n), kernel="tangent")]
    torch.testing.assert_close(torch.cat(rows), square, rtol=0, atol=1e-14 * float(square.max()))


def test_equal_samples_elsewhere_are_so_to_the_root_of_round_off():
    """What docs/large.md says of them."""
    x = _x(150, 20)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(0))
    square = nsd.tangent_kernel(RELU, x)
    gap = float((nsd.tangent_kernel(RELU, x, x[order]) - square[:, order]).abs().max() / square.max())
    assert gap <= 1e-7
    pair = nsd.conjugate_kernel(RELU, x, x[order])
    torch.testing.assert_close(pair, nsd.conjugate_kernel(RELU, x)[:, order], rtol=0, atol=1e-14)
