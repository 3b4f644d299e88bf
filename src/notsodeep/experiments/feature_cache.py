"""Features of many samples: computed in batches, once, and kept on disk until a record holds what was learnt from them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from notsodeep.data.cache import cache_folder
from notsodeep.models.readout import BATCH
from notsodeep.runtime.files import output_folder, write_whole


class FeatureCache:
    """The features of one computation. On the CPU each set of them is a file that is mapped into memory, so that nothing of the
    size n × m is ever held, and a run that is killed finds them again; on a GPU they stay on it."""

    def __init__(self, key: str, folder: Path | None = None) -> None:
        self.folder = (cache_folder() / "features" if folder is None else folder) / key

    @torch.no_grad()
    def get(self, name: str, features: Callable[[Tensor], Tensor], x: Tensor, width: int) -> Tensor:
        """features(x), (n, width)."""
        if x.is_cuda:
            found = torch.empty(len(x), width, device=x.device)
            for start in range(0, len(x), BATCH):
                found[start : start + BATCH] = features(x[start : start + BATCH])
            return found
        path = output_folder(self.folder) / f"{name}.npy"
        if not path.is_file():
            write_whole(path, lambda to: _write(to, features, x, width))
        return torch.from_numpy(np.load(path, mmap_mode="r+"))  # "r+", as torch has no tensors that cannot be written

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _write(path: Path, features: Callable[[Tensor], Tensor], x: Tensor, width: int) -> None:
    target = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(len(x), width))
    for start in range(0, len(x), BATCH):
        target[start : start + BATCH] = features(x[start : start + BATCH]).numpy()
    target.flush()
