"""The statistics of the data in the theorems: τ0, t, T, ψ and J. Ref: docs/theory.md, section 3."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.arguments import instance, norm
from notsodeep.arrays import Array, class_codes, label_array, real, samples
from notsodeep.errors import BadInput
from notsodeep.theory.mixture import GaussianMixture

_NORMS_AT_ONCE = 1 << 18  # numbers: a cache's worth


def tau0(x: Array) -> float:
    """The root mean square norm of the samples, τ0 = √(mean ‖x_i‖²).

    Args:
        x: Samples (n, p).

    Returns:
        A number > 0.

    Raises:
        BadInput: Every sample is zero, or x cannot be used.
    """
    return root_mean_square(squared_norms(samples(x)))


def squared_norms(x: Tensor) -> Tensor:
    """‖x_i‖² in float64, block by block: no copy of x in another dtype."""
    at_once = len(x) if x.is_cuda else max(1, _NORMS_AT_ONCE // x.shape[1])
    return torch.cat([part.to(torch.float64).square().sum(1) for part in x.split(at_once)])


def root_mean_square(norms2: Tensor) -> float:
    """τ0 of samples of these squared norms."""
    value = math.sqrt(float(norms2.mean()))
    if value == 0.0:
        raise BadInput("Every sample is zero, so τ0 = 0: there is nothing to scale by.")
    return value


@dataclass(frozen=True, eq=False)
class MixtureStatistics:
    """The statistics of a Gaussian mixture and of samples from it, made by `from_labels`, `from_mixture` or `from_data`."""

    tau0: float
    """τ0 = √(tr C°/p), C° the mean covariance"""
    t: Tensor
    """t_a = tr(C_a − C°)/√p, (K,)"""
    T: Tensor
    """T_ab = tr(C_a C_b)/p, (K, K)"""
    psi: Tensor
    """ψ_i = ‖w_i‖² − tr C_a/p, (n,)"""
    J: Tensor
    """One-hot classes, (n, K)"""

    def __post_init__(self) -> None:
        norm(self.tau0)
        classes, n = len(real(self.t, "t", (None,))), len(real(self.psi, "psi", (None,)))
        real(self.T, "T", (classes, classes))
        real(self.J, "J", (n, classes if n else None))  # sums of a stream have no row

    @classmethod
    def from_mixture(cls, mixture: GaussianMixture, x: Array, y: Any) -> MixtureStatistics:
        """The exact statistics of samples drawn from a known mixture.

        Args:
            mixture: The mixture.
            x: Samples (n, p) from it.
            y: Their classes 0 … K − 1, (n,).
        """
        instance(mixture, GaussianMixture, "mixture", "a GaussianMixture")
        data = samples(x).to(torch.float64)
        labels = _labels(y, data, mixture.classes)
        if data.shape[1] != mixture.p:
            raise BadInput(f"x has {data.shape[1]} features, the mixture has p = {mixture.p}.")
        p, J = mixture.p, _one_hot(labels, mixture.classes)
        traces = mixture.traces().to(data.device)
        mean_trace = J.mean(0) @ traces
        noise = data - mixture.means.to(data.device)[labels] / math.sqrt(p)
        return cls(
            tau0=math.sqrt(float(mean_trace) / p),
            t=(traces - mean_trace) / math.sqrt(p),
            T=mixture.trace_products().to(data.device) / p,
            psi=noise.square().sum(1) - traces[labels] / p,
            J=J,
        )

    @classmethod
    def from_labels(cls, x: Array, y: Any) -> MixtureStatistics:
        """Estimates from labelled samples: class means, tr C_a/p from within-class norms, tr(C_a C_b)/p from within-class
        inner products of different samples, E(w_i·w_j)² = tr(C_a C_b)/p².

        Args:
            x: Samples (n, p).
            y: Their classes, any labels (n,), at least two samples each.
        """
        data = samples(x).to(torch.float64)
        labels = _labels(y, data)
        classes = int(labels.max()) + 1
        if classes < 2:
            raise BadInput(
                "y holds one class only; a mixture needs at least two. Without labels, use MixtureStatistics.from_data(x)."
            )
        return cls._estimate(data, labels, classes)

    @classmethod
    def from_data(cls, x: Array) -> MixtureStatistics:
        """Estimates without labels: one class, so t = 0 and ψ carries all the norms' variation.

        Args:
            x: Samples (n, p).
        """
        data = samples(x).to(torch.float64)
        return cls._estimate(data, torch.zeros(len(data), dtype=torch.long, device=data.device), 1)

    @classmethod
    def _estimate(cls, data: Tensor, labels: Tensor, classes: int) -> MixtureStatistics:
        p = data.shape[1]
        J = _one_hot(labels, classes)
        counts = J.sum(0)
        if bool((counts < 2).any()):
            raise BadInput(f"Class {int(counts.argmin())} has {int(counts.min())} sample; each class needs at least two.")
        means = (J.T @ data) / counts[:, None]
        noise = data - means[labels]
        # Subtracting the estimated mean shrinks each residual by √((n_a − 1)/n_a).
        noise = noise * (counts / (counts - 1.0)).sqrt()[labels, None]
        norms = noise.square().sum(1)
        traces = (J.T @ norms) / counts  # tr C_a / p
        mean_trace = float(J.mean(0) @ traces)
        return cls(
            tau0=math.sqrt(mean_trace),
            t=(traces - mean_trace) * math.sqrt(p),
            T=p * _mean_squared_products(noise, labels, counts),
            psi=norms - traces[labels],
            J=J,
        )


def _mean_squared_products(noise: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """The mean of (w_i·w_j)² over i in class a, j in class b, i ≠ j, from p × p or n_a × n_b products."""
    classes, p = len(counts), noise.shape[1]
    groups = [noise[labels == a] for a in range(classes)]
    small = p <= int(counts.max())
    grams = [group.T @ group for group in groups] if small else []
    means = noise.new_empty(classes, classes)
    for a in range(classes):
        for b in range(a, classes):
            total = (grams[a] * grams[b]).sum() if small else (groups[a] @ groups[b].T).square().sum()
            pairs = counts[a] * counts[b]
            if a == b:
                total, pairs = total - groups[a].square().sum(1).square().sum(), pairs - counts[a]
            means[a, b] = means[b, a] = total / pairs
    return means


def _labels(y: Any, data: Tensor, classes: int | None = None) -> Tensor:
    """Classes as 0 … K−1 on the data's device; any values when `classes` is None."""
    values = label_array(y)
    if values.shape != (len(data),):
        raise BadInput(f"y has shape {values.shape}; expected ({len(data)},), one label per row of x.")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise BadInput("y holds NaN or infinity.")
    if classes is None:
        values = class_codes(values)[1]
    elif values.dtype.kind not in "iu" or values.min() < 0 or values.max() >= classes:
        raise BadInput(f"y must hold the mixture's classes 0 … {classes - 1}.")
    return torch.as_tensor(values.astype(np.int64), device=data.device)


def _one_hot(labels: Tensor, classes: int) -> Tensor:
    return torch.nn.functional.one_hot(labels, classes).to(torch.float64)
