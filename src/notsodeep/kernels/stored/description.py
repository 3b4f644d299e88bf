"""What a store says of its kernels: an attribute of its group, written by `workers.describe`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from notsodeep.arguments import is_whole
from notsodeep.errors import BadInput
from notsodeep.kernels.names import Kernel
from notsodeep.kernels.stored.library import group
from notsodeep.kernels.stored.places import cannot_read, check_file

FORMAT = 2
ATTRIBUTE = "notsodeep"
NOT_COMPARED = ("tau0_used", "torch")

_ELSEWHERE = "Write the kernels into another folder, or with resume=False, which replaces these."


def described(folder: Path) -> dict[str, Any]:
    """The description in `folder`, its kernels checked, which are names of folders; raises BadInput where there is none."""
    check_file(folder / "zarr.json", "the description", "Put that file back, or name another folder.")
    try:
        found = group(folder, "r").attrs.get(ATTRIBUTE)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        found = None
    except OSError as error:
        raise cannot_read(folder / "zarr.json", error) from error
    if not isinstance(found, dict) or not _are_kernels(found.get("kernels")):
        raise BadInput(
            f"{str(folder)!r} holds no kernels of notsodeep: its zarr.json is missing, damaged, or of something else. Name "
            "another folder."
        )
    return found


def _are_kernels(names: Any) -> bool:
    return isinstance(names, list) and bool(names) and all(isinstance(name, str) and name in list(Kernel) for name in names)


def whole_description(folder: Path) -> dict[str, Any]:
    """The description in `folder`; raises BadInput unless it holds all that is needed to read the kernels."""
    found = described(folder)
    wrong = [key for key, is_right in _NEEDED.items() if key not in found or not is_right(found[key])]
    if wrong:
        told = ", ".join(f"{key} is {found[key]!r}" if key in found else f"{key} is missing" for key in wrong)
        raise BadInput(f"{str(folder / 'zarr.json')!r} does not say how the kernels are stored: {told}. {_ELSEWHERE}")
    return found


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(is_whole(side) and side > 0 for side in value)


_NEEDED = {
    "format": lambda value: value == FORMAT,
    "dtype": lambda value: value in ("float32", "float64"),
    "shape": _is_pair,
    "tile": _is_pair,
    "x2": lambda value: value is None or isinstance(value, str),
}


def check_same(folder: Path, found: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Raise BadInput where the kernels that were found are not those of `about`."""
    keys = [key for key in about if key not in NOT_COMPARED]
    other = [key for key in keys if key not in found or found[key] != about[key]]
    if other or not set(NOT_COMPARED) <= set(found):
        told = ", ".join(_difference(key, found.get(key), about[key]) for key in other) or "their format"
        what = f"{str(folder)!r} holds other kernels; they differ in {told}."
        raise BadInput(
            f"{what} Name another folder, or pass resume=False to replace them.", differ=other, what=what, folder=folder
        )
    _check_tau0(folder, found["tau0_used"], about["tau0_used"])


def _difference(key: str, there: Any, here: Any) -> str:
    if key in ("x", "x2") and there is not None and here is not None:  # nobody reads a SHA-256
        return "the samples" if key == "x" else "the samples x2"
    if key == "x2":
        return "x2 (none there)" if there is None else "x2 (none here)"
    return f"{key} ({there} there, {here} here)"


def _check_tau0(folder: Path, found: Any, used: float | None) -> None:
    """Raise BadInput where τ0 of the tiles differs by more than the rounding of another version of torch."""
    same = found == used or (isinstance(found, float) and used is not None and math.isclose(found, used, rel_tol=1e-9))
    if not same:
        raise BadInput(
            f"{str(folder / 'zarr.json')!r} is damaged: it says that the tiles were computed with tau0 = {found!r}, and these "
            f"samples have {used!r}. Write the kernels into another folder, or pass resume=False."
        )
