"""ConvDEQ and ConvENN: their limit, gradients, files, exports and the compiler."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

import notsodeep as nsd
from tests.kernels.finite_width import log_log_slope, root_mean_square_gap

DEQ, ENN = nsd.Implicit("tanh", 0.2), nsd.Explicit(["relu", "tanh"], [1.0, 0.5, 2.0])
WIDTHS = [16, 64, 256]


def _x(*shape, seed=0):
    x = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / math.sqrt(shape[1])
    x[1] += 0.5 * x[0]
    return x


X = _x(4, 2, 4, 3)


def _module(net, width, seed, outputs=None, x=X, **patches):
    images = nsd.Convolutional(net, **patches)
    generator = torch.Generator().manual_seed(seed)
    options = {"grid": x.shape[2:], "generator": generator, "dtype": torch.float64}
    if isinstance(net, nsd.Implicit):
        return nsd.ConvDEQ(images, x.shape[1], width, outputs, tau0=images.tau0(x), **options)
    return nsd.ConvENN(images, x.shape[1], width, outputs, **options)


@pytest.mark.parametrize("net", [DEQ, ENN], ids=["deq", "layers"])
@pytest.mark.parametrize("patches", [{}, {"padding": "circular", "readout": "pooled"}], ids=["zero, flat", "circular, pooled"])
def test_exact_kernels_are_the_limit_of_many_channels(net, patches):
    exact = nsd.exact_kernels(nsd.Convolutional(net, **patches), X)
    gaps = []
    for width in WIDTHS:
        with torch.no_grad():
            features = [_module(net, width, seed, **patches).features(X) for seed in range(24)]
        gaps.append(root_mean_square_gap([z @ z.T for z in features], exact.conjugate))
    assert -0.7 <= log_log_slope(WIDTHS, gaps) <= -0.4, gaps
    tangents = [nsd.empirical_kernels(_module(net, WIDTHS[-1], seed, 1, **patches), X).tangent for seed in range(4)]
    assert root_mean_square_gap(tangents, exact.tangent) <= 0.2


def test_signals_and_several_kinds_of_units():
    x = _x(3, 2, 6)
    net = nsd.Explicit([nsd.activations.Mixed(["relu", "sin"])])
    exact = nsd.conjugate_kernel(nsd.Convolutional(net, 5), x)
    found = [nsd.empirical_kernels(_module(net, 400, seed, 1, x, patch=5), x).conjugate for seed in range(6)]
    assert root_mean_square_gap(found, exact) <= 0.12


@pytest.mark.parametrize("padding", ["zero", "circular"])
def test_the_equilibrium_is_one(padding):
    module = _module(DEQ, 12, 0, 3, padding=padding)
    z = math.sqrt(12) * module.feature_map(X)
    mode = "constant" if padding == "zero" else "circular"

    def convolved(x, weight):
        return functional.conv2d(functional.pad(x, (1, 1, 1, 1), mode=mode), weight)

    h = convolved(z, module.A) * math.sqrt(0.2 / (12 * 9)) + convolved(X, module.B) * math.sqrt(0.8 / 9)
    torch.testing.assert_close(torch.tanh(h), z, rtol=1e-8, atol=1e-9)
    assert tuple(module(X).shape) == (4, 3)
    assert bool(module.solve(X).converged.all())


def test_gradients():
    x = X[:2, :, :3, :2]
    module = _module(DEQ, 3, 1, 2, x)
    names = list(dict(module.named_parameters()))

    def outputs(*weights):
        return torch.func.functional_call(module, dict(zip(names, weights, strict=True)), (x,))

    weights = tuple(p.detach().requires_grad_() for p in module.parameters())
    assert torch.autograd.gradcheck(outputs, weights, atol=1e-6)


@pytest.mark.parametrize("net", [DEQ, ENN], ids=["deq", "layers"])
def test_files_hold_all_of_it(net, tmp_path):
    module = _module(net, 8, 0, 3, patch=(3, 1), padding="circular")
    path = nsd.save(module, tmp_path / "images.safetensors")
    again = nsd.load(path)
    assert str(again) == str(module)
    assert torch.equal(again(X), module(X))


@pytest.mark.parametrize("net", [DEQ, ENN], ids=["deq", "layers"])
def test_onnx_answers_alike(net, tmp_path):
    session = pytest.importorskip("onnxruntime").InferenceSession
    module, x = _module(net, 8, 0, 3).float(), X.float()  # the runtime convolves in float32 alone
    path = nsd.models.to_onnx(module, tmp_path / "images.onnx", x[:2])
    (out,) = session(str(path)).run(["out"], {"x": x.numpy()})
    np.testing.assert_allclose(out, module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_compiled_to_a_few_steps():
    x, y = _x(120, 1, 5, 5), torch.arange(120) % 3
    x[:, 0, 0] += y[:, None]
    images = nsd.Convolutional(DEQ)
    module = nsd.ConvDEQ(images, 1, 8, 3, grid=(5, 5), tau0=images.tau0(x), generator=torch.Generator().manual_seed(0)).double()
    optimiser = torch.optim.Adam(module.parameters(), lr=3e-2)
    for _ in range(20):
        optimiser.zero_grad()
        functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    compiled = nsd.compile_deq(module, x, y, keep=0.9, budget=1.0, progress=False)
    assert compiled.certificate.agreement >= 0.9
    assert compiled.certificate.network_flops < compiled.certificate.deq_flops
    same = (compiled.network(x).argmax(1) == module(x).argmax(1)).double().mean()
    assert float(same) >= 0.9


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: nsd.ConvDEQ(nsd.Convolutional(ENN), 1, 4), "ConvDEQ takes a Convolutional of an Implicit"),
        (lambda: nsd.ConvENN(nsd.Convolutional(DEQ), 1, 4), "ConvENN takes a Convolutional of an Explicit"),
        (lambda: nsd.ConvDEQ(DEQ, 1, 4), "images"),
        (lambda: nsd.ConvDEQ(nsd.Convolutional(DEQ), 1, 4, 3), "give grid"),
        (lambda: nsd.ConvENN(nsd.Convolutional(ENN), 1, [4], grid=(2, 2)), "width has 1 entries"),
        (lambda: nsd.ConvDEQ(nsd.Convolutional(DEQ), 2, 4)(X.float()[:, :1]), r"takes \(n, 2, height, width\)"),
        (lambda: nsd.ConvDEQ(nsd.Convolutional(DEQ), 2, 4, 1, grid=(3, 3))(X.float()), "grid"),
        (lambda: nsd.ConvDEQ(nsd.Convolutional(DEQ), 2, 4)(X), "float64"),
    ],
)
def test_bad_input_is_one_clear_error(call, words):
    with pytest.raises(nsd.BadInput, match=words):
        call()
