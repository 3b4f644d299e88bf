"""DEQ.from_weights: networks as others write them."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import notsodeep as nsd

P, M, K = 9, 40, 3
PHIS = {"tanh": torch.tanh, "relu": torch.relu, "gelu": functional.gelu}


def weights(dtype=torch.float64, seed=0, m=M):
    """(W, U, b, R, c) with a norm of W near 0.8."""
    draw = torch.Generator().manual_seed(seed)
    shapes = ((m, m, 0.4 / m**0.5), (m, P, 1.0), (m, 0, 0.5), (K, m, 1.0), (K, 0, 1.0))
    return [torch.randn(*([a, b] if b else [a]), generator=draw, dtype=torch.float64).mul(s).to(dtype) for a, b, s in shapes]


def monotone(dtype=torch.float64, size=0.8):
    """W with (W + Wᵀ)/2 ⪯ 0.95 I whose plain steps diverge."""
    draw = torch.Generator().manual_seed(1)
    root, skew = (size * torch.randn(M, M, generator=draw, dtype=torch.float64) / M**0.5 for _ in range(2))
    return (0.95 * torch.eye(M, dtype=torch.float64) - root.T @ root + skew - skew.T).to(dtype)


def samples(dtype=torch.float64, n=25):
    return torch.randn(n, P, generator=torch.Generator().manual_seed(2), dtype=dtype)


def loop(W, U, b, R, c, phi, x, steps=2000, damping=1.0):
    """What the owner of the weights would write."""
    z = torch.zeros(len(x), len(W), dtype=W.dtype)
    for _ in range(steps):
        z = z + damping * (phi(z @ W.T + x @ U.T + b) - z)
    return z @ R.T + c


@pytest.mark.parametrize(("dtype", "tol", "allowed"), [(torch.float64, 1e-15, 1e-13), (torch.float32, 2e-7, 1e-5)])
@pytest.mark.parametrize("name", PHIS)
def test_it_is_the_owners_loop_to_rounding(name, dtype, tol, allowed):
    given, x = weights(dtype), samples(dtype)
    wanted = loop(*given, PHIS[name], x)
    deq = nsd.DEQ.from_weights(*given, name, tol=tol, throw=False)
    assert deq.B.dtype == dtype
    torch.testing.assert_close(deq(x), wanted, rtol=allowed, atol=allowed)
    usual = nsd.DEQ.from_weights(*given, name)
    torch.testing.assert_close(usual(x), wanted, rtol=0.0, atol=1e-3 if dtype == torch.float32 else 1e-8)
    assert usual.changed() == {"A", "B", "bias", "readout"}


def test_arrays_and_what_may_be_left_out():
    W, U, b, R, c = (w.numpy() for w in weights())
    x = samples()
    zero = np.zeros(M)
    for deq, wanted in (
        (nsd.DEQ.from_weights(W, U, phi="relu"), loop(*map(torch.as_tensor, (W, U, zero, np.eye(M), zero)), torch.relu, x)),
        (nsd.DEQ.from_weights(W, U, R=R, c=c), loop(*map(torch.as_tensor, (W, U, zero, R, c)), torch.tanh, x)),
        (nsd.DEQ.from_weights(W, U, b, R, phi=functional.gelu), loop(*weights()[:4], 0.0, functional.gelu, x)),
    ):
        torch.testing.assert_close(deq(x), wanted, rtol=1e-8, atol=1e-8)
    assert not nsd.DEQ.from_weights(W, U).readout.weight.requires_grad  # y = z


def test_the_weights_are_copies():
    given = weights()
    kept = [w.clone() for w in given]
    deq = nsd.DEQ.from_weights(*given)
    with torch.no_grad():
        for parameter in deq.parameters():
            parameter.zero_()
    assert all(torch.equal(now, then) for now, then in zip(given, kept, strict=True))


def test_gradients_are_those_of_the_loop():
    given, x = weights(), samples()
    deq = nsd.DEQ.from_weights(*given, "tanh", tol=1e-13, adjoint=nsd.ImplicitAdjoint(tol=1e-13))
    own = [w.clone().requires_grad_() for w in given]
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    deq(inputs[0]).square().sum().backward()
    loop(*own, torch.tanh, inputs[1], steps=200).square().sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-8, atol=1e-10)
    factors = (deq.form.recurrent, deq.form.input, 1.0, deq.form.output, 1.0)  # of A, B, … in W, U, …
    parameters = (deq.A, deq.B, deq.bias, deq.readout.weight, deq.readout.bias)
    for parameter, factor, weight in zip(parameters, factors, own, strict=True):
        torch.testing.assert_close(parameter.grad, factor * weight.grad, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_monotone_network_is_recognised_by_solving(dtype):
    (_, *rest), W, x = weights(dtype), monotone(dtype), samples(dtype)
    assert float(torch.linalg.matrix_norm(W, 2)) > 2.0
    plain = [loop(W, *rest, torch.relu, x, steps) for steps in (1000, 1001)]
    assert float((plain[0] - plain[1]).abs().max()) > 1.0  # plain steps do not end
    deq = nsd.DEQ.from_weights(W, *rest, "relu")
    wanted = loop(W, *rest, torch.relu, x, 20000, 0.05)
    scale = float(wanted.abs().max())
    torch.testing.assert_close(deq(x) / scale, wanted / scale, rtol=0.0, atol=1e-8 if dtype == torch.float64 else 1e-4)
    deq(x).sum().backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in deq.parameters())


@pytest.mark.parametrize("recurrent", [None, monotone(torch.float32, 0.5)], ids=["contracting", "monotone"])
def test_files_exports_and_the_compiler(recurrent, tmp_path):
    given, x = weights(torch.float32), samples(torch.float32, 200) / P**0.5
    given[0] = given[0] if recurrent is None else recurrent
    deq = nsd.DEQ.from_weights(*given, "relu")
    again = nsd.load(nsd.save(deq, tmp_path / "deq.safetensors"))
    assert torch.equal(again(x), deq(x))
    assert again.changed() == deq.changed()
    compiled = nsd.compile_deq(deq, x, budget=0.0)
    assert compiled.certificate.trained
    assert compiled.certificate.output_error < 0.6
    pytest.importorskip("onnx")
    session = pytest.importorskip("onnxruntime").InferenceSession(deq.to_onnx(tmp_path / "deq.onnx"))
    (out,) = session.run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(out), deq(x).detach(), rtol=1e-3, atol=1e-3)


def test_samples_of_ones_own():
    given, x = weights(), samples()
    deq = nsd.DEQ.from_weights(*given, x=x.numpy())
    assert deq.tau0 == pytest.approx(nsd.tau0(x))
    # An expanding map whose state is driven into saturation by the inputs at hand, and by no others.
    wild = [2.0 * torch.eye(M, dtype=torch.float64), torch.ones(M, P, dtype=torch.float64), *given[2:]]
    far = 100.0 * torch.ones(4, P, dtype=torch.float64)
    nsd.DEQ.from_weights(*wild, lambda h: torch.clamp(h, 0.0, 1.0), x=far, solver=nsd.Picard())


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"W": torch.ones(M, M + 1)}, nsd.BadInput, r"\(40, 41\).*\(m, m\)"),
        ({"U": torch.ones(P, M)}, nsd.BadInput, r"\(9, 40\).*Transpose"),
        ({"U": torch.ones(M, 0)}, nsd.BadInput, r"\(40, 0\)"),
        ({"b": torch.ones(M, 1)}, nsd.BadInput, r"b, the bias.*\(40, 1\)"),
        ({"R": torch.ones(M, K)}, nsd.BadInput, r"R, the readout.*\(n, 40\)"),
        ({"R": torch.ones(0, M), "c": None}, nsd.BadInput, "no output"),
        ({"c": torch.ones(K + 1)}, nsd.BadInput, r"c, the bias.*\(4,\)"),
        ({"W": torch.full((M, M), torch.nan)}, nsd.BadInput, "W.*NaN"),
        ({"b": np.full(M, np.inf)}, nsd.BadInput, "b, .*infinity"),
        ({"W": "weights"}, nsd.BadInput, "W, .*not an array"),
        ({"phi": "tan"}, nsd.BadInput, "no activation"),
        ({"well_posed": "spectral"}, nsd.BadInput, "got well_posed"),
        ({"frozen": "W"}, nsd.BadInput, "frozen knows"),
        ({"x": torch.ones(3, P + 1)}, nsd.BadInput, r"\(3, 10\)"),
        ({"W": 2.0 * torch.eye(M), "phi": "relu"}, nsd.NotConverged, r"33 of 33 samples.*spectral radius 2 and norm 2"),
        ({"W": 2.0 * torch.eye(M), "phi": "relu", "solver": nsd.Picard()}, nsd.NotConverged, "by Picard: "),
    ],
)
def test_what_does_not_fit(change, error, says):
    names = ("W", "U", "b", "R", "c")
    with pytest.raises(error, match=says):
        nsd.DEQ.from_weights(**dict(zip(names, weights(), strict=True)) | change)


def test_without_throw_the_best_state():
    given = weights()
    given[0] = 2.0 * torch.eye(M, dtype=torch.float64)
    deq = nsd.DEQ.from_weights(*given, "relu", throw=False, max_steps=20)
    assert not bool(deq.solve(samples()).converged.all())
