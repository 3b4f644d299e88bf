"""Gaussian mixtures: x_i = μ_a/√p + w_i, w_i ~ N(0, C_a/p). Ref: docs/theory.md, section 3."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from notsodeep.arguments import count, generator as checked_generator, number
from notsodeep.arrays import check_memory, real
from notsodeep.errors import BadInput


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """A Gaussian mixture x_i = μ_a/√p + w_i, w_i ~ N(0, C_a/p).

    Args:
        means: μ, (K, p).
        covariances: One per class: (K,) isotropic, (K, p) diagonal or (K, p, p) full, or a sequence of K that mixes a variance,
            a vector (p,) of variances and a matrix (p, p). Each class keeps its own form.

    Raises:
        BadInput: Shapes that do not fit, or a negative variance.
    """

    means: Tensor
    covariances: Tensor | Sequence[Any]

    def __post_init__(self) -> None:
        means = real(self.means, "means").double()
        covariances = _covariances(self.covariances)
        object.__setattr__(self, "means", means)
        object.__setattr__(self, "covariances", covariances)
        shapes = [tuple(form.shape) for form in covariances]
        fit = means.ndim == 2 and len(shapes) == len(means)
        if not fit or not {*shapes} <= {(), (means.shape[1],), (means.shape[1],) * 2}:
            shown = tuple(covariances.shape) if isinstance(covariances, Tensor) else shapes
            raise BadInput(
                f"means {tuple(means.shape)} and covariances {shown} do not fit; expected (K, p) and (K,) for isotropic, "
                "(K, p) for diagonal or (K, p, p) for full covariances, or K of them, each (), (p,) or (p, p)."
            )
        if any(form.ndim < 2 and bool((form < 0).any()) for form in covariances):
            raise BadInput("A variance of the mixture is negative.")

    @property
    def classes(self) -> int:
        return self.means.shape[0]

    @property
    def p(self) -> int:
        return self.means.shape[1]

    @classmethod
    def two_classes(cls, p: int, separation: float = 8.0, spread: float = 8.0) -> GaussianMixture:
        """The mixture of [ling2024]: μ_a = separation·e_{8(a−1)+1}, C_a = (1 + spread (a−1)/√p) I, a = 1, 2.

        Args:
            p: The number of features, at least 9.
            separation: The length of both means.
            spread: How much the second variance exceeds the first, times √p.
        """
        if count(p, "p") < 9:
            raise BadInput(f"The two-class mixture puts its second mean on feature 9, so it needs p ≥ 9; got p = {p}.")
        separation, spread = number(separation, "separation"), number(spread, "spread")
        check_memory((2, p), torch.float64, torch.device("cpu"), "a smaller p", "A mixture's means")
        means = torch.zeros(2, p, dtype=torch.float64)
        means[0, 0] = means[1, 8] = separation
        return cls(means, torch.tensor([1.0, 1.0 + spread / math.sqrt(p)], dtype=torch.float64))

    def sample(self, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """n samples (n, p) and their classes (n,), as balanced as n allows, class after class.

        Args:
            n: The number of samples.
            generator: Of the noise.
        """
        n, generator = count(n, "n"), checked_generator(generator)
        check_memory((n, 2 * self.p), torch.float64, torch.device("cpu"), "a smaller n", f"{n} samples")
        y = torch.arange(n) * self.classes // n
        noise = torch.randn(n, self.p, dtype=torch.float64, generator=generator)
        for a, form in enumerate(self.covariances):
            rows = slice(*torch.searchsorted(y, torch.tensor([a, a + 1])).tolist())  # y is sorted
            if form.ndim < 2:
                noise[rows] *= form.sqrt()
            else:
                noise[rows] = noise[rows] @ _root(form)
        return (self.means[y] + noise) / math.sqrt(self.p), y

    def traces(self) -> Tensor:
        """tr C_a, (K,)."""
        return torch.stack([self._trace(form) for form in self.covariances])

    def trace_products(self) -> Tensor:
        """tr(C_a C_b), (K, K)."""
        rows = [[self._trace_product(a, b) for b in self.covariances] for a in self.covariances]
        return torch.stack([torch.stack(row) for row in rows])

    def _trace(self, form: Tensor) -> Tensor:
        if form.ndim == 0:
            return self.p * form
        return form.sum() if form.ndim == 1 else form.diagonal().sum()

    def _trace_product(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = sorted((a, b), key=lambda form: form.ndim)
        if a.ndim == 0:  # a variance times the identity
            return a * self._trace(b)
        if a.ndim == 1:  # only b's diagonal meets a's
            return a @ (b if b.ndim == 1 else b.diagonal())
        return a.flatten() @ b.flatten()  # both are symmetric


def _covariances(given: Tensor | Sequence[Any]) -> Tensor | tuple[Tensor, ...]:
    """One tensor if the classes' forms agree, otherwise one per class."""
    if not isinstance(given, list | tuple):
        whole: Tensor = torch.atleast_1d(_form(given))
        return whole
    forms = tuple(_form(form) for form in given)
    return torch.stack(forms) if len({form.shape for form in forms}) == 1 else forms


def _form(given: Any) -> Tensor:
    """A variance, variances or a covariance in float64."""
    return real(given, "A covariance of the mixture").double()


def _root(covariance: Tensor) -> Tensor:
    """The symmetric square root: unlike Cholesky's factor, it exists for a singular covariance too."""
    values, vectors = torch.linalg.eigh(covariance)
    if float(values[0]) < -1e-10 * float(values[-1].abs()) or not torch.allclose(covariance, covariance.T):
        raise BadInput(f"A covariance is not positive semidefinite: its smallest eigenvalue is {float(values[0]):.2e}.")
    root: Tensor = vectors @ torch.diag(values.clamp(min=0).sqrt()) @ vectors.T
    return root
