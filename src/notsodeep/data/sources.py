"""Data by one line of text, ``gmm:n=800,p=640``, ``digits``, ``mnist:n=2000,classes=6/8`` or the path of a file: as a whole, or
in a part to learn from and a part to test on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from notsodeep.arguments import flag, is_whole, path, seed as checked_seed, share, shown
from notsodeep.arrays import check_memory, samples
from notsodeep.data.image_sets import IMAGE_SETS, image_set, images
from notsodeep.data.preprocessing import Preprocessing, class_names
from notsodeep.data.standardiser import Standardiser, standardised
from notsodeep.data.tables import READERS, labels_told, read_table
from notsodeep.errors import BadInput
from notsodeep.theory.mixture import GaussianMixture

__all__ = ["Dataset", "Split", "as_found", "load", "load_split", "standardised"]

_MIXTURE = {"n": "800", "p": "640", "seed": "0", "separation": "8", "spread": "8"}
_SOME = {"n": "", "seed": "0", "classes": ""}
_IMAGES = {"split": "train", **_SOME}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples with their labels."""

    x: Tensor
    """Samples, (n, p)."""
    y: Tensor | None
    """Classes (n,), int64, or real numbers, (n,) or (n, K); None without labels."""
    description: str
    """The origin of the data and every step applied to them, in words."""
    classes: tuple[str, ...] | None = None
    """The name of class k is classes[k]."""


@dataclass(frozen=True, eq=False)
class Split:
    """Data to learn from and data to test on, both in the units of the training set."""

    train: Dataset
    """The training set."""
    test: Dataset
    """The test set."""
    standardiser: Standardiser | None = None
    """The mean and the scale of the raw training set, if the data are standardised."""

    @property
    def preprocessing(self) -> Preprocessing:
        """That of a network trained on these x and y: its files then take raw rows and answer with the names of classes."""
        y, names = self.train.y, self.train.classes
        if y is None or y.is_floating_point():
            return Preprocessing(self.standardiser)
        return Preprocessing(self.standardiser, class_names(range(int(y.max()) + 1 if names is None else len(names)), names))


def load(spec: str, standardise: bool | None = None, labels: str | int | None = None) -> Dataset:
    """The data that `spec` names.

    Args:
        spec: ``gmm`` (the two-class mixture of [ling2024]; settings n, p, seed, separation, spread), ``digits``, an image set
            (``mnist``, ``fashion-mnist``, ``cifar10``, ``cifar10-vgg19``), or the path of a .npy, .npz, .csv or .parquet file.
            Settings follow a colon: n=500 draws as many samples at random by seed=0, classes=6/8 keeps these classes only;
            image sets also take split=train|test, and cifar10 takes batches=1/2.
        standardise: Whether to subtract the mean and divide by the root mean square norm; by default for all but a mixture.
        labels: Where a file has its labels: a column by name or number, an array of an .npz, or another file. By default a
            last column named label, y, class or target of a .csv or .parquet file holds them, and y of an .npz with x and y.

    Returns:
        The samples, their labels if there are any, and a description.

    Raises:
        BadInput: If there is no such data, a setting is unknown, or a file is missing or damaged.
    """
    found = as_found(spec, labels)
    if _as_is(os.fspath(spec), standardise):
        return found
    return replace(found, x=standardised(found.x), description=f"{found.description}, centred and scaled to τ0 = 1")


def load_split(
    spec: str,
    standardise: bool | None = None,
    labels: str | int | None = None,
    held_out: float = 0.2,
    seed: int = 0,
    per_feature: bool = False,
) -> Split:
    """The data that `spec` names, in a part to learn from and a part to test on.

    Args:
        spec: As for `load`. An image set has its own test set; n, seed and batches then apply to the training set only.
        standardise: As for `load`; the mean and the scale are those of the training set.
        labels: As for `load`.
        held_out: The share of the samples to test on, drawn at random, of data without a test set of their own.
        seed: The seed of that draw.
        per_feature: Whether each feature is divided by a scale of its own, for columns in different units.

    Returns:
        The two parts, and their standardiser.

    Raises:
        BadInput: As for `load`, and if there are fewer than two samples.
    """
    spec = _text(spec)
    split = _own_split(spec, labels) if _image_settings(spec) is not None else _drawn_split(spec, labels, held_out, seed)
    if flag(per_feature, "per_feature") and standardise is False:
        raise BadInput("per_feature scales each feature, and standardise=False scales none: leave one of them out.")
    if _as_is(spec, standardise) and not per_feature:
        return split
    standardiser = Standardiser.of(split.train.x, per_feature)

    def scaled(part: Dataset, how: str) -> Dataset:
        return replace(part, x=standardiser(part.x), description=f"{part.description}, {how}")

    return Split(
        scaled(split.train, "centred and each feature scaled, to τ0 = 1" if per_feature else "centred and scaled to τ0 = 1"),
        scaled(split.test, "with the training set's mean and scale"),
        standardiser,
    )


def as_found(spec: str, labels: str | int | None = None) -> Dataset:
    """The data of `spec` before they are standardised."""
    spec = _text(spec)
    if labels is not None and not is_whole(labels) and not isinstance(labels, str | os.PathLike):
        raise BadInput(f"labels = {shown(labels)}; expected a column's name or number, or the path of a file.")
    name, _, arguments = spec.partition(":")
    known = {"gmm": _mixture, "digits": _digits}
    if name in known or _image_settings(spec) is not None:
        if labels is not None:
            raise BadInput(f"{name} comes with its own labels; leave labels = {labels!r} out, it is for files.")
        found = known[name](arguments) if name in known else _images(spec)
    else:
        found = _file(Path(spec), labels)
    x = samples(found.x, f"The data of {spec!r}")
    return replace(found, x=x, description=f"{found.description}, {x.shape[0]} samples × {x.shape[1]} features")


def _text(spec: object) -> str:
    if not isinstance(spec, str | os.PathLike):
        raise BadInput(f"load takes a name or the path of a file, got {type(spec).__name__}; arrays need no loading.")
    return str(path(spec, "The name of the data"))


def _as_is(spec: str, standardise: bool | None) -> bool:
    """Whether the data are not standardised; by default a mixture is not."""
    chosen = None if standardise is None else flag(standardise, "standardise")
    return chosen is False or (chosen is None and spec.partition(":")[0] == "gmm")


def _own_split(spec: str, labels: str | int | None) -> Split:
    asked = _image_settings(spec) or {}
    name, _, arguments = spec.partition(":")
    if "split" in (item.partition("=")[0].strip() for item in arguments.split(",")):
        raise BadInput(f"{spec!r} names one split, and both are loaded here; leave split={asked['split']} out.")
    test = f"{name}:split=test" + (f",classes={asked['classes']}" if asked["classes"] else "")
    return Split(as_found(spec, labels), as_found(test, labels))


def _drawn_split(spec: str, labels: str | int | None, held_out: float, seed: int) -> Split:
    held_out, seed = share(held_out, "held_out"), checked_seed(seed)
    whole = as_found(spec, labels)
    n = len(whole.x)
    if n < 2:
        raise BadInput(f"{spec!r} holds {n} sample; a split needs at least two.")
    tested = min(max(round(held_out * n), 1), n - 1)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))

    def part(rows: Tensor, name: str) -> Dataset:
        y = None if whole.y is None else whole.y[rows]
        return replace(whole, x=whole.x[rows], y=y, description=f"{whole.description}, {len(rows)} for {name}")

    return Split(part(order[tested:], "training"), part(order[:tested], "test"))


def _image_settings(spec: str) -> dict[str, str] | None:
    """The settings in the `spec` of an image set; None for other data."""
    name, _, arguments = spec.partition(":")
    if name.replace("_", "-") not in IMAGE_SETS:
        return None
    return _settings(name, arguments, _IMAGES | ({"batches": ""} if image_set(name).in_batches else {}))


def _mixture(arguments: str) -> Dataset:
    asked = _settings("gmm", arguments, _MIXTURE)
    n, p, seed = (_whole("gmm", key, asked[key]) for key in ("n", "p", "seed"))
    separation, spread = (_number("gmm", key, asked[key]) for key in ("separation", "spread"))
    what = f"Drawing {n} × {p} samples"
    # Twice the rows: drawing makes a copy.
    check_memory((2 * n, p), torch.float64, torch.device("cpu"), "fewer samples or features", what)
    mixture = GaussianMixture.two_classes(p, separation, spread)
    x, y = mixture.sample(n, torch.Generator().manual_seed(seed))
    return Dataset(x, y, f"two-class Gaussian mixture (seed {seed})")


def _digits(arguments: str) -> Dataset:
    from sklearn.datasets import load_digits  # most of a second to import, and nothing else here needs it

    classes = tuple("0123456789")
    subset = _Subset.of("digits", _settings("digits", arguments, _SOME), classes)
    bunch = load_digits()
    x, y = torch.from_numpy(bunch.data), torch.from_numpy(bunch.target)
    return subset("digits", "digits (scikit-learn)", x, y, classes)


def _images(spec: str) -> Dataset:
    name, asked = spec.partition(":")[0], _image_settings(spec)
    assert asked is not None
    chosen = image_set(name)
    subset = _Subset.of(name, asked, chosen.classes)
    x, y = images(name, asked["split"], _wholes(name, "batches", asked.get("batches", "")))
    return subset(name, f"{chosen.title} ({asked['split']})", x, y, chosen.classes)


def _file(path: Path, labels: str | int | None) -> Dataset:
    if path.suffix.lower() not in READERS:
        raise BadInput(
            f"{str(path)!r} is not data that we know: use gmm:…, digits, {', '.join(IMAGE_SETS)}, or a "
            f"{', '.join(READERS)} file."
        )
    told = labels_told(path) if labels is None else None
    x, y, classes = read_table(path, labels if told is None else told)
    return Dataset(x, y, path.name if told is None else f"{path.name} with labels in its last column, {told!r}", classes)


@dataclass(frozen=True)
class _Subset:
    """The part of a data set that settings ask for: some classes, and n of their samples at random."""

    n: int | None
    seed: int
    classes: list[int] | None

    @classmethod
    def of(cls, name: str, asked: dict[str, str], known: tuple[str, ...]) -> _Subset:
        n = _whole(name, "n", asked["n"]) if asked["n"] else None
        classes = _wholes(name, "classes", asked["classes"])
        wrong = [k for k in classes or () if k >= len(known)]
        if wrong:
            raise BadInput(f"{name} has no class {wrong[0]}; its classes are 0 … {len(known) - 1}.")
        if classes is not None and len(set(classes)) < len(classes):
            raise BadInput(f"{name}:classes={asked['classes']} names a class twice.")
        return cls(n, _whole(name, "seed", asked["seed"]), classes)

    def __call__(self, name: str, title: str, x: Tensor, y: Tensor, known: tuple[str, ...]) -> Dataset:
        parts = [title]
        if self.classes is not None:
            kept = torch.isin(y, torch.tensor(self.classes))
            x, y = x[kept], y[kept]
            parts.append(f"classes {' and '.join(known[k] for k in self.classes)}")
        if self.n is not None:
            if not 0 < self.n <= len(x):
                raise BadInput(f"{name} is asked for n = {self.n} samples; there are {len(x)}, and at least one is needed.")
            rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(self.seed))[: self.n]
            x, y = x[rows], y[rows]
            parts.append(f"drawn with seed {self.seed}")
        return Dataset(x, y, ", ".join(parts), known)


def _settings(name: str, arguments: str, defaults: Mapping[str, str]) -> dict[str, str]:
    """`defaults` with the settings ``key=value,…`` of `arguments`."""
    found = dict(defaults)
    for item in filter(None, arguments.split(",")):
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in defaults:
            raise BadInput(f"{name} has no setting {key!r}; it has {', '.join(defaults)}.")
        if not value:
            raise BadInput(f"{name}'s setting {key} has no value; write for example {key}={defaults[key] or 1}.")
        found[key] = value
    return found


def _number(name: str, key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"{name}'s {key} = {text!r} is not a number.") from None


def _whole(name: str, key: str, text: str) -> int:
    value = _number(name, key, text)
    if not value.is_integer() or not 0 <= value < 2**53:
        raise BadInput(f"{name}'s {key} = {value:g} must be a whole number, not negative.")
    return int(value)


def _wholes(name: str, key: str, text: str) -> list[int] | None:
    """6/8 → [6, 8]; None for an empty text."""
    return [_whole(name, key, part) for part in text.split("/")] if text else None
