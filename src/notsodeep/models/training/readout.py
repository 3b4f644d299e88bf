"""Linear readouts in closed form from a stream of features, holding an m × m matrix but never the features of all samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from notsodeep.arguments import numbers
from notsodeep.data.targets import regression_targets
from notsodeep.errors import BadInput
from notsodeep.linalg.ridge import FeatureSpectrum
from notsodeep.models.training.objective import pair, require_batches

Features = Callable[[Tensor], Tensor]
Stream = Callable[[], Iterable[tuple[Tensor, Tensor]]]
"""Gives the features and targets of all samples, batch by batch, on every call."""

BATCH = 1024
RIDGES = tuple(10.0 ** (k / 2) for k in range(-14, 3))
_LOGIT_FACTORS, _LOGIT_SAMPLES = tuple(2.0 ** (k / 2) for k in range(13)), 4096


@dataclass(frozen=True, eq=False, repr=False)
class LinearReadout:
    """z ↦ z weightᵀ + bias, with its ridge and its root mean square leave-one-out error (NaN where no ridge was chosen)."""

    weight: Tensor
    bias: Tensor
    ridge: float
    left_out_error: float

    def __call__(self, z: Tensor) -> Tensor:
        return z @ self.weight.T + self.bias

    def __repr__(self) -> str:
        outputs, width = self.weight.shape
        return f"LinearReadout({width} → {outputs}, ridge={self.ridge:.3g}, left_out_error={self.left_out_error:.3g})"


def best_readout(features: Features, x: Tensor, targets: Tensor, ridges: Sequence[float] = RIDGES) -> LinearReadout:
    """The ridge readout of features(x) for targets (n, K) with the best of `ridges`; see `ridge_readout`."""
    if len(x) != len(targets):
        raise BadInput(f"There are {len(x)} samples and {len(targets)} targets; they must be as many.")

    def stream() -> Iterator[tuple[Tensor, Tensor]]:
        for rows, wanted in zip(x.split(BATCH), targets.split(BATCH), strict=True):
            yield features(rows), wanted

    return ridge_readout(stream, ridges)


@torch.no_grad()
def ridge_readout(stream: Stream, ridges: Sequence[float] = RIDGES, intercept: bool = True) -> LinearReadout:
    """argmin ‖Z Rᵀ + c − T‖² + ridge·(tr ZᵀZ/m)·‖R‖², Z centred, with the ridge of the smallest leave-one-out error.

    The ridge is relative to the mean square of the features. Without `intercept` nothing is centred. See `RidgePath`.
    """
    ridges = numbers(ridges, "ridges", least=0.0)
    return RidgePath.of(stream, intercept).best(ridges)


@dataclass(frozen=True, eq=False, repr=False)
class RidgePath:
    """The readouts of one stream for every ridge: V Λ Vᵀ = ZᵀZ, Z centred, and VᵀZᵀT.

    A fit without sample i misses it by (t_i − out_i)/(1 − h_i), h_i = 1/n + Σ_k (z_iᵀv_k)²/(Λ_k + λ), λ = ridge·tr Λ/m: exact
    for every ridge, in a second pass over the stream. Without an intercept there is no 1/n.
    """

    stream: Stream
    sums: _Sums
    spectrum: FeatureSpectrum

    @classmethod
    def of(cls, stream: Stream, intercept: bool = True) -> RidgePath:
        sums = _Sums.of(stream, intercept)
        spectrum = FeatureSpectrum.of(sums.gram, sums.cross)
        return cls(stream, replace(sums, gram=spectrum.values), spectrum)  # an m × m matrix fewer to hold

    @property
    def level(self) -> float:
        """tr ZᵀZ/m, the unit of the ridges."""
        return float(self.spectrum.values.mean())

    def at(self, ridge: float, error: float = math.nan) -> LinearReadout:
        """The readout with this ridge."""
        weight = self.spectrum.weight(self._added(ridge))
        bias = self.sums.t_mean - weight @ self.sums.z_mean
        return LinearReadout(weight.to(self.sums.dtype), bias.to(self.sums.dtype), ridge, error)

    def best(self, ridges: Sequence[float]) -> LinearReadout:
        """The readout with the ridge of the smallest leave-one-out error."""
        if len(ridges) == 1 or self.sums.n < 2:
            return self.at(ridges[0])
        levels = [self._added(ridge) for ridge in ridges]
        errors = self._left_out(levels)
        best = int(errors.argmin())
        return self.at(ridges[best], float((errors[best] / (self.sums.n * self.sums.cross.shape[1])).sqrt()))

    def _added(self, ridge: float) -> float:
        """λ of a ridge, above the round-off of the smallest eigenvalues; 1 where all samples are equal."""
        floor = float(self.spectrum.values.sum()) * torch.finfo(torch.float64).eps or 1.0
        return max(ridge * self.level, floor)

    def _left_out(self, levels: list[float]) -> Tensor:
        """Σ_i ‖(t_i − out_i)/(1 − h_i)‖² for each level."""
        totals, seen, n = self.spectrum.values.new_zeros(len(levels)), 0, self.sums.n
        for z, t in self.stream():
            seen += len(z)
            totals += self.spectrum.left_out(*self.sums.centred(z, t), levels, 1.0 / n if self.sums.intercept else 0.0)
        if seen != n:
            raise BadInput(
                f"The loader gave {n} samples at first and {seen} the second time; a generator can be gone through once only: "
                "pass a DataLoader, a list, or one ridge."
            )
        return totals


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over a stream: ZᵀZ and ZᵀT about the means, in float64."""

    n: int
    gram: Tensor
    cross: Tensor
    z_mean: Tensor
    t_mean: Tensor
    intercept: bool
    dtype: torch.dtype

    @staticmethod
    def of(stream: Stream, intercept: bool) -> _Sums:
        n, gram, dtype = 0, None, torch.float64
        for z, t in stream():
            wide, wanted = z.double(), t.to(z.device, torch.float64)
            if gram is None:
                gram = wide.new_zeros(wide.shape[1], wide.shape[1])
                cross = wide.new_zeros(wide.shape[1], wanted.shape[1])
                z_sum, t_sum, dtype = wide.new_zeros(wide.shape[1]), wide.new_zeros(wanted.shape[1]), z.dtype
                # Sums about a point near the samples: far from them, Σzzᵀ − n z̄z̄ᵀ is a difference of huge numbers.
                z_near, t_near = (v.mean(0) if intercept else torch.zeros_like(v[0]) for v in (wide, wanted))
            wide, wanted = wide - z_near, wanted - t_near
            gram.addmm_(wide.T, wide)
            cross.addmm_(wide.T, wanted)
            z_sum += wide.sum(0)
            t_sum += wanted.sum(0)
            n += len(wide)
        if gram is None:
            raise BadInput("There is no sample to fit a readout to: the data gave no batch.")
        if not bool(torch.isfinite(gram).all() and torch.isfinite(cross).all()):
            raise BadInput("The features or the labels hold NaN or infinity: drop these samples first.")
        if not intercept:
            return _Sums(n, gram, cross, torch.zeros_like(z_sum), torch.zeros_like(t_sum), False, dtype)
        z_mean, t_mean = z_sum / n, t_sum / n
        gram -= n * torch.outer(z_mean, z_mean)
        cross -= n * torch.outer(z_mean, t_mean)
        return _Sums(n, gram, cross, z_near + z_mean, t_near + t_mean, True, dtype)

    def centred(self, z: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return z.double() - self.z_mean, t.to(z.device, torch.float64) - self.t_mean


def fit_readout(module: nn.Module, loader: Iterable[Any], ridges: Sequence[float] = RIDGES) -> LinearReadout:
    """Fit the readout of a DEQ or an ENN, in place, to the (x, y) batches of a loader: the best ridge by leave-one-out error.

        argmin ‖Z Rᵀ + c − T‖² + ridge·(tr ZᵀZ/m)·‖R‖²

    Classes are regressed on as one-hot vectors with as many entries as the module has outputs.

    Args:
        module: A network with `features` and a `readout`.
        loader: A DataLoader, `Batches` or a list of batches, gone through twice.
        ridges: Ridges to choose from, relative to the mean square of the features.

    Returns:
        The readout, with its ridge and leave-one-out error.

    Raises:
        BadInput: The module has no readout, or the batches do not fit it.
    """
    readout = getattr(module, "readout", None)
    if readout is None or getattr(readout, "weight", None) is None:
        raise BadInput("fit_readout needs a network with a readout: DEQ(…, out_features=…) or ENN(…, out_features=…).")
    ridges = numbers(ridges, "ridges", least=0.0)  # before the features are computed
    require_batches(loader, "loader")
    like, features = readout.weight, cast(Features, module.features)

    def stream() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in loader:
            x, y = pair(batch, like)
            yield features(x), regression_targets(y, len(like))

    found = ridge_readout(stream, ridges, intercept=readout.bias is not None)
    if hasattr(readout, "assign"):  # which knows its gain
        readout.assign(found.weight, found.bias)
        return found
    with torch.no_grad():
        like.copy_(found.weight)
        if readout.bias is not None:
            readout.bias.copy_(found.bias)
    return found


@torch.no_grad()
def scale_to_logits(module: nn.Module, loader: Iterable[Any]) -> float:
    """Multiply a readout regressed on one-hot classes by the factor of the smallest cross-entropy, and return that factor.

    Regressed outputs lie between 0 and 1: as logits they are nearly uniform. The factor is found on a few thousand samples.
    """
    readout, outputs, classes, n = cast(Any, module.readout), [], [], 0
    for batch in loader:
        x, y = pair(batch, readout.weight)
        outputs.append(module(x))
        classes.append(y.long())
        n += len(x)
        if n >= _LOGIT_SAMPLES:
            break
    out, wanted = torch.cat(outputs).double(), torch.cat(classes)
    best: float = min(_LOGIT_FACTORS, key=lambda factor: float(functional.cross_entropy(factor * out, wanted)))
    for part in (readout.weight, readout.bias):
        if part is not None:
            part.mul_(best)
    return best


@torch.no_grad()
def in_batches(f: Features, x: Tensor) -> Tensor:
    """f(x), a batch of rows at a time."""
    return torch.cat([f(rows) for rows in x.split(BATCH)])
