"""Data by one line of text: ``gmm:n=800,p=640``, ``digits``, ``mnist:n=2000,classes=6/8``, or the path of a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from notsodeep.arguments import flag, is_whole, path, shown
from notsodeep.arrays import check_memory, samples
from notsodeep.data.image_sets import IMAGE_SETS, image_set, images
from notsodeep.data.standardiser import Standardiser, standardised
from notsodeep.data.tables import READERS, read_table
from notsodeep.errors import BadInput
from notsodeep.theory.mixture import GaussianMixture

__all__ = ["Dataset", "Standardiser", "as_found", "as_is", "image_settings", "load", "standardised"]

_MIXTURE = {"n": "800", "p": "640", "seed": "0", "separation": "8", "spread": "8"}
_SOME = {"n": "", "seed": "0", "classes": ""}
_IMAGES = {"split": "train", **_SOME}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples (n, p), labels if there are any (classes (n,), int64, or real numbers), what was done to get them, and the
    classes' names if they have any."""

    x: Tensor
    y: Tensor | None
    description: str
    classes: tuple[str, ...] | None = None
    """The name of class k is classes[k]."""


def load(spec: str, standardise: bool | None = None, labels: str | int | None = None) -> Dataset:
    """The data that `spec` names. `standardise` subtracts the mean and divides by the root mean square norm (so τ0 = 1); by
    default that is done to everything but a mixture, which is used as it is drawn. `labels` says where a file's labels are:
    a column by name or number, an array of an .npz, or another file with one label a sample.

    Image sets (mnist, fashion-mnist, cifar10, cifar10-vgg19) take split=train|test, n (so many samples at random, by seed),
    classes=6/8 (only these) and, for cifar10, batches=1/2."""
    found = as_found(spec, labels)
    if as_is(os.fspath(spec), standardise):
        return found
    return Dataset(standardised(found.x), found.y, f"{found.description}, centred and scaled to τ0 = 1", found.classes)


def as_is(spec: str, standardise: bool | None) -> bool:
    """Whether the data stay as they are: a mixture does unless told otherwise."""
    chosen = None if standardise is None else flag(standardise, "standardise")
    return chosen is False or (chosen is None and spec.partition(":")[0] == "gmm")


def as_found(spec: str, labels: str | int | None = None) -> Dataset:
    """The data of `spec` before anything is done to them."""
    spec = spec_of(spec)
    if labels is not None and not is_whole(labels) and not isinstance(labels, str | os.PathLike):
        raise BadInput(f"labels = {shown(labels)}; expected a column's name or number, or the path of a file.")
    name, _, arguments = spec.partition(":")
    known = {"gmm": _mixture, "digits": _digits}
    if name in known or image_settings(spec) is not None:
        if labels is not None:
            raise BadInput(f"{name} comes with its own labels; leave labels = {labels!r} out, it is for files.")
        found = known[name](arguments) if name in known else _images(spec)
    else:
        found = _file(Path(spec), labels)
    x = samples(found.x, f"The data of {spec!r}")
    return Dataset(x, found.y, f"{found.description}, {x.shape[0]} samples × {x.shape[1]} features", found.classes)


def spec_of(spec: object) -> str:
    """`spec` as text, or `BadInput` where it names nothing."""
    if not isinstance(spec, str | os.PathLike):
        raise BadInput(f"load takes a name or the path of a file, got {type(spec).__name__}; arrays need no loading.")
    return str(path(spec, "The name of the data"))


def image_settings(spec: str) -> dict[str, str] | None:
    """The settings of an image set's `spec`; None if it is no image set."""
    name, _, arguments = spec.partition(":")
    if name.replace("_", "-") not in IMAGE_SETS:
        return None
    return settings(name, arguments, _IMAGES | ({"batches": ""} if image_set(name).in_batches else {}))


def _digits(arguments: str) -> Dataset:
    """digits:n=500,classes=3/8,seed=0: all of them without settings."""
    from sklearn.datasets import load_digits  # most of a second to import, and nothing else here needs it

    asked = settings("digits", arguments, _SOME)
    bunch = load_digits()
    x, y = torch.from_numpy(bunch.data), torch.from_numpy(bunch.target)
    return _some("digits", asked, x, y, "digits (scikit-learn)", tuple("0123456789"))


def _mixture(arguments: str) -> Dataset:
    """gmm:n=800,p=640,seed=0,separation=8,spread=8: the two-class mixture of [ling2024]."""
    asked = settings("gmm", arguments, _MIXTURE)
    n, p, seed = (whole("gmm", key, asked[key]) for key in ("n", "p", "seed"))
    separation, spread = (number("gmm", key, asked[key]) for key in ("separation", "spread"))
    what = f"Drawing {n} × {p} samples"  # with a copy on the way
    check_memory((2 * n, p), torch.float64, torch.device("cpu"), "fewer samples or features", what)
    mixture = GaussianMixture.two_classes(p, separation, spread)
    x, y = mixture.sample(n, torch.Generator().manual_seed(seed))
    return Dataset(x, y, f"two-class Gaussian mixture (seed {seed})")


def _images(spec: str) -> Dataset:
    name, asked = spec.partition(":")[0], image_settings(spec)
    assert asked is not None
    chosen = image_set(name)
    batches = wholes(name, "batches", asked.get("batches", ""))
    (
        _classes(name, asked, chosen.classes),
        _count_and_seed(name, asked),
    )  # what is wrong is told before the files are read
    x, y = images(name, asked["split"], batches)
    return _some(name, asked, x, y, f"{chosen.title} ({asked['split']})", chosen.classes)


def _count_and_seed(name: str, asked: dict[str, str]) -> tuple[int | None, int]:
    return whole(name, "n", asked["n"]) if asked["n"] else None, whole(name, "seed", asked["seed"] or "0")


def _classes(name: str, asked: dict[str, str], known: tuple[str, ...]) -> list[int] | None:
    classes = wholes(name, "classes", asked["classes"])
    wrong = [k for k in classes or () if k >= len(known)]
    if wrong:
        raise BadInput(f"{name} has no class {wrong[0]}; its classes are 0 … {len(known) - 1}.")
    if classes is not None and len(set(classes)) < len(classes):
        raise BadInput(f"{name}:classes={asked['classes']} names a class twice.")
    return None if classes is None else list(classes)


def _some(name: str, asked: dict[str, str], x: Tensor, y: Tensor, title: str, known: tuple[str, ...]) -> Dataset:
    """Only the classes asked for, then n of what is left, at random."""
    n, seed = _count_and_seed(name, asked)
    classes, parts = _classes(name, asked, known), [title]
    if classes is not None:
        kept = torch.isin(y, torch.tensor(classes))
        x, y = x[kept], y[kept]
        parts.append(f"classes {' and '.join(known[k] for k in classes)}")
    if n is not None:
        if not 0 < n <= len(x):
            raise BadInput(f"{name} is asked for n = {n} samples; there are {len(x)}, and at least one is needed.")
        rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:n]
        x, y = x[rows], y[rows]
        parts.append(f"drawn with seed {seed}")
    return Dataset(x, y, ", ".join(parts), known)


def _file(path: Path, labels: str | int | None) -> Dataset:
    if path.suffix.lower() not in READERS:
        raise BadInput(
            f"{str(path)!r} is no data that we know: use gmm:…, digits, {', '.join(IMAGE_SETS)}, or a "
            f"{', '.join(READERS)} file."
        )
    x, y, classes = read_table(path, labels)
    return Dataset(x, y, path.name, classes)


def settings(name: str, arguments: str, defaults: Mapping[str, str]) -> dict[str, str]:
    """`defaults` with what `arguments` says; `BadInput` for a setting that `name` does not have."""
    found = dict(defaults)
    for item in filter(None, arguments.split(",")):
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in defaults:
            raise BadInput(f"{name} has no setting {key!r}; it has {', '.join(defaults)}.")
        if not value:
            raise BadInput(f"{name}'s setting {key} has no value; write for example {key}={defaults[key] or 1}.")
        found[key] = value
    return found


def number(name: str, key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"{name}'s {key} = {text!r} is not a number.") from None


def whole(name: str, key: str, text: str) -> int:
    value = number(name, key, text)
    if not value.is_integer() or not 0 <= value < 2**53:
        raise BadInput(f"{name}'s {key} = {value:g} must be a whole number, not negative.")
    return int(value)


def wholes(name: str, key: str, text: str) -> list[int] | None:
    """6/8 → [6, 8]; nothing for nothing."""
    return [whole(name, key, part) for part in text.split("/")] if text else None
