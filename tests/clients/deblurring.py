"""Deblurring by a learnt proximal gradient step, after the published equations of Gilton, Ongie & Willett (2021).

z ← R(z − η Aᵀ(A z − y)): A a Gaussian blur, y = A x + noise, R(z) = z − s N(z) a denoiser with N a small convolutional
network, its weights divided by their spectral norms. N starts as what a trained denoiser removes, high frequencies, with
noise on the weights; the equation's low frequencies are then settled by the data, the high ones by R.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from .client import Client, Problem, draw

LAPLACE = torch.tensor([[0.0, -1.0, 0.0], [-1.0, 4.0, -1.0], [0.0, -1.0, 0.0]])


class Denoiser(nn.Module):
    """z ↦ z − s·conv(relu(conv(z))), z (n, 1, side, side), with spectral normalisation."""

    def __init__(self, features: int, noise: float, generator: torch.Generator) -> None:
        super().__init__()
        self.inner = nn.Conv2d(1, features, 3, padding=1, padding_mode="circular")
        self.outer = nn.Conv2d(features, 1, 3, padding=1, padding_mode="circular")
        self.scale = nn.Parameter(torch.tensor(0.4))
        signs = torch.where(torch.arange(features) % 2 == 0, 1.0, -1.0)  # relu(t) − relu(−t) = t
        with torch.no_grad():
            self.inner.weight.copy_(signs[:, None, None, None] * LAPLACE)
            self.outer.weight.zero_()[0, :, 1, 1] = signs
            for convolution in (self.inner, self.outer):
                shape = tuple(convolution.weight.shape)
                convolution.weight.add_(noise * convolution.weight.std() * draw(shape, 1.0, generator))
                convolution.bias.copy_(draw(tuple(convolution.bias.shape), 0.02, generator))
                _normalise(convolution)

    def forward(self, z: Tensor) -> Tensor:
        return z - self.scale * self.outer(torch.relu(self.inner(z)))


def _normalise(convolution: nn.Conv2d) -> None:
    """Spectral normalisation with its singular vectors known, not those that power iterations have come to by chance."""
    matrix = convolution.weight.detach().flatten(1)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    spectral_norm(convolution)
    parametrization = convolution.parametrizations.weight[0]
    parametrization._u.copy_(left[:, 0])
    parametrization._v.copy_(right[0])


def gaussian_kernel(width: float, side: int = 5) -> Tensor:
    """(1, 1, side, side), of sum 1: symmetric, so that A = Aᵀ."""
    line = torch.exp(-0.5 * ((torch.arange(side) - side // 2) / width) ** 2)
    kernel = line[:, None] * line
    return (kernel / kernel.sum())[None, None]


def blurred(z: Tensor, kernel: Tensor) -> Tensor:
    margin = kernel.shape[-1] // 2
    return functional.conv2d(functional.pad(z, (margin,) * 4, mode="circular"), kernel)


def build(
    dtype: torch.dtype, seed: int, batch: int = 2, side: int = 12, features: int = 8, noise: float = 0.2, eta: float = 0.9
) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    denoiser = Denoiser(features, noise, generator).to(dtype).eval()  # in training mode f would change with every call
    kernel = gaussian_kernel(1.0).to(dtype)
    corners = torch.rand((batch, 1, side // 4, side // 4), generator=generator)
    image = functional.interpolate(corners, scale_factor=4, mode="nearest").to(dtype)
    y = blurred(image, kernel) + draw(tuple(image.shape), 0.02, generator).to(dtype)
    y = y.requires_grad_()

    def f(z: Tensor) -> Tensor:
        return denoiser(z - eta * blurred(blurred(z, kernel) - y, kernel))

    return Problem(f, y.detach().clone(), (*denoiser.parameters(), y))


DEBLURRING = Client(
    "deblurring",
    build,
    partial(build, batch=4, side=64, features=16),
    tol=1e-5,  # at 1e-4 a relu is on the wrong side of its kink, and any gradient there is 7e-2 off
    damping=0.7,
)
