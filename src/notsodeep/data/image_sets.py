"""The image sets that the papers use: MNIST, Fashion-MNIST, CIFAR-10, and CIFAR-10 through VGG-19."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.arguments import flag, shown
from notsodeep.data.cache import Archive, StoredFile, obtain
from notsodeep.data.readers import read_batch, read_idx
from notsodeep.errors import BadInput

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


@dataclass(frozen=True)
class ImageSet:
    """A data set: its title, classes, files by split, and the function that reads them."""

    title: str
    classes: tuple[str, ...]
    features: int
    files: Mapping[str, tuple[StoredFile, ...]]
    read: Callable[[Sequence[Path], str], Arrays]
    """(paths, split) → samples (n, features), labels (n,)"""
    scale: float = 255.0
    archive: Archive | None = None
    in_batches: bool = False
    """Whether some of the training files can be used without the others."""


def images(
    name: str, split: str = "train", batches: Sequence[int] | None = None, download: bool = True
) -> tuple[Tensor, Tensor]:
    """An image set, from $NOTSODEEP_DATA, the cache, or downloaded into the cache.

    Args:
        name: mnist, fashion-mnist, cifar10, or cifar10-vgg19 (features of VGG-19).
        split: train or test.
        batches: Some of CIFAR-10's five training batches, for example [1, 2].
        download: Whether missing files may be downloaded.

    Returns:
        Samples (n, p), float32, pixels divided by 255 and features as they are stored; labels (n,), int64.

    Raises:
        BadInput: For an unknown name, split or batch, and for files that are missing or damaged.
    """
    chosen = image_set(name)
    if not isinstance(split, str) or split not in chosen.files:
        raise BadInput(f"{name} has no split {shown(split)}; it has {' and '.join(chosen.files)}.")
    download = flag(download, "download")
    files = chosen.files[split] if batches is None else _batches(chosen, name, split, batches)
    try:
        paths = obtain(files, name, download, chosen.archive)
    except BadInput as error:
        raise _with_hint(error, chosen, files) from None
    x, y = chosen.read(paths, split)
    _check(x, y, chosen, paths)
    scaled = torch.from_numpy(x.astype(np.float32))
    return scaled.div_(chosen.scale) if chosen.scale != 1.0 else scaled, torch.from_numpy(y.astype(np.int64))


def image_set(name: str) -> ImageSet:
    """The set of that name, with - or _ in it."""
    known = name.replace("_", "-") if isinstance(name, str) else ""
    if known not in IMAGE_SETS:
        raise BadInput(f"There is no image set {shown(name)}; there are {', '.join(IMAGE_SETS)}.")
    return IMAGE_SETS[known]


def _batches(chosen: ImageSet, name: str, split: str, batches: Sequence[int]) -> tuple[StoredFile, ...]:
    files = chosen.files[split]
    if not chosen.in_batches or split != "train":
        raise BadInput(f"{name}'s {split} split is not in batches; leave batches out (cifar10's training split has five).")
    if not batches or len(set(batches)) < len(batches) or not set(batches) <= set(range(1, len(files) + 1)):
        raise BadInput(f"batches = {list(batches)} must be some of 1 … {len(files)}, each once.")
    return tuple(files[batch - 1] for batch in batches)


def _with_hint(error: BadInput, chosen: ImageSet, files: Sequence[StoredFile]) -> BadInput:
    """The error with a hint at `batches`, if some of the batches were found."""
    missing = error.data.get("missing", ())
    present = [str(i) for i, file in enumerate(files, start=1) if file.path not in missing]
    if not (missing and present and chosen.in_batches and files == chosen.files["train"]):
        return error
    return BadInput(f"{error} Or use what is there: batches={'/'.join(present)}.", **error.data)


def _check(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], chosen: ImageSet, paths: Sequence[Path]) -> None:
    where = ", ".join(repr(str(path)) for path in paths)
    if x.ndim != 2 or x.shape[1] != chosen.features or y.shape != (len(x),) or len(x) == 0:
        raise BadInput(f"{where}: samples {x.shape} and labels {y.shape}; expected (n, {chosen.features}) and (n,).")
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= len(chosen.classes):
        raise BadInput(f"{where}: labels must be 0 … {len(chosen.classes) - 1}.")


def _read_idx_pair(paths: Sequence[Path], _: str) -> Arrays:
    x, y = map(read_idx, paths)
    return x.reshape(len(x), -1), y


def _read_batches(paths: Sequence[Path], _: str) -> Arrays:
    read = [read_batch(path) for path in paths]
    return np.concatenate([x for x, _ in read]), np.concatenate([y for _, y in read])


def _read_features(paths: Sequence[Path], split: str) -> Arrays:
    try:
        with np.load(paths[0], allow_pickle=False) as archive:
            return archive[f"x_{split}"], archive[f"y_{split}"]
    except Exception as error:  # of zip, NumPy, or a missing key
        raise BadInput(f"{str(paths[0])!r} cannot be read: {error}. It must hold x_{split} and y_{split}.") from error


def _idx_set(title: str, classes: Sequence[str], folder: str, homes: Sequence[str], sums: Mapping[str, str]) -> ImageSet:
    """A set of 28 × 28 pixels in four files, those of the training set first; `sums` are theirs by name."""
    names = {f"{name}-ubyte.gz": md5 for name, md5 in sums.items()}
    files = [StoredFile(f"{folder}/{name}", md5, tuple(home + name for home in homes)) for name, md5 in names.items()]
    return ImageSet(title, tuple(classes), 784, {"train": tuple(files[:2]), "test": tuple(files[2:])}, _read_idx_pair)


def _cifar_file(name: str, md5: str) -> StoredFile:
    return StoredFile(f"cifar10/cifar-10-batches-py/{name}", md5)


_CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR_TRAIN = (
    _cifar_file("data_batch_1", "c99cafc152244af753f735de768cd75f"),
    _cifar_file("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
    _cifar_file("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
    _cifar_file("data_batch_4", "634d18415352ddfa80567beed471001a"),
    _cifar_file("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
)
_CIFAR_TEST = (_cifar_file("test_batch", "40351d587109b95175f43aff81a1287e"),)
_CIFAR_ARCHIVE = Archive(
    StoredFile(
        "cifar10/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
    ),
    _CIFAR_TRAIN + _CIFAR_TEST,
)
FEATURES = StoredFile(
    "cifar10-vgg19/features.npz", "5dda01e9f3c41a16d35831a3a50294ea", made_by="notsodeep data features cifar10"
)

IMAGE_SETS: dict[str, ImageSet] = {
    "mnist": _idx_set(
        "MNIST",
        "0123456789",
        "mnist",
        ["https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"],
        {
            "train-images-idx3": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion-mnist": _idx_set(
        "Fashion-MNIST",
        ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        "fashion-mnist",
        ["http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"],
        {
            "train-images-idx3": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "cifar10": ImageSet(
        "CIFAR-10",
        _CIFAR_CLASSES,
        3072,
        {"train": _CIFAR_TRAIN, "test": _CIFAR_TEST},
        _read_batches,
        archive=_CIFAR_ARCHIVE,
        in_batches=True,
    ),
    "cifar10-vgg19": ImageSet(
        "CIFAR-10 through VGG-19", _CIFAR_CLASSES, 2048, {"train": (FEATURES,), "test": (FEATURES,)}, _read_features, scale=1.0
    ),
}
