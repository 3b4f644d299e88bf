"""Data to learn from and data to test on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from notsodeep.arguments import seed as checked_seed, share
from notsodeep.data.sources import Dataset, as_found, as_is, image_settings, spec_of
from notsodeep.data.standardiser import Standardiser
from notsodeep.errors import BadInput


@dataclass(frozen=True, eq=False)
class Split:
    """The two parts, both in the training set's units."""

    train: Dataset
    test: Dataset


def load_split(
    spec: str,
    standardise: bool | None = None,
    labels: str | int | None = None,
    held_out: float = 0.2,
    seed: int = 0,
) -> Split:
    """The data that `spec` names (as for `load`), in two parts. An image set has its own test set (n, seed and batches then
    mean the training set only); of everything else the share `held_out` is drawn at random by `seed`. The mean and the
    scale come from the training set alone."""
    spec = spec_of(spec)
    split = _own(spec, labels) if image_settings(spec) is not None else _drawn(spec, labels, held_out, seed)
    if as_is(spec, standardise):
        return split
    standardiser = Standardiser.of(split.train.x)
    return Split(
        _changed(split.train, standardiser, "centred and scaled to τ0 = 1"),
        _changed(split.test, standardiser, "with the training set's mean and scale"),
    )


def _own(spec: str, labels: str | int | None) -> Split:
    asked = image_settings(spec) or {}
    name, _, arguments = spec.partition(":")
    if "split" in (item.partition("=")[0].strip() for item in arguments.split(",")):
        raise BadInput(f"{spec!r} names one split, and both are loaded here; leave split={asked['split']} out.")
    test = f"{name}:split=test" + (f",classes={asked['classes']}" if asked["classes"] else "")
    return Split(as_found(spec, labels), as_found(test, labels))


def _drawn(spec: str, labels: str | int | None, held_out: float, seed: int) -> Split:
    held_out, seed = share(held_out, "held_out"), checked_seed(seed)
    whole = as_found(spec, labels)
    n = len(whole.x)
    if n < 2:
        raise BadInput(f"{spec!r} holds {n} sample; a split needs at least two.")
    tested = min(max(round(held_out * n), 1), n - 1)
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return Split(_part(whole, rows[tested:], "training"), _part(whole, rows[:tested], "test"))


def _part(whole: Dataset, rows: torch.Tensor, name: str) -> Dataset:
    y = None if whole.y is None else whole.y[rows]
    return Dataset(whole.x[rows], y, f"{whole.description}, {len(rows)} for {name}", whole.classes)


def _changed(found: Dataset, standardiser: Standardiser, how: str) -> Dataset:
    return Dataset(standardiser(found.x), found.y, f"{found.description}, {how}", found.classes)
