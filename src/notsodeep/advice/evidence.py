"""Measurements of a task (x, y) before any training: how well kernels and simple learners predict y. Ref: docs/theory.md.

All errors are squared, on samples left out, and in units of the best constant's: 1 is as bad as a constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from notsodeep.approximation.interval import student
from notsodeep.arrays import Array, samples
from notsodeep.data.standardiser import standardised
from notsodeep.data.targets import Targets
from notsodeep.errors import BadInput
from notsodeep.kernels.compare import best_scaled_gap, relative_gap
from notsodeep.kernels.exact.kernels import exact_kernels
from notsodeep.linalg.eigen import leading_directions
from notsodeep.linalg.ridge import KernelSpectrum
from notsodeep.matching.design import design
from notsodeep.theory.architecture import Explicit, Implicit

MOST_SAMPLES = 2000
FOLDS, FEWEST_SAMPLES = 5, 20
STUDENT = student(FOLDS - 1)
"""97.5 % quantile of Student's t with FOLDS − 1 degrees of freedom."""
RIDGES = tuple(10.0**k for k in (-10, -8, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3))
"""Relative to the mean diagonal of the kernel: from interpolation to a constant prediction."""
NEIGHBOURS = (1, 2, 4, 8, 16, 32)
_TREES, _TREE_FEATURES = 50, 64
_METRIC_SAMPLES, _METRIC_FEATURES, _METRIC_ROUNDS = 1000, 100, 3
_METRIC_RIDGES = tuple(10.0**k for k in range(-6, 1))
_DESIGN_SAMPLES, _SCALED_GAP_SAMPLES = 300, 500
FITTED = 0.9  # share of the label's energy that counts as fitted

Predict = Callable[[Tensor, Tensor], Tensor]
"""(rows to learn from, rows to predict) → predicted targets."""


@dataclass(frozen=True)
class LeftOut:
    """An error on samples left out.

    Args:
        mean: Its mean over the folds.
        standard_error: The standard error of that mean.
    """

    mean: float
    standard_error: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> LeftOut:
        found = torch.tensor(errors, dtype=torch.float64)
        return cls(float(found.mean()), float(found.std() / math.sqrt(len(found))))

    @property
    def low(self) -> float:
        """The lower end of the 95 % interval."""
        return self.mean - STUDENT * self.standard_error

    @property
    def high(self) -> float:
        """The upper end of the 95 % interval."""
        return self.mean + STUDENT * self.standard_error

    def __str__(self) -> str:
        return f"{self.mean:.3g} ± {self.standard_error:.1g}"


@dataclass(frozen=True)
class Evidence:
    """The measurements of one task; `rows` explains each of them in a line.

    Args:
        net, explicit: The DEQ, and the network matched to it.
        samples, of_samples: The number of samples used, and of those given.
        features, outputs, classes: The numbers of features and of outputs, and whether these are classes.
        largest_feature: The largest share of the variance of x that one feature holds.
        conjugate_gap, tangent_gap: Relative distances of the two networks' kernels.
        head_energy, directions, steps: How much of the label lies in the kernel's leading directions, how many directions hold
            90 % of it (over n), and the steps of gradient descent that fit as much.
        deq, matched, deq_half, deq_quarter: Errors of kernel regression with the DEQ's tangent kernel, with the matched
            network's, and with the DEQ's on a half and a quarter of the samples.
        neighbours, trees, metric: Errors of nearest neighbours, of a forest, and of a kernel with a learnt metric.
        disagreement, steepness: Difference of the labels of nearest neighbours, and its slope's 95 % quantile over its median.
    """

    net: Implicit
    explicit: Explicit
    samples: int
    of_samples: int
    features: int
    outputs: int
    classes: bool
    largest_feature: float
    conjugate_gap: float
    tangent_gap: float
    head_energy: float
    directions: float
    steps: float
    deq: LeftOut
    matched: LeftOut
    deq_half: LeftOut
    deq_quarter: LeftOut
    neighbours: LeftOut
    trees: LeftOut
    metric: LeftOut
    disagreement: float
    steepness: float

    @property
    def kernels(self) -> LeftOut:
        """The better of the two kernels."""
        return min(self.deq, self.matched, key=lambda error: error.mean)

    @property
    def best(self) -> LeftOut:
        """The best of all learners."""
        return min(self.deq, self.matched, self.neighbours, self.trees, self.metric, key=lambda error: error.mean)

    @property
    def missed(self) -> float:
        """Share of what can be learnt that the kernels miss: (e_kernels − e_best)/(1 − e_best); 0 if nothing can be learnt."""
        learnable = 1.0 - self.best.mean
        return (self.kernels.mean - self.best.mean) / learnable if learnable > 0.0 else 0.0

    @property
    def gain(self) -> float:
        """e(n)/e(n/4) of the DEQ's kernel: 1 if more samples do not help, 1/4 if the error falls as 1/n."""
        return self.deq.mean / self.deq_quarter.mean if self.deq_quarter.mean > 0.0 else 1.0

    def rows(self) -> list[tuple[str, str, str]]:
        """(name, value, meaning) of each measurement."""
        kind = f"{self.outputs} classes" if self.classes else f"{self.outputs} number{'s' * (self.outputs > 1)}"
        short = "{:.2g}".format
        steepness = short(self.steepness) if math.isfinite(self.steepness) else "—"  # most neighbours have one label
        return [
            ("samples", f"{self.samples} of {self.of_samples}", f"used here, of {self.features} features, for {kind}"),
            ("largest feature", short(self.largest_feature), "its share of x's variance; at 1 the others are not seen"),
            ("conjugate gap", short(self.conjugate_gap), "of the DEQ's kernel and the matched network's, relative"),
            ("tangent gap", short(self.tangent_gap), "the same of the tangent kernels, up to a factor"),
            ("DEQ kernel", str(self.deq), "error with the DEQ's tangent kernel, ± its standard error; 1 is a constant's"),
            ("matched kernel", str(self.matched), "the same with the matched explicit network's"),
            ("DEQ kernel, n/2", str(self.deq_half), "the same with half of the samples"),
            ("DEQ kernel, n/4", str(self.deq_quarter), "the same with a quarter of them"),
            ("neighbours", str(self.neighbours), "error of the mean of the nearest neighbours"),
            ("trees", str(self.trees), "error of a forest, which chooses among the features"),
            ("learnt metric", str(self.metric), "error of a kernel that chooses directions in x from the labels"),
            ("missed", short(self.missed), "share of what the best of these learns that the kernels miss"),
            ("head energy", short(self.head_energy), "share of the label in the kernel's first √n directions"),
            ("directions", short(self.directions), "directions that hold 90 % of the label, over n; noise has 0.9"),
            ("steps", f"{float(short(self.steps)):g}", "of gradient descent with the kernel until 90 % of the label is fitted"),
            ("disagreement", short(self.disagreement), "of nearest neighbours: 0 for a smooth label, 1 for noise"),
            ("steepness", steepness, "slope between nearest neighbours, its 95 % quantile over its median"),
        ]


@torch.no_grad()
def evidence(
    x: Array, y: Any, net: Implicit | None = None, most: int = MOST_SAMPLES, generator: torch.Generator | None = None
) -> Evidence:
    """Measurements of the task of predicting y, numbers (n,) or (n, K) or classes (n,), from samples x (n, p).

    x is centred, scaled to root mean square norm 1, and gets a constant feature of the size of the others, in place of a bias.
    Classes become centred one-hot vectors; numbers are standardised. At most `most` samples, drawn by `generator`, are used.
    """
    rows = samples(x).detach().cpu().double()
    if len(rows) < FEWEST_SAMPLES:
        raise BadInput(f"There are {len(rows)} samples; {FEWEST_SAMPLES} at least are needed to leave some out.")
    labels = Targets.numbered(y, len(rows))
    targets = labels.standardised()
    random = generator or torch.Generator().manual_seed(0)
    net = net or Implicit("relu", var_a=0.2)
    chosen = torch.randperm(len(rows), generator=random)[:most]
    used, wanted = standardised(rows[chosen]), _centred(targets[chosen])
    inputs, n = _with_constant(used), len(chosen)
    explicit = design(net, inputs[:_DESIGN_SAMPLES], tau0=1.0, family="matched").explicit
    deq, matched = exact_kernels(net, inputs, tau0=1.0), exact_kernels(explicit, inputs)
    few = slice(min(n, _SCALED_GAP_SAMPLES))
    deq_spectrum, matched_spectrum = (KernelSpectrum.of(kernels.tangent, wanted) for kernels in (deq, matched))
    energy = _energy(deq_spectrum)
    distances = torch.cdist(used, used).fill_diagonal_(math.inf)
    disagreement, steepness = _between_neighbours(distances, wanted)
    early = slice(min(n, _METRIC_SAMPLES))
    chief = _chief_directions(used[early])
    forest_seed = int(torch.randint(2**31 - 1, (), generator=random))
    return Evidence(
        net=net,
        explicit=explicit,
        samples=n,
        of_samples=len(rows),
        features=rows.shape[1],
        outputs=targets.shape[1],
        classes=labels.classes is not None,
        largest_feature=float(used.square().mean(0).max()),
        conjugate_gap=relative_gap(deq.conjugate, matched.conjugate),
        tangent_gap=best_scaled_gap(deq.tangent[few, few], matched.tangent[few, few])[0],
        head_energy=float(energy[math.isqrt(n) - 1]),
        directions=(int((energy < FITTED).sum()) + 1) / n,
        steps=_steps(deq_spectrum),
        deq=_kernel_error(deq_spectrum, wanted),
        matched=_kernel_error(matched_spectrum, wanted),
        deq_half=_kernel_error_of(deq.tangent, wanted, n // 2),
        deq_quarter=_kernel_error_of(deq.tangent, wanted, n // 4),
        neighbours=_left_out(lambda old, new: _neighbour_mean(distances, wanted, old, new), wanted),
        trees=_left_out(lambda old, new: _forest(used, wanted, old, new, forest_seed), wanted),
        metric=_left_out(lambda old, new: _learnt_metric(chief, _centred(wanted[early]), old, new), wanted[early]),
        disagreement=disagreement,
        steepness=steepness,
    )


def _energy(spectrum: KernelSpectrum) -> Tensor:
    """Σ_{j ≤ k} ‖u_jᵀT‖²/‖T‖² over the k leading directions, (n,)."""
    total = spectrum.along.flip(0).square().sum(1).cumsum(0)
    return total / total[-1]


def _steps(spectrum: KernelSpectrum) -> float:
    """The least t with Σ_k e^(−2tλ_k/λ_1) ‖u_kᵀT‖² ≤ ‖T‖²/10: gradient flow in steps of 1/λ_1."""
    rates, energy = spectrum.values / spectrum.values[-1], spectrum.along.square().sum(1)
    times = torch.logspace(-1, 12, 261, dtype=torch.float64)  # within 12 %
    left = torch.exp(-2.0 * times[:, None] * rates) @ energy / energy.sum()
    reached = times[left <= 1.0 - FITTED]
    return float(reached[0]) if len(reached) else math.inf


def _kernel_error(spectrum: KernelSpectrum, targets: Tensor) -> LeftOut:
    """The error of ridge regression with each fold in turn left out.

    With A = K + λI the error on a fold b, without it, is [(A⁻¹)_bb]⁻¹ (A⁻¹T)_b: one decomposition of K serves all folds and
    ridges. λ is the one of the smallest leave-one-out error.
    """
    shrink = spectrum.shrink(spectrum.best_level(RIDGES))
    errors = []
    for fold in _folds(len(targets)):
        own = spectrum.vectors[fold] * shrink
        missed = torch.linalg.solve(own @ spectrum.vectors[fold].T, own @ spectrum.along)
        errors.append(_relative(missed, targets[fold]))
    return LeftOut.of(errors)


def _kernel_error_of(kernel: Tensor, targets: Tensor, count: int) -> LeftOut:
    """The error with the first `count` samples only, which are in random order."""
    few, some = slice(max(FOLDS, count)), _centred(targets[: max(FOLDS, count)])
    return _kernel_error(KernelSpectrum.of(kernel[few, few], some), some)


def _left_out(predict: Predict, targets: Tensor) -> LeftOut:
    errors = []
    for fold in _folds(len(targets)):
        rest = torch.cat([torch.arange(fold.start), torch.arange(fold.stop, len(targets))])
        new = torch.arange(fold.start, fold.stop)
        errors.append(_relative(predict(rest, new) - targets[new], targets[new]))
    return LeftOut.of(errors)


def _relative(missed: Tensor, targets: Tensor) -> float:
    """The error in units of the constant's; 1 if all labels of the fold equal the mean."""
    size = float(targets.square().sum())
    return float(missed.square().sum()) / size if size > 0.0 else 1.0


def _folds(n: int) -> list[slice]:
    """Slices of samples, which are in random order."""
    ends = [n * k // FOLDS for k in range(FOLDS + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends)]


def _between_neighbours(distances: Tensor, targets: Tensor) -> tuple[float, float]:
    """Disagreement Σ‖t_i − t_j‖²/(2 Σ‖t_i‖²), j the nearest neighbour of i, and steepness, the 95 % quantile of the slopes
    ‖t_i − t_j‖/‖x_i − x_j‖ over their median."""
    length, nearest = distances.min(1)
    change = (targets - targets[nearest]).square().sum(1)
    slopes = (change.sqrt() / length)[length > 0.0]
    median = float(slopes.median()) if len(slopes) else 0.0
    steepness = float(slopes.quantile(0.95)) / median if median > 0.0 else math.inf
    return float(change.sum() / (2.0 * targets.square().sum())), steepness


def _neighbour_mean(distances: Tensor, targets: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """The mean target of the nearest neighbours, as many as are best for the old samples themselves."""
    known, counts = targets[old], [k for k in NEIGHBOURS if k < len(old)]
    order = distances[old][:, old].topk(counts[-1], largest=False).indices
    best = min(counts, key=lambda k: float((known[order[:, :k]].mean(1) - known).square().sum()))
    return known[distances[new][:, old].topk(best, largest=False).indices].mean(1)


def _forest(x: Tensor, targets: Tensor, old: Tensor, new: Tensor, seed: int) -> Tensor:
    from sklearn.ensemble import ExtraTreesRegressor  # most of a second to import, and nothing else here needs it

    forest = ExtraTreesRegressor(_TREES, max_features=min(_TREE_FEATURES, x.shape[1]), random_state=seed)
    known = targets[old].numpy()
    forest.fit(x[old].numpy(), known[:, 0] if known.shape[1] == 1 else known)
    return torch.from_numpy(forest.predict(x[new].numpy())).reshape(len(new), -1)


def _learnt_metric(x: Tensor, targets: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """Kernel regression with k(x, x') = e^(−‖x − x'‖_M/√2): M = I first, then the mean of ∇f∇fᵀ of the previous fit, which
    stretches the directions in which the label changes, as in a recursive feature machine. ‖x‖_M has root mean square 1."""
    root, known = torch.eye(x.shape[1], dtype=x.dtype), targets[old]
    for _ in range(_METRIC_ROUNDS):
        z = _at_unit_size(x @ root)
        kernel, alpha = _laplace_fit(z[old], known)
        # ∂k/∂z_i = −(z_i − z_j) k/(√2 d); the scale of M absorbs constant factors.
        weight = (kernel / torch.cdist(z[old], z[old]).clamp(min=1e-6)).fill_diagonal_(0.0)
        pulls = [weight @ (a[:, None] * z[old]) - (weight @ a)[:, None] * z[old] for a in alpha.T]
        slopes = torch.cat(pulls) @ root.T
        values, vectors = torch.linalg.eigh(slopes.T @ slopes)
        if float(values[-1]) <= 0.0:
            break  # a flat fit has no direction to prefer
        root = vectors * (values.clamp(min=0.0) / values[-1]).sqrt()
    z = _at_unit_size(x @ root)
    return torch.exp(-torch.cdist(z[new], z[old]) / math.sqrt(2.0)) @ _laplace_fit(z[old], known)[1]


def _laplace_fit(z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    kernel = torch.exp(-torch.cdist(z, z) / math.sqrt(2.0))
    spectrum = KernelSpectrum.of(kernel, targets)
    return kernel, spectrum.coefficients(spectrum.best_level(_METRIC_RIDGES))


def _at_unit_size(z: Tensor) -> Tensor:
    return z / z.square().sum(1).mean().sqrt()


def _chief_directions(x: Tensor) -> Tensor:
    """The leading principal components of x."""
    return x if x.shape[1] <= _METRIC_FEATURES else x @ leading_directions(x, _METRIC_FEATURES)


def _with_constant(x: Tensor) -> Tensor:
    p = x.shape[1]
    constant = torch.full((len(x), 1), 1.0 / math.sqrt(p), dtype=x.dtype)
    return torch.cat([x, constant], dim=1) * math.sqrt(p / (p + 1.0))


def _centred(targets: Tensor) -> Tensor:
    return targets - targets.mean(0)
