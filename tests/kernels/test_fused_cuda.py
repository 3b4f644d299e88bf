"""The Triton solver against its slow twin on the same device."""

import pytest
import torch

import notsodeep as nsd
from notsodeep.kernels.prepared import prepare

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

KERNELS = ("conjugate", "tangent", "preactivation")
ALLOWED = {torch.float64: 1e-12, torch.float32: 1e-5}


def _x(n, seed=0, dtype=torch.float64):
    x = torch.randn(n, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / 200**0.5
    x[1], x[2], x[3], x[4] = x[0], x[0] + 1e-3 * x[10], 2.0 * x[0], -x[0]
    return x.to("cuda", dtype)


def _assert_close(ours, theirs, allowed):
    for mine, wanted in zip(ours, theirs, strict=True):
        assert float((mine.double() - wanted.double()).abs().max()) <= allowed * float(wanted.abs().max())


@pytest.mark.parametrize("dtype", ALLOWED, ids=["float64", "float32"])
@pytest.mark.parametrize("name", ["relu", "tanh", "gelu", "elu"])
def test_squares_rectangles_and_tiles(name, dtype):
    x, x2, net = _x(1300, dtype=dtype), _x(700, seed=1, dtype=dtype), nsd.Implicit(name, 0.15)
    for other in (None, x2):
        fused = prepare(net, x, other)
        plain = prepare(net, x.double(), None if other is None else other.double(), tau0=nsd.tau0(x), fused=False)
        assert type(fused.engine).__name__ == "GpuEngine"
        outputs = [
            tuple(torch.empty(p.shape, dtype=p.rows.dtype, device="cuda") for _ in KERNELS) for p in (fused, plain)
        ]
        fused.fill(outputs[0], KERNELS)
        plain.fill(outputs[1], KERNELS)
        _assert_close(*outputs, ALLOWED[dtype])
        if other is None:
            assert all(torch.equal(kernel, kernel.T) for kernel in outputs[0])
        for left, right in (
            (slice(0, 300), slice(0, 300)),
            (slice(100, 411), slice(300, 700)),
            (slice(7, 8), slice(0, 700)),
        ):
            _assert_close(
                fused.tile(left, right, KERNELS), [kernel[left, right] for kernel in outputs[1]], ALLOWED[dtype]
            )


def test_out_is_written():
    x, net = _x(1000, dtype=torch.float32), nsd.Implicit("relu", 0.2)
    out = torch.zeros(1000, 1000, device="cuda")
    assert nsd.conjugate_kernel(net, x, out=out) is out
    assert torch.equal(out, nsd.conjugate_kernel(net, x))
