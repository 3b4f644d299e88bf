"""Data by one line of text: ``gmm:n=800,p=640``, ``digits``, or the path of a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from notsodeep.data.mixture import GaussianMixture
from notsodeep.errors import BadInput
from notsodeep.numerics.safe import refuse_if_too_large, samples


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples (n, p), labels (n,) if there are any, and what was done to get them."""

    x: Tensor
    y: Tensor | None
    description: str


def load(spec: str, standardise: bool | None = None) -> Dataset:
    """The data that `spec` names. `standardise` subtracts the mean and divides by the root mean square norm (so τ0 = 1); by
    default that is done to everything but a mixture, which is used as it is drawn."""
    name, _, arguments = spec.partition(":")
    if name == "gmm":
        found = _mixture(arguments)
    elif name == "digits":
        bunch = load_digits()
        found = Dataset(torch.from_numpy(bunch.data), torch.from_numpy(bunch.target), "digits (scikit-learn)")
    else:
        found = _file(Path(spec))
    x = samples(found.x, f"The data of {spec!r}")
    if standardise is False or (standardise is None and name == "gmm"):
        return Dataset(x, found.y, f"{found.description}, {_shape(x)}")
    return Dataset(standardised(x), found.y, f"{found.description}, {_shape(x)}, centred and scaled to τ0 = 1")


def standardised(x: Tensor) -> Tensor:
    """x less its mean sample, divided by the root mean square norm."""
    centred = x - x.mean(0)
    scale = centred.to(torch.float64).square().sum(1).mean().sqrt()
    if float(scale) == 0.0:
        raise BadInput(f"All {len(x)} samples are equal: nothing is left after subtracting their mean.")
    return centred / scale.to(x.dtype)


def _shape(x: Tensor) -> str:
    return f"{x.shape[0]} samples × {x.shape[1]} features"


def _mixture(arguments: str) -> Dataset:
    """gmm:n=800,p=640,seed=0,separation=8,spread=8: the two-class mixture of [ling2024]."""
    settings: dict[str, float] = {"n": 800.0, "p": 640.0, "seed": 0.0, "separation": 8.0, "spread": 8.0}
    for item in filter(None, arguments.split(",")):
        key, _, value = item.partition("=")
        if key.strip() not in settings:
            raise BadInput(f"gmm has no setting {key.strip()!r}; it has {', '.join(settings)}.")
        try:
            settings[key.strip()] = float(value)
        except ValueError:
            raise BadInput(f"{item!r} is not a setting of gmm; write for example gmm:n=800,p=640.") from None
    for key in ("n", "p", "seed"):
        if not settings[key].is_integer() or not 0 <= settings[key] < 2**53:
            raise BadInput(f"gmm's {key} = {settings[key]:g} must be a whole number, not negative.")
    n, p, seed = (int(settings[key]) for key in ("n", "p", "seed"))
    refuse_if_too_large(2 * n, p, torch.float64, torch.device("cpu"), "fewer samples or features")
    mixture = GaussianMixture.two_classes(p, settings["separation"], settings["spread"])
    x, y = mixture.sample(n, torch.Generator().manual_seed(seed))
    return Dataset(x, y, f"two-class Gaussian mixture (seed {seed})")


def _file(path: Path) -> Dataset:
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        raise BadInput(f"{str(path)!r} is no data that we know: use gmm:…, digits, or a {', '.join(_READERS)} file.")
    if path.is_dir():
        raise BadInput(f"{str(path)!r} is a folder; name a file in it.")
    if not path.is_file():
        raise BadInput(f"There is no file {str(path)!r}.")
    try:
        array = _READERS[suffix](path)
    except BadInput:
        raise
    except Exception as error:  # each reader fails in its own ways on a corrupt file, and all mean this
        raise BadInput(f"{str(path)!r} cannot be read as {suffix}: {_first_line(error)}") from error
    if array.dtype.kind not in "fiub":
        raise BadInput(f"{str(path)!r} holds {array.dtype}, not numbers.")
    if array.ndim != 2:
        raise BadInput(f"{str(path)!r} holds an array of shape {array.shape}; expected (samples, features).")
    return Dataset(samples(array), None, path.name)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _npz(path: Path) -> np.ndarray[Any, Any]:
    with np.load(path, allow_pickle=False) as archive:
        names = archive.files
        if not names or (len(names) > 1 and "x" not in names):
            raise BadInput(
                f"{str(path)!r} holds {', '.join(names) or 'nothing'}; name the samples x, or keep one array only."
            )
        return np.asarray(archive["x" if "x" in names else names[0]])


def _csv(path: Path) -> np.ndarray[Any, Any]:
    """Comma-separated numbers, with or without one line of column names (a first line without a single number)."""
    with path.open(encoding="utf-8-sig") as lines:
        header = 0 if any(map(_is_number, lines.readline().split(","))) else 1
        lines.seek(0)
        return np.loadtxt(lines, delimiter=",", skiprows=header, ndmin=2)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _parquet(path: Path) -> np.ndarray[Any, Any]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise BadInput("Reading a .parquet file needs pyarrow: pip install 'notsodeep[parquet]'.") from None
    table = parquet.read_table(path)
    return np.column_stack([np.asarray(column) for column in table.columns])


_READERS: dict[str, Callable[[Path], np.ndarray[Any, Any]]] = {
    ".npy": lambda path: np.asarray(np.load(path, allow_pickle=False)),
    ".npz": _npz,
    ".csv": _csv,
    ".parquet": _parquet,
}
