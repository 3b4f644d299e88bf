"""The explicit network of one or two layers that is nearest to a DEQ's kernel on samples. Ref: docs/theory.md, section 7."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import least_squares

from notsodeep.activations import Activation, ActivationLike, Rectifier, activation
from notsodeep.activations.combination import combined, stretched
from notsodeep.arguments import count, shown
from notsodeep.errors import BadInput
from notsodeep.kernels.names import Kernel
from notsodeep.matching.layers import LINE, Atom, Layers, atoms
from notsodeep.matching.pairs import Pairs
from notsodeep.matching.result import Optimum
from notsodeep.matching.semidefinite import Minimum, nearest_semidefinite
from notsodeep.matching.series import entries
from notsodeep.theory.architecture import Explicit

STRETCHES = (0.5, 0.8, 1.0, 1.2, 1.6)
# Directions in which a dictionary has less than this of its largest power are nearly the same function: to use them is to take
# large weights that cancel. The proof of optimality speaks of the directions above the second share alone.
_USED, _PROVEN = 1e-7, 1e-10
_FIRST_STEPS = 12  # from every start, before the best goes on
_ENOUGH, _SECOND = 5e-4, 0.7  # the error above which a layer takes φ twice, and the stretch at which the second one starts


@dataclass(frozen=True)
class Fitted:
    """The family "fitted": layers that are sums of activations from a dictionary, nearest to the DEQ's kernel on samples.

    Args:
        depth: 1 or 2 hidden layers.
        dictionary: Activations; by default the line x and the DEQ's own φ(b x), for b = .5, .8, 1, 1.2, 1.6 in one layer,
            for the best b in each of two, or the best two where one is not near enough.

    Raises:
        BadInput: Another depth, or a dictionary that is empty, repeats an activation or holds none.
    """

    depth: int = 1
    dictionary: tuple[Activation, ...] | None = None

    def __init__(self, depth: int = 1, dictionary: Sequence[ActivationLike] | None = None) -> None:
        if count(depth, "depth") > 2:
            raise BadInput(f"A fitted network has 1 or 2 hidden layers; got depth={depth}.")
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "dictionary", None if dictionary is None else _dictionary(dictionary))

    def __str__(self) -> str:
        return "fitted" if self.depth == 1 else "fitted:2"

    def of(self, phi: Activation, pairs: Pairs) -> tuple[Explicit, Optimum | None]:
        """The network for a DEQ of activation φ, and of one layer, for the conjugate kernel, the proof of how near."""
        if self.depth == 1 and list(pairs.targets) == [Kernel.CONJUGATE]:
            given = self.dictionary or (LINE, *dict.fromkeys(stretched(phi, b) for b in STRETCHES))
            return one_layer(given, pairs)
        if self.dictionary is not None:
            return nearest(Layers(atoms(self.dictionary, pairs), self.depth, pairs))[0], None
        explicit, error = nearest(Layers(atoms((phi, LINE), pairs, free=True), self.depth, pairs))
        if error > _ENOUGH and not isinstance(phi, Rectifier):
            two = stretched(phi, _SECOND)
            richer, less = nearest(Layers(atoms((phi, two, LINE), pairs, free=True), self.depth, pairs))
            explicit = richer if less < error else explicit
        return explicit, None


def one_layer(dictionary: Sequence[Activation], pairs: Pairs) -> tuple[Explicit, Optimum]:
    """σ = Σ_k w_k ψ_k nearest to the pairs' kernel: a start from the semidefinite minimum, then least squares on w."""
    parts = atoms(dictionary, pairs)
    forms, at_tau0 = _forms(parts, pairs)
    target = pairs.targets[Kernel.CONJUGATE].numpy()
    diagonal = np.zeros(len(target))
    diagonal[len(pairs.first) :] = 1.0
    bases = [_independent(at_tau0, share) for share in (_PROVEN, _USED)]
    # Of the power at τ0 with which a form is as long as the target: the fits are of numbers near 1, whatever the data's unit.
    bases = [basis / np.sqrt(np.linalg.norm(pairs.weights[Kernel.CONJUGATE].numpy())) for basis in bases]
    reduced = [np.einsum("ka,klN,lb->abN", basis, forms, basis, optimize=True) for basis in bases]
    minima = [nearest_semidefinite(one, target, diagonal) for one in reduced]
    weights, error = _single(minima[1], reduced[1], target)
    layer = combined((float(w), part.phi) for w, part in zip(bases[1] @ weights, parts, strict=True))
    return Explicit([layer]).centred(pairs.tau0), Optimum(error, min(minima[0].bound, error), minima[1].rank)


def nearest(layers: Layers) -> tuple[Explicit, float]:
    """The nearest of the fits from three starts, and its error: the first atom in every layer, and mostly the last before it or
    behind it."""
    unit = np.eye(len(layers.parts))
    first, mixed = 0.9 * unit[0] + 0.1 * unit[-1], 0.2 * unit[0] + 0.8 * unit[-1]
    starts = ([unit[0], unit[0]], [mixed, first], [first, mixed])
    begun = [layers.fit(layers.start(*start[-layers.depth :]), _FIRST_STEPS) for start in starts]
    unknowns, error = layers.fit(min(begun, key=lambda fit: fit[1])[0])
    return layers.network(unknowns), error


def _dictionary(given: Sequence[ActivationLike]) -> tuple[Activation, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise BadInput(f"A dictionary is a list of at least one activation, as in ['x', 'tanh']; got {shown(given)}.")
    found = tuple(LINE if isinstance(one, str) and one == "x" else activation(one) for one in given)
    if len(set(found)) < len(found):
        twice = next(one for one in found if found.count(one) > 1)
        raise BadInput(f"The dictionary holds {twice} twice; leave one of them out.")
    return found


def _forms(parts: Sequence[Atom], pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    """K_kl = E[ψ_k(u)ψ_l(v)] at the pairs and on the diagonal, weighted, (K, K, N + n), made symmetric in k and l; and
    E[ψ_k ψ_l] at τ0 (K, K)."""
    numbers = []
    for part in parts:
        one = part.series(pairs.taus)
        one[:, 0] -= one[-1, 0].clone()
        if not bool(torch.isfinite(one[:, :-1]).all()):
            raise BadInput(f"{part.phi} is not finite on the data, so it cannot stand in a dictionary.")
        numbers.append(one.T.contiguous())
    weights = pairs.weights[Kernel.CONJUGATE]
    forms = np.empty((len(parts), len(parts), len(weights)))
    for k, one in enumerate(numbers):
        for m, other in enumerate(numbers[: k + 1]):
            both: Any = sum(entries(a[:, pairs.first], b[:, pairs.second], pairs.rho) for a, b in ((one, other), (other, one)))
            diagonal = (one * other)[:-1].sum(0)[:-1]
            forms[k, m] = forms[m, k] = (torch.cat([0.5 * both, diagonal]) * weights).numpy()
    last = torch.stack([one[:-1, -1] for one in numbers])
    return forms, (last @ last.T).numpy()


def _independent(gram: np.ndarray, share: float) -> np.ndarray:
    """Directions (K, r) of one power that hold at least this share of the largest power of atoms scaled to one power."""
    scale = 1.0 / np.sqrt(gram.diagonal())
    values, vectors = np.linalg.eigh(gram * np.outer(scale, scale))
    kept = values > share * values[-1]
    basis: np.ndarray = scale[:, None] * vectors[:, kept] / np.sqrt(values[kept])
    return basis


def _single(minimum: Minimum, forms: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, float]:
    """The weights w for which w wᵀ is nearest, from the leading eigenvectors of the minimum, and their error."""
    rows, columns = np.triu_indices(len(forms))
    design = forms[rows, columns].T * np.where(rows == columns, 1.0, 2.0)
    orthogonal, reduced = np.linalg.qr(design)
    aim = orthogonal.T @ target
    beyond = max(float(target @ target - aim @ aim), 0.0)

    def errors(w: np.ndarray) -> np.ndarray:
        return np.asarray(reduced @ np.outer(w, w)[rows, columns] - aim)

    values, vectors = np.linalg.eigh(minimum.matrix)
    starts = [np.sqrt(max(values.sum(), 0.0)) * vectors[:, -1], *(vectors * np.sqrt(np.maximum(values, 0.0))).T[-2:]]
    starts.append(starts[-1] + starts[-2])
    fits = [least_squares(errors, start, xtol=1e-14, ftol=1e-14, gtol=1e-14, max_nfev=300) for start in starts]
    found = min(fits, key=lambda fit: float(fit.cost))
    weights = found.x * np.sign(found.x[np.abs(found.x).argmax()])
    return weights, float(np.sqrt(2.0 * found.cost + beyond))
