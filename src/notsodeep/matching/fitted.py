"""The explicit network of one or two layers that is nearest to a DEQ's kernel on samples. Ref: docs/theory.md, section 7."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import least_squares

from notsodeep.activations import Activation, ActivationLike, Polynomial, Rectifier, activation
from notsodeep.activations.combination import combined, stretched
from notsodeep.activations.mixed import units_of
from notsodeep.activations.wrappers import affine_parts
from notsodeep.arguments import choice, count, shown
from notsodeep.errors import BadInput
from notsodeep.kernels.names import Kernel
from notsodeep.matching.layers import LINE, Atom, Layers, are_exact, atoms
from notsodeep.matching.pairs import Pairs
from notsodeep.matching.result import Optimum
from notsodeep.matching.semidefinite import Minimum, nearest_semidefinite
from notsodeep.matching.series import entries_at
from notsodeep.theory.architecture import Explicit
from notsodeep.theory.scalars import Scalars, scalars

_ODD, _EVEN = activation("tanh"), Polynomial((0.0, 0.0, 1.0))
STRETCHES = (0.5, 0.8, 1.0, 1.2, 1.6)
# Directions in which a dictionary has less than this of its largest power are nearly the same function: to use them is to take
# large weights that cancel. The proof of optimality speaks of the directions above the second share alone.
_USED, _PROVEN = 1e-7, 1e-10
_MOST_PAIRS = 1500  # of a fit that is not linear
_ENOUGH, _ENOUGH_MIXED = 1e-6, 2e-4  # errors above which layers mix two kinds of units, and above which these hold tanh and x²
_FEW_CLOSE = 1e-3  # of all pairs
_WORTH_MIXING, _WORTH_A_KIND = 0.8, 0.7  # of the error: what two kinds, and one more in a single layer, must at most leave


@dataclass(frozen=True)
class Fitted:
    """The family "fitted": layers that are sums of activations from a dictionary, nearest to the DEQ's kernel on samples.

    Args:
        depth: 1 or 2 hidden layers.
        dictionary: Activations; by default the line x and the DEQ's own φ(b x), in one layer for b = .5, .8, 1, 1.2 and 1.6
            times τ*/τ0, in two for the best b of each kind of units, with tanh(b x) where these are not near enough. Given
            ones are not stretched; φ and x among them are where the fit of two layers starts.
        scalars: "free", or "matched": of the networks that have the four scalars of the DEQ's conjugate kernel, as the theorem
            asks, the nearest.

    Raises:
        BadInput: Another depth, another word for the scalars, or a dictionary that is empty, repeats an activation or holds
            none.
    """

    depth: int = 1
    dictionary: tuple[Activation, ...] | None = None
    scalars: Literal["free", "matched"] = "free"

    def __init__(
        self, depth: int = 1, dictionary: Sequence[ActivationLike] | None = None, scalars: Literal["free", "matched"] = "free"
    ) -> None:
        if count(depth, "depth") > 2:
            raise BadInput(f"A fitted network has 1 or 2 hidden layers; got depth={depth}.")
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "dictionary", None if dictionary is None else _dictionary(dictionary))
        object.__setattr__(self, "scalars", choice(scalars, "scalars", ("free", "matched")))

    @classmethod
    def named(cls, family: str) -> Fitted:
        """The family of a name: fitted, with :1 or :2 for the depth and :matched for the scalars behind it."""
        _, *arguments = family.split(":")
        return cls(2 if "2" in arguments else 1, scalars="matched" if "matched" in arguments else "free")

    def __str__(self) -> str:
        return "fitted" + ":2" * (self.depth == 2) + ":matched" * (self.scalars == "matched")

    def of(self, pairs: Pairs) -> tuple[Explicit, Optimum | None]:
        """The network for the pairs' DEQ, and of one layer, for the conjugate kernel, the proof of how near."""
        phi = pairs.net.phi
        if Kernel.CONJUGATE not in pairs.targets and self.scalars == "matched":
            raise BadInput("scalars='matched' keeps the scalars of the conjugate kernel; ask for match='conjugate' or 'both'.")
        if self.depth == 1 and list(pairs.targets) == [Kernel.CONJUGATE] and self.scalars == "free":
            # Stretches of a rectifier are its multiples.
            stretches = STRETCHES if not isinstance(affine_parts(phi)[0], Rectifier) else (1.0,)
            given = self.dictionary or (LINE, *dict.fromkeys(stretched(phi, pairs.stretch * b) for b in stretches))
            return one_layer(given, pairs)
        return self._nearest(phi, pairs), None

    def _nearest(self, phi: Activation, pairs: Pairs) -> Explicit:
        """The nearest of ever richer networks, each tried where those before are not near enough."""
        pairs = pairs.fewer(_MOST_PAIRS)
        free, given = self.dictionary is None, self.dictionary or (phi, LINE)
        kept = scalars(pairs.net, pairs.tau0) if self.scalars == "matched" else None
        plain, mixed = (1, 1)[: self.depth], (1, 2) if Kernel.TANGENT in pairs.targets and kept is None else (2, 1)
        best, error = nearest(atoms(given, pairs, free), plain, pairs, kept)
        richer = [(given, mixed, _ENOUGH)]
        # A sum of kinked and smooth functions has no closed form: near |ρ| = 1 each pair costs an integral.
        if free and not (phi.kinks and pairs.close > _FEW_CLOSE):
            tangent = Kernel.TANGENT in pairs.targets
            more, kinds = ((phi, LINE, _ODD), mixed) if tangent else ((phi, LINE, _EVEN, _ODD), (2, 2))
            richer.append((tuple(dict.fromkeys(more)), kinds, _ENOUGH_MIXED))
        for dictionary, kinds, enough in richer:
            if error > enough:
                network, less = nearest(atoms(dictionary, pairs, free), kinds if self.depth > 1 else (2,), pairs, kept)
                if less < _WORTH_MIXING * error:
                    best, error = network, less
        return best


def one_layer(dictionary: Sequence[Activation], pairs: Pairs) -> tuple[Explicit, Optimum | None]:
    """σ = Σ_k w_k ψ_k nearest to the pairs' kernel: a start from the semidefinite minimum, then least squares on w.

    Without a proof where samples point one way so nearly that the atoms' kernels are not known well enough.
    """
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
    weights, error = _kinds(minima[1], reduced[1], target)
    kinds = (math.sqrt(len(weights)) * bases[1] @ w for w in weights)  # a layer's kernel is the mean of those of its kinds
    layer = units_of(combined((float(w), part.phi) for w, part in zip(kind, parts, strict=True)) for kind in kinds)
    proof = Optimum(error, min(minima[0].bound, error), minima[1].rank) if are_exact(parts, pairs) else None
    return Explicit([layer]).centred(pairs.tau0), proof


def nearest(
    parts: tuple[Atom, ...], kinds: tuple[int, ...], pairs: Pairs, kept: Scalars | None = None
) -> tuple[Explicit, float]:
    """The layers of so many kinds of units that are nearest, and their error, from a start that is one step of the DEQ itself.

    A DEQ has the covariance Λ = σ_b² S + σ_a² K(Λ). With S in place of Λ on the right, that is the kernel of a layer of units
    √σ_b² x and √σ_a² φ(b x), b = τ*/τ0, and nearly that of their sum; a layer φ(b x) upon it is the step.

    Args:
        parts: What the units are sums of: φ, or the first for it, and x, or all others for it.
        kinds: How many kinds of units each layer has, 1 or 2.
        pairs: The samples and the kernels there.
        kept: Scalars of which the conjugate kernel's four are to be kept.
    """
    net, unit, phis = pairs.net, np.eye(len(parts)), [part.phi for part in parts]
    here = phis.index(net.phi) if net.phi in phis else 0
    others = np.delete(unit, here, axis=0)
    phi = unit[here]
    line = unit[phis.index(LINE)] if LINE in phis else others.mean(0) if len(others) else phi
    step = np.array([math.sqrt(net.var_a) * phi, math.sqrt(net.var_b) * line]) / math.sqrt(net.var_a + net.var_b)
    below = [step if kinds[0] > 1 else step.sum(0, keepdims=True)] if len(kinds) > 1 else []
    last = np.array([phi] if kinds[-1] == 1 else [0.7 * phi + 0.1 * line, 0.5 * (phi - line)])
    layers = Layers(parts, kinds, pairs, kept)
    starts = [layers.start(*below, last)]
    if kinds == (2, 2) and _ODD in phis[here + 1 :] and LINE in phis:
        # What φ lacks is often a little of x − tanh(b x), which is small itself: it is not found from weights that are 0.
        small, odd = 0.2 * line, 0.3 * unit[phis.index(_ODD)]
        starts.append(layers.start(below[0] + np.array([small - odd, 0.0 * odd]), last + np.array([0.0 * odd, odd])))
    unknowns, error = layers.fit(*starts)
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
        numbers.append(one)
    weights = pairs.weights[Kernel.CONJUGATE]
    forms = np.empty((len(parts), len(parts), len(weights)))
    for k, one in enumerate(numbers):
        for m, other in enumerate(numbers[: k + 1]):
            ways = ((one, other), (other, one))
            both: Any = sum(entries_at(pairs.first, pairs.second, pairs.rho, *way) for way in ways)
            diagonal = (one * other)[:-1, :-1].sum(1)
            forms[k, m] = forms[m, k] = (torch.cat([0.5 * both, diagonal]) * weights).numpy()
    last = torch.stack([one[-1, :-1] for one in numbers])
    return forms, (last @ last.T).numpy()


def _independent(gram: np.ndarray, share: float) -> np.ndarray:
    """Directions (K, r) of one power that hold at least this share of the largest power of atoms scaled to one power."""
    scale = 1.0 / np.sqrt(gram.diagonal())
    values, vectors = np.linalg.eigh(gram * np.outer(scale, scale))
    kept = values > share * values[-1]
    basis: np.ndarray = scale[:, None] * vectors[:, kept] / np.sqrt(values[kept])
    return basis


def _kinds(minimum: Minimum, forms: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, float]:
    """Weights w_q, a row a kind of unit, for which Σ_q w_q w_qᵀ is nearest, and their error: of the fewest kinds that are not
    much farther than the minimum."""
    rows, columns = np.triu_indices(len(forms))
    design = forms[rows, columns].T * np.where(rows == columns, 1.0, 2.0)
    orthogonal, reduced = np.linalg.qr(design)
    aim = orthogonal.T @ target
    beyond = max(float(target @ target - aim @ aim), 0.0)

    def errors(weights: np.ndarray) -> np.ndarray:
        kinds = weights.reshape(-1, len(forms))
        return np.asarray(reduced @ (kinds.T @ kinds)[rows, columns] - aim)

    values, vectors = np.linalg.eigh(minimum.matrix)
    roots = (vectors * np.sqrt(np.maximum(values, 0.0))).T[::-1]
    alone = [
        np.sqrt(max(values.sum(), 0.0)) * vectors[:, -1],
        roots[0],
        roots[1] if len(roots) > 1 else roots[0],
        sum(roots[:2]),
    ]
    for number in range(1, minimum.rank + 1):
        starts = alone if number == 1 else [roots[:number].ravel()]
        fits = [least_squares(errors, start, xtol=1e-14, ftol=1e-14, gtol=1e-14, max_nfev=300) for start in starts]
        found = min(fits, key=lambda fit: float(fit.cost))
        error = float(np.sqrt(2.0 * found.cost + beyond))
        if _WORTH_A_KIND * error <= minimum.error:
            break
    weights = found.x.reshape(-1, len(forms))
    return weights * np.sign(np.take_along_axis(weights, np.abs(weights).argmax(1)[:, None], 1)), error
