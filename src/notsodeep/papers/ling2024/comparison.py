"""A DEQ's kernel beside its rivals: norms of the differences, spectra, leading eigenvectors. Shared by L2, L3 and L4."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from notsodeep.data.sources import load
from notsodeep.kernels.compare import best_scaled_gap
from notsodeep.kernels.exact.kernels import exact_kernels
from notsodeep.linalg.eigen import spectral_norm, top_eigenpairs
from notsodeep.matching.design import design
from notsodeep.papers.claims import Claim, about
from notsodeep.papers.experiment import Values
from notsodeep.papers.records import Record
from notsodeep.papers.statistics import Estimate, format_number, mean, of_one_run
from notsodeep.theory.architecture import Explicit, Implicit, Network
from notsodeep.theory.mixture import GaussianMixture
from notsodeep.theory.statistics import MixtureStatistics, tau0

_DIGITS, _VECTORS, _SHOWN = 5, 2, 600
_CURVE_REACH, _CURVE_POINTS = 3.0, 121


@dataclass(frozen=True)
class Unit:
    """`data` is gmm (n samples of p features) or mnist, of which n sixes and eights are taken; `unit_norm` divides each sample
    by its norm."""

    data: str
    n: int
    p: int
    activation: str
    var_a: float
    var_b: float
    seed: int
    unit_norm: bool = False


@dataclass(frozen=True)
class Sizes:
    """The mixture's n and p, and the number of images."""

    mixture_n: int = 800
    mixture_p: int = 1000
    images: int = 6000
    var_a: float = 0.1
    mixture_seeds: int = 5
    image_seeds: int = 2


@dataclass(frozen=True, eq=False)
class Samples:
    """x sorted by class, y the classes as 0 and 1, and the class statistics that the theorem needs."""

    x: Tensor
    y: Tensor
    stats: MixtureStatistics
    description: str


def samples(unit: Unit, device: torch.device) -> Samples:
    if unit.data == "gmm":
        mixture = GaussianMixture.two_classes(unit.p)
        x, y = mixture.sample(unit.n, torch.Generator().manual_seed(unit.seed))
        x, text = x.to(device), f"two-class Gaussian mixture, n = {unit.n}, p = {unit.p}"
        if not unit.unit_norm:
            return Samples(x, y, MixtureStatistics.from_mixture(mixture, x, y), text)
    else:
        found = load(f"{unit.data}:n={unit.n},classes=6/8,seed={unit.seed}")
        assert found.y is not None
        order = found.y.argsort(stable=True)
        x, y = found.x[order].to(device, torch.float64), torch.searchsorted(found.y.unique(), found.y[order])
        text = found.description
    if unit.unit_norm:
        x, text = x / x.norm(dim=1, keepdim=True), f"{text}, each sample divided by its norm"
    return Samples(x, y, MixtureStatistics.from_labels(x, y), text)


def compare(
    reference: Mapping[str, Tensor], rivals: Mapping[str, Mapping[str, Tensor]], given: Samples, pictures: bool
) -> Values:
    """For each kernel: ‖K*‖, and of each rival the norms of the difference and |⟨v_i, v_i*⟩| of the leading eigenvectors; with
    `pictures` the spectra too, and the eigenvectors at up to 600 evenly spaced samples."""
    shown = torch.linspace(0, len(given.x) - 1, min(len(given.x), _SHOWN) if pictures else 0).round().long()
    kernels = {}
    for name, exact in reference.items():
        norm, size = spectral_norm(exact), float(exact.norm())
        vectors = top_eigenpairs(exact, _VECTORS).vectors
        described: Values = {}
        for rival, theirs in rivals.items():
            other = theirs[name]
            gap = spectral_norm(exact - other)
            columns = top_eigenpairs(other, _VECTORS).vectors
            described[rival] = {
                "absolute": gap,
                "relative": gap / norm,
                "frobenius": float((exact - other).norm()) / size,
                "cosines": [float(c) for c in (vectors * columns).sum(0).abs()],
            } | _spectrum(other, columns, shown)
        kernels[name] = {"norm": norm, "rivals": described} | _spectrum(exact, vectors, shown)
    return {
        "description": given.description,
        "n": given.x.shape[0],
        "p": given.x.shape[1],
        "tau0": tau0(given.x),
        "kernels": kernels,
        "shown": {"classes": given.y[shown].tolist()} if pictures else {},
    }


def compare_designs(unit: Unit, device: torch.device, more: Callable[[Implicit, float], dict[str, Explicit]]) -> Values:
    """The DEQ against the network designed for it, the plain one of as many layers, as it is and times its best factor, and
    what `more` adds."""
    given = samples(unit, device)
    net, radius = Implicit(unit.activation, unit.var_a, unit.var_b), tau0(given.x)
    found = design(net, tau0=radius)
    plain = Explicit([net.phi] * found.explicit.depth).centred(radius)
    networks: dict[str, Explicit] = {"designed": found.explicit, **more(net, radius), "plain": plain}
    reference = kernels_of(net, given.x, radius)
    rivals = {name: kernels_of(network, given.x) for name, network in networks.items()}
    factors = {name: best_scaled_gap(exact, rivals["plain"][name])[1] for name, exact in reference.items()}
    rivals["plain rescaled"] = {name: factors[name] * kernel for name, kernel in rivals["plain"].items()}
    return compare(reference, rivals, given, pictures=unit.seed == 0) | {
        "activations": _curves(net, found.explicit, radius),
        "scalars": {c.name: {"deq": c.target, "explicit": c.reached} for c in found.comparisons},
        "family": found.family,
        "networks": {"DEQ": str(net)} | {name: str(network) for name, network in networks.items()},
        "factors": factors,
    }


def kernels_of(net: Network, x: Tensor, radius: float | None = None) -> dict[str, Tensor]:
    both = exact_kernels(net, x, tau0=radius)
    return {"conjugate": both.conjugate, "tangent": both.tangent}


def units(
    sizes: Sizes, mixture_activation: str, image_activation: str, norms: tuple[bool, ...] = (False,)
) -> list[Unit]:
    """The mixture and MNIST's sixes and eights, with the norms as they are and, where asked, of one."""
    data = (
        ("gmm", sizes.mixture_n, sizes.mixture_p, mixture_activation, sizes.mixture_seeds),
        ("mnist", sizes.images, 784, image_activation, sizes.image_seeds),
    )
    return [
        Unit(name, n, p, activation, sizes.var_a, 1.0 - sizes.var_a, seed, unit_norm)
        for name, n, p, activation, seeds in data
        for unit_norm in norms
        for seed in range(seeds)
    ]


def cost(unit: Unit) -> float:
    return float(3.0 + 150.0 * (unit.n / 6000) ** 2.7)


def comparable(records: Sequence[Record]) -> list[Record]:
    """Of one size for each kind of data."""
    return of_one_run(records, ("data", "unit_norm"), ("n", "p", "activation", "var_a", "var_b"))


def absolute_gap(records: Sequence[Record], data: str, rival: str, unit_norm: bool = False) -> Estimate | None:
    """‖G* − G‖ over the seeds, or None where there is no such record."""
    found: list[float] = [
        record.values["kernels"]["conjugate"]["rivals"][rival]["absolute"]
        for record in records
        if record.config["data"] == data and record.config["unit_norm"] == unit_norm
    ]
    return mean(found) if found else None


@dataclass(frozen=True)
class Printed:
    """A norm ‖G* − G‖ that the paper prints, and the n of it."""

    norm: float
    n: int

    def claim(self, id: str, claim: str, records: Sequence[Record], data: str, rival: str, command: str) -> list[Claim]:
        """That ours is about that, or less. The norm of a kernel grows like n: at another n the bound is theirs times the
        ratio of the two."""
        ours = absolute_gap(records, data, rival)
        if ours is None:
            return []
        n = next(record.config["n"] for record in records if record.config["data"] == data)
        bound = self.norm * n / self.n
        where = f"(n = {n})" if n == self.n else f"(n = {n}, to be held against {bound:.2g})"
        return [
            Claim(
                id=id,
                claim=claim,
                paper=f"≈ {self.norm:g} (n = {self.n})",
                ours=f"{format_number(ours.value)} {where}",
                spread=ours.spelt(".2g", "draw"),
                verdict=about(ours.value, bound, ours.half_width),
                command=command,
            )
        ]


def _spectrum(kernel: Tensor, vectors: Tensor, shown: Tensor) -> Values:
    if len(shown) == 0:
        return {}
    values = torch.linalg.eigvalsh(kernel).flip(0).tolist()
    some = vectors[shown.to(vectors.device)].T.tolist()
    return {"eigenvalues": [_short(v) for v in values], "vectors": [[_short(v) for v in row] for row in some]}


def _curves(net: Implicit, explicit: Explicit, radius: float) -> dict[str, Any]:
    reach = _CURVE_REACH * net.deviation(radius)
    x = torch.linspace(-reach, reach, _CURVE_POINTS, dtype=torch.float64)
    curves = {"DEQ": net.centred(radius).phi(x)}
    curves |= {f"layer {depth}": layer(x) for depth, layer in enumerate(explicit.layers, start=1)}
    return {
        "x": [_short(v) for v in x.tolist()],
        "curves": {name: [_short(v) for v in y.tolist()] for name, y in curves.items()},
    }


def _short(value: float) -> float:
    """With as many digits as a picture can show."""
    return float(f"{value:.{_DIGITS - 1}e}")
