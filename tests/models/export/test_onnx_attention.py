"""Attention in ONNX files: with heads, as torch's exporter takes it, and without, (n, T, d) and (T, d)."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import notsodeep as nsd
from notsodeep.models.export.onnx import to_onnx

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
runtime = pytest.importorskip("onnxruntime")

LENGTH, FEATURES = 5, 8
MASKS = {
    "none": lambda _: None,
    "bool": lambda x: torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).tril(),
    "numbers": lambda x: torch.arange(25.0).reshape(LENGTH, LENGTH).to(x) / 9.0,
    "of samples": lambda x: x @ x.mT,
    "bool of samples": lambda x: x @ x.mT > -1.0,
}


class Attention(nn.Module):
    def __init__(self, shape, mask="none", **options):
        super().__init__()
        torch.manual_seed(0)
        self.into, self.shape, self.mask, self.options = nn.Linear(FEATURES, 3 * FEATURES), shape, mask, options

    def forward(self, x):
        q, k, v = (part.reshape(-1, *self.shape) if self.shape else part for part in self.into(x).chunk(3, -1))
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=MASKS[self.mask](x), **self.options)


def check(module, x, path, **options):
    to_onnx(module.eval(), path, x, **options)
    with torch.no_grad():
        wanted = module(x)
    (out,) = runtime.InferenceSession(path).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(out), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"scale": 0.3}, {"is_causal": True}], ids=["plain", "scale", "causal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_heads(options, dtype, tmp_path):
    x = torch.randn(3, LENGTH, FEATURES, dtype=dtype, generator=torch.Generator().manual_seed(0))
    check(Attention(None, **options).to(dtype), x, tmp_path / "a.onnx")


@pytest.mark.parametrize("mask", [name for name in MASKS if name != "none"])
def test_without_heads_with_a_mask(mask, tmp_path):
    x = torch.randn(3, LENGTH, FEATURES, generator=torch.Generator().manual_seed(0))
    check(Attention(None, mask), x, tmp_path / "a.onnx")


@pytest.mark.parametrize("options", [{}, {"is_causal": True}], ids=["plain", "causal"])
def test_with_heads(options, tmp_path):
    x = torch.randn(3, LENGTH, FEATURES, generator=torch.Generator().manual_seed(0))
    check(Attention((2, LENGTH, FEATURES // 2), **options), x, tmp_path / "a.onnx")


def test_among_the_samples_themselves(tmp_path):
    """(T, d), the samples being one problem."""
    x = torch.randn(LENGTH, FEATURES, generator=torch.Generator().manual_seed(0))
    check(Attention(None, "bool"), x, tmp_path / "a.onnx", samples=0)


def test_more_axes_say_what_to_change(tmp_path):
    x = torch.randn(3, LENGTH, FEATURES, generator=torch.Generator().manual_seed(0))
    with pytest.raises(nsd.BadInput, match="queries of 5 axes: give queries, keys and values"):
        to_onnx(Attention((1, 2, LENGTH, FEATURES // 2)).eval(), tmp_path / "a.onnx", x)


def test_a_compiled_layer_of_attention(tmp_path):
    """z = tanh(c · attention(z) + u), of sequences without heads."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.into, self.attend = nn.Linear(FEATURES, FEATURES), Attention(None)

        def forward(self, x):
            u = self.into(x)
            return nsd.fixed_point(lambda z: torch.tanh(0.3 * self.attend(z) + u), torch.zeros_like(u)).value

    x = torch.randn(60, LENGTH, FEATURES, generator=torch.Generator().manual_seed(0))
    compiled = nsd.compile_deq(Layer(), x, keep=0.9, budget=0.0, progress=False)
    (out,) = runtime.InferenceSession(compiled.to_onnx(tmp_path / "a.onnx")).run(None, {"x": x.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(out), compiled.network(x), rtol=1e-4, atol=1e-4)
