"""A DEQ's kernel against its rivals: norms of the differences, spectra, leading eigenvectors. Shared by L2, L3 and L4."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from notsodeep.papers.records import Record, of_one_run, where
from notsodeep.papers.statistics import Interval, format_number, mean
from notsodeep.theory.architecture import Explicit, Implicit, Network
from notsodeep.theory.mixture import GaussianMixture
from notsodeep.theory.statistics import MixtureStatistics, tau0

TWIN = "closest twin"
_DIGITS, _VECTORS, _SHOWN = 5, 2, 600
_DESIGN_SAMPLES, _DESIGN_SEED = 1500, 1_000_000
_CLASSES = "6/8"
_CURVE_REACH, _CURVE_POINTS = 3.0, 121


@dataclass(frozen=True)
class Unit:
    """One comparison. `data` is gmm (n samples of p features) or mnist (n sixes and eights); `unit_norm` makes norms 1."""

    data: str
    n: int
    p: int
    activation: str
    var_a: float
    var_b: float
    seed: int
    unit_norm: bool = False

    @property
    def cost(self) -> float:
        return float(3.0 + 150.0 * (self.n / 6000) ** 2.7)


@dataclass(frozen=True)
class Sizes:
    """Settings: the mixture's n and p, the number of images, σ_a², and how many seeds of each."""

    mixture_n: int = 800
    mixture_p: int = 1000
    images: int = 6000
    var_a: float = 0.1
    mixture_seeds: int = 5
    image_seeds: int = 2

    def quick(self) -> Sizes:
        """The same with fewer images and seeds."""
        return replace(self, images=1500, mixture_seeds=2, image_seeds=1)


@dataclass(frozen=True, eq=False)
class LabelledSamples:
    """LabelledSamples x sorted by class, their classes y (0 and 1), and the class statistics of the theorem."""

    x: Tensor
    y: Tensor
    stats: MixtureStatistics
    description: str


def samples(unit: Unit, device: torch.device) -> LabelledSamples:
    """The samples of a unit, on the device."""
    if unit.data == "gmm":
        mixture = GaussianMixture.two_classes(unit.p)
        x, y = mixture.sample(unit.n, torch.Generator().manual_seed(unit.seed))
        x, text = x.to(device), f"two-class Gaussian mixture, n = {unit.n}, p = {unit.p}"
        if not unit.unit_norm:
            return LabelledSamples(x, y, MixtureStatistics.from_mixture(mixture, x, y), text)
    else:
        found = load(f"{unit.data}:n={unit.n},classes={_CLASSES},seed={unit.seed}")
        assert found.y is not None
        order = found.y.argsort(stable=True)
        x, y = found.x[order].to(device, torch.float64), torch.searchsorted(found.y.unique(), found.y[order])
        text = found.description
    if unit.unit_norm:
        x, text = x / x.norm(dim=1, keepdim=True), f"{text}, each sample divided by its norm"
    return LabelledSamples(x, y, MixtureStatistics.from_labels(x, y), text)


def other_samples(unit: Unit) -> Tensor:
    """Samples of the same kind as a unit's and none of them, to design the closest twin on."""
    count = min(unit.n, _DESIGN_SAMPLES)
    if unit.data == "gmm":
        mixture = GaussianMixture.two_classes(unit.p)
        return mixture.sample(count, torch.Generator().manual_seed(_DESIGN_SEED + unit.seed))[0]
    return load(f"{unit.data}:n={unit.n + count},classes={_CLASSES},seed={unit.seed}").x[unit.n :].double()


def compare(
    reference: Mapping[str, Tensor], rivals: Mapping[str, Mapping[str, Tensor]], given: LabelledSamples, pictures: bool
) -> Values:
    """‖K*‖ of each kernel, and for each rival the norms of the difference and |⟨v_i, v_i*⟩| of the leading eigenvectors.

    With `pictures` also the spectra, and the eigenvectors at up to 600 evenly spaced samples.
    """
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


def compare_designs(
    unit: Unit, device: torch.device, more: Callable[[Implicit, float], dict[str, Explicit]] = lambda *_: {}
) -> Values:
    """The DEQ against its designed network, its closest twin, the plain network of as many layers as designed (as it is, and
    rescaled), and those of `more`."""
    given = samples(unit, device)
    net, radius = Implicit(unit.activation, unit.var_a, unit.var_b), tau0(given.x)
    found = design(net, tau0=radius, family="matched")
    plain = Explicit([net.phi] * found.explicit.depth).centred(radius)
    twin = design(net, other_samples(unit), tau0=radius).explicit
    networks: dict[str, Explicit] = {"designed": found.explicit, **more(net, radius), TWIN: twin, "plain": plain}
    reference = kernels_of(net, given.x, radius)
    rivals = {name: kernels_of(network, given.x) for name, network in networks.items()}
    factors = {name: best_scaled_gap(exact, rivals["plain"][name])[1] for name, exact in reference.items()}
    rivals["plain rescaled"] = {name: factors[name] * kernel for name, kernel in rivals["plain"].items()}
    return compare(reference, rivals, given, pictures=unit.seed == 0) | {
        "activations": _curves(net, found.explicit, twin, radius),
        "scalars": {c.name: {"deq": c.target, "explicit": c.reached} for c in found.comparisons},
        "family": found.family,
        "networks": {"DEQ": str(net)} | {name: str(network) for name, network in networks.items()},
        "factors": factors,
    }


def kernels_of(net: Network, x: Tensor, radius: float | None = None) -> dict[str, Tensor]:
    """Both exact kernels, by name."""
    both = exact_kernels(net, x, tau0=radius)
    return {"conjugate": both.conjugate, "tangent": both.tangent}


def units(sizes: Sizes, *, mixture: str, images: str, norms: tuple[bool, ...] = (False,)) -> list[Unit]:
    """Units of the mixture and of MNIST's sixes and eights, each with its activation, for each `unit_norm` in `norms`."""
    data = (
        ("gmm", sizes.mixture_n, sizes.mixture_p, mixture, sizes.mixture_seeds),
        ("mnist", sizes.images, 784, images, sizes.image_seeds),
    )
    return [
        Unit(name, n, p, activation, sizes.var_a, 1.0 - sizes.var_a, seed, unit_norm)
        for name, n, p, activation, seeds in data
        for unit_norm in norms
        for seed in range(seeds)
    ]


def comparable(records: Sequence[Record]) -> list[Record]:
    """The records of one size for each kind of data."""
    return of_one_run(records, ("data", "unit_norm"), ("n", "p", "activation", "var_a", "var_b"))


def absolute_gap(records: Sequence[Record], data: str, rival: str, unit_norm: bool = False) -> Interval | None:
    """‖G* − G‖ over the seeds; None without such a record, or where it has no such rival."""
    rivals = [r.values["kernels"]["conjugate"]["rivals"] for r in where(records, data=data, unit_norm=unit_norm)]
    found = [named[rival]["absolute"] for named in rivals if rival in named]
    return mean(found) if found else None


@dataclass(frozen=True)
class Printed:
    """A norm ‖G* − G‖ that the paper prints, and its n."""

    norm: float
    n: int

    def claim(self, id: str, claim: str, records: Sequence[Record], data: str, rival: str) -> list[Claim]:
        """The claim that ours is about that, or less.

        The norm of a kernel grows like n: at another n the bound is the paper's times the ratio of the two.
        """
        ours = absolute_gap(records, data, rival)
        if ours is None:
            return []
        n = where(records, data=data)[0].config["n"]
        bound = self.norm * n / self.n
        place = f"(n = {n})" if n == self.n else f"(n = {n}, to be held against {bound:.2g})"
        paper, text = f"≈ {self.norm:g} (n = {self.n})", f"{format_number(ours.value)} {place}"
        verdict = about(ours.value, bound, ours.half_width)
        spread = ours.spelt(".2g", "draw")
        return [Claim(id=id, claim=claim, paper=paper, ours=text, spread=spread, verdict=verdict)]


def _spectrum(kernel: Tensor, vectors: Tensor, shown: Tensor) -> Values:
    if len(shown) == 0:
        return {}
    values = torch.linalg.eigvalsh(kernel).flip(0).tolist()
    some = vectors[shown.to(vectors.device)].T.tolist()
    return {"eigenvalues": [_short(v) for v in values], "vectors": [[_short(v) for v in row] for row in some]}


def _curves(net: Implicit, explicit: Explicit, twin: Explicit, radius: float) -> dict[str, Any]:
    reach = _CURVE_REACH * net.deviation(radius)
    x = torch.linspace(-reach, reach, _CURVE_POINTS, dtype=torch.float64)
    curves = {"DEQ": net.centred(radius).phi(x)}
    curves |= {name: sigma(x) for name, sigma in explicit.curves.items()}
    curves |= {f"{TWIN}, {name}": sigma(x) for name, sigma in twin.curves.items()}
    return {
        "x": [_short(v) for v in x.tolist()],
        "curves": {name: [_short(v) for v in y.tolist()] for name, y in curves.items()},
    }


def _short(value: float) -> float:
    """The value in as many digits as a picture can show."""
    return float(f"{value:.{_DIGITS - 1}e}")
