"""The state of every random generator that a training run may draw from, as tensors."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.errors import BadInput


def generators_of(*loaders: Any) -> list[torch.Generator]:
    """The generators that DataLoaders (or `Batches`) order their samples with, each once."""
    holders = [
        holder
        for loader in loaders
        for grouped in [getattr(loader, "batch_sampler", None)]
        for holder in (loader, getattr(loader, "sampler", None), grouped, getattr(grouped, "sampler", None))
    ]
    found = [getattr(holder, "generator", None) for holder in holders]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def capture(generators: list[torch.Generator], device: torch.device) -> dict[str, Tensor]:
    """torch's own generator (and the device's), numpy's, Python's and those given."""
    numpy_state: Any = np.random.get_state(legacy=False)
    version, words, spare = random.getstate()
    states = {
        "torch": torch.get_rng_state(),
        "numpy.key": torch.from_numpy(numpy_state["state"]["key"].astype(np.int64)),
        "numpy.rest": _numbers(numpy_state["state"]["pos"], numpy_state["has_gauss"], numpy_state["gauss"]),
        "python.words": torch.tensor(words, dtype=torch.int64),
        "python.rest": _numbers(version, spare is not None, spare or 0.0),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states | {f"loader.{k}": generator.get_state() for k, generator in enumerate(generators)}


def check(states: dict[str, Tensor], generators: list[torch.Generator]) -> None:
    """An error unless `restore` can use these."""
    missing = {"torch", "numpy.key", "numpy.rest", "python.words", "python.rest"} - set(states)
    loaders = sum(name.startswith("loader.") for name in states)
    if missing or loaders != len(generators):
        raise BadInput(
            f"The run drew its batches from {loaders} generators, and there are {len(generators)} now"
            + (f" ({', '.join(missing)} are missing)" if missing else "")
            + "; give it the same kind of loader."
        )


def restore(states: dict[str, Tensor], generators: list[torch.Generator], device: torch.device) -> None:
    """As they were when `capture` was called."""
    torch.set_rng_state(states["torch"])
    position, has_gauss, gauss = states["numpy.rest"].tolist()
    key = states["numpy.key"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", key, int(position), int(has_gauss), gauss))
    version, has_spare, spare = states["python.rest"].tolist()
    random.setstate((int(version), tuple(states["python.words"].tolist()), spare if has_spare else None))
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    for k, generator in enumerate(generators):
        generator.set_state(states[f"loader.{k}"])


def _numbers(*values: Any) -> Tensor:
    return torch.tensor([float(value) for value in values], dtype=torch.float64)
